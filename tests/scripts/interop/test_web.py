"""The page without a server: what the folder has, and what it does in a browser.

The engine of the fast tests is a stand-in: it speaks the protocol, and translates to upper case.
"""

import contextlib
import functools
import http.server
import json
import shutil
import threading

import pytest

from scripts import export
from scripts.interop import bergamot, engines, runtimes, web
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.interop.test_bergamot_export import SENTENCES, engine_model
from transformer.support.errors import UserError

expect = pytest.importorskip("playwright.sync_api").expect

STAND_IN = """
self.addEventListener("message", ({ data: { id, name, args } }) => {
  const [first, second] = args;
  let result = null;
  let error;
  if (name === "loadTranslationModel" && !second.model.byteLength) error = { message: "empty" };
  if (name === "translate") {
    if (first.texts.some(({ text }) => text === "fail")) error = { message: "out of memory" };
    result = first.texts.map(({ text }) => ({ target: { text: text.toUpperCase() } }));
  }
  self.postMessage({ id, result, error });
});
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Returns a folder like that of the npm package."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "worker").mkdir()
    for name in web.WORKER:
        (folder / "worker" / name).write_text(STAND_IN if name == web.WORKER[0] else "")
    return folder


@pytest.fixture(scope="module")
def exported(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    model = engine_model()._replace(factors=dict.fromkeys(("Wemb", "none"), 10.0))
    web.write(model, folder, None, None, SENTENCES, web.find_worker(str(package)))
    return folder


@pytest.fixture
def served(exported, tmp_path):
    """Returns a copy of the folder, its address, and the server."""
    folder = tmp_path / "web"
    shutil.copytree(exported, folder)
    with serve(folder) as (address, server):
        yield folder, address, server


@contextlib.contextmanager
def serve(folder):
    """Serves the files of a folder, and yields the address and the server."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}/", server
    server.shutdown()
    server.server_close()


@pytest.fixture
def tab(browser):
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_the_folder_has_all_that_the_page_loads(exported):
    settings = json.loads((exported / "model.json").read_text())
    assert (settings["source"], settings["target"]) == ("de", "en")
    assert settings["model"] == "model/model.deen.intgemm.alphas.bin"
    assert settings["vocabularies"] == ["model/vocab.deen.spm"]
    assert settings["shortlist"] is None
    for path, size in settings["bytes"].items():
        assert (exported / path).stat().st_size == size
    assert {f"engine/{name}" for name in web.WORKER} < settings["bytes"].keys()
    # The page asks for no other address.
    for name in ("index.html", "page.js", "service-worker.js"):
        assert "http" not in (exported / name).read_text().replace("http-equiv", "")


def test_the_version_follows_the_content(exported, tmp_path):
    folder = tmp_path / "web"
    shutil.copytree(exported, folder)
    model = engine_model()
    before = web.describe(model, folder)["version"]
    (folder / "engine" / web.WORKER[2]).write_text("new")
    assert (
        before == web.describe(model, exported)["version"] != web.describe(model, folder)["version"]
    )


def test_a_text_is_translated_without_other_requests(tab, served):
    _, address, _ = served
    requested = []
    tab.on("request", lambda request: requested.append(request.url))
    tab.goto(address)
    tab.get_by_text("Ready").wait_for()
    assert tab.locator("#direction").text_content() == "From German to English"
    assert tab.locator("#progress").is_hidden()
    tab.fill("#text", "two men\nrun")
    expect(tab.locator("#translation")).to_have_text("TWO MEN RUN")
    assert tab.locator("#translation").text_content() == "TWO MEN\nRUN"
    tab.fill("#text", "")
    expect(tab.locator("#translation")).to_have_text("")
    assert requested and all(url.startswith(address) for url in requested)


def test_it_works_offline_after_the_first_load(tab, served):
    _, address, server = served
    tab.goto(address)
    tab.get_by_text("Ready").wait_for()
    server.shutdown()
    server.server_close()
    tab.reload()
    tab.get_by_text("Ready").wait_for()
    tab.fill("#text", "red")
    expect(tab.locator("#translation")).to_have_text("RED")


def test_progress_is_shown_while_files_arrive(tab, served):
    _, address, _ = served
    held = []
    tab.context.route("**/vocab.deen.spm", lambda route: held.append(route))
    tab.add_init_script("delete Navigator.prototype.serviceWorker")
    tab.goto(address)
    tab.get_by_text("Loading:").wait_for()
    while not held:
        tab.wait_for_timeout(10)
    assert 0 < tab.locator("#progress").evaluate("bar => bar.value") < 1
    held[0].continue_()
    tab.get_by_text("Ready").wait_for()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            "engine/bergamot-translator-worker.wasm",
            "The translation engine is missing: this folder lacks "
            "engine/bergamot-translator-worker.wasm. Export it again.",
        ),
        (
            "model/vocab.deen.spm",
            "A file of the model is missing: this folder lacks model/vocab.deen.spm. "
            "Export it again.",
        ),
    ],
)
def test_a_missing_file_is_explained(tab, served, missing, message):
    folder, address, _ = served
    (folder / missing).unlink()
    tab.goto(address)
    tab.locator("#loading.error").wait_for()
    assert tab.locator("#loading").text_content() == message


def test_an_old_browser_is_explained(tab, served):
    _, address, _ = served
    tab.add_init_script("WebAssembly.validate = () => false")
    tab.goto(address)
    tab.locator("#loading.error").wait_for()
    assert "lacks WebAssembly SIMD" in tab.locator("#loading").text_content()


def test_a_text_that_fails_is_explained_and_the_next_is_translated(tab, served):
    _, address, _ = served
    tab.goto(address)
    tab.get_by_text("Ready").wait_for()
    tab.fill("#text", "fail")
    tab.locator("#status.error").wait_for()
    assert tab.locator("#status").text_content() == "The page failed: out of memory"
    tab.fill("#text", "red")
    expect(tab.locator("#translation")).to_have_text("RED")


@pytest.mark.slow
def test_the_page_translates_as_the_engine_does_in_node(tab, tmp_path):
    worker = web.find_worker(None)
    if shutil.which("node") is None or not worker.exists():
        pytest.skip(f"needs node and {worker}: make interop")
    web.write(engine_model(), tmp_path, None, None, SENTENCES, worker)
    model = tmp_path / web.MODEL
    request = {"folder": str(model), "engine": str(worker), "files": bergamot.files_in(model)}
    text = SENTENCES.texts[0]
    (expected,) = runtimes.run(engines.NODE, request | {"sources": [text]})["greedy"]
    with serve(tmp_path) as (address, _):
        tab.goto(address)
        tab.get_by_text("Ready").wait_for()
        tab.fill("#text", text)
        expect(tab.locator("#status")).to_have_text("")
        expect(tab.locator("#translation")).to_have_text(expected)


def test_the_engine_of_a_flag_must_have_its_files(package, tmp_path, capsys):
    assert web.find_worker(str(package)) == web.find_worker(str(package / "worker"))
    (tmp_path / web.WORKER[0]).write_text("")
    with pytest.raises(UserError, match=f"--engine={tmp_path}: lacks {web.WORKER[1]}; name the"):
        web.find_worker(str(tmp_path))
    workdir = make_workdir(tmp_path / "workdir", 0, (10,))
    flags = f"--workdir={workdir}", f"--output={tmp_path / 'out'}"
    assert run(export, *flags, "--format=marian", f"--engine={package}") == 2
    assert "is for --format=bergamot and --format=web" in capsys.readouterr().err
    assert run(export, *flags, "--format=web", f"--engine={tmp_path}") == 2
    assert not (tmp_path / "out").exists()


def test_without_npm_the_folder_of_the_engine_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"--format=web: npm is missing; .*--engine=FOLDER"):
        web.write(engine_model(), tmp_path, None, None, SENTENCES, None)
    assert not list(tmp_path.iterdir())
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(UserError, match=r"npm install @browsermt.* failed \(no network\)"):
        web.install(tmp_path)


def test_verdicts():
    scores = {"ours": {"bleu": 30.0}, "theirs": {"bleu": 29.8}}
    worse = {"ours": {"bleu": 30.0}, "theirs": {"bleu": 29.6}}
    assert engines.judge(0.96, scores) == engines.judge(0.96, None) == ("certified", [])
    assert engines.judge(0.96, worse) == engines.judge(0.94, scores) == ("measured", [])
    verdict, (reason,) = engines.judge(0.4, scores)
    assert verdict == "below the bars"
    assert reason == "40.0% of greedy translations are identical, must be 50%"
