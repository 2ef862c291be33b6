"""A folder that any static file server serves: a page that translates in the browser."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from scripts.interop import bergamot
from scripts.interop.portable import PortableModel
from scripts.interop.sentences import Sentences
from transformer.support import files
from transformer.support.environment import REPOSITORY
from transformer.support.errors import UserError

PACKAGE = "@browsermt/bergamot-translator"
VERSION = "0.4.9"  # for npm
WORKER = (
    "translator-worker.js",
    "bergamot-translator-worker.js",
    "bergamot-translator-worker.wasm",
)
PAGE = Path(__file__).parent / "page"
SERVER_PAGE = Path(__file__).parents[1] / "serving" / "page"
SHARED = ("page.css", "icon.svg")  # with the page of the server
MODEL = "model"
ENGINE = "engine"


def write(
    model: PortableModel,
    folder: Path,
    quantization: str | None,
    python: Path | None,
    sentences: Sentences | None,
    worker: Path | None,
) -> None:
    """Writes the page, the engine and the model.

    `worker` is the folder with the files of the engine; None: npm gets the package. Raises
    UserError as `bergamot.write`, or if npm is missing or fails.
    """
    if worker is None:
        check_npm()
    bergamot.check_expressible(model, "web")
    if model.tokenizer.source_tag:
        raise UserError(
            f"--format=web: the page cannot begin sentences with {model.tokenizer.source_tag} "
            "(data.source_tag); export a model without it"
        )
    (folder / ENGINE).mkdir()
    if worker is None:
        with tempfile.TemporaryDirectory() as temporary:
            copy_engine(install(Path(temporary)), folder / ENGINE)
    else:
        copy_engine(worker, folder / ENGINE)
    (folder / MODEL).mkdir()
    bergamot.write(model, folder / MODEL, quantization, python, sentences)

    for path in PAGE.iterdir():
        shutil.copy(path, folder / path.name)
    for name in SHARED:
        shutil.copy(SERVER_PAGE / name, folder / name)
    files.write_json(folder / "model.json", describe(model, folder))


def describe(model: PortableModel, folder: Path) -> dict[str, object]:
    """Returns the content of model.json: what the page loads, with sizes in bytes."""
    names = bergamot.files_in(folder / MODEL)
    engine = [f"{ENGINE}/{name}" for name in WORKER]
    shortlist = names["shortlist"] and f"{MODEL}/{names['shortlist']}"
    vocabularies = [f"{MODEL}/{name}" for name in names["vocabularies"]]
    parts = {"model": f"{MODEL}/{names['model']}", "shortlist": shortlist}
    paths = [*engine, *filter(None, parts.values()), *vocabularies]
    # A new model or engine has another version, so that browsers do not mix files of both.
    digest = hashlib.sha256()
    for path in paths:
        digest.update((folder / path).read_bytes())
    settings = model.settings
    return {
        # Browsers know codes such as zh-CN.
        "source": settings["data.source_language"].replace("_", "-"),
        "target": settings["data.target_language"].replace("_", "-"),
        "version": digest.hexdigest()[:16],
        **parts,
        "vocabularies": vocabularies,
        "bytes": {path: (folder / path).stat().st_size for path in paths},
    }


def find_worker(flag: str | None) -> Path:
    """Returns the folder with the files of the engine in WebAssembly.

    `flag` is the value of --engine; None: the package in .venv-interop, which may be missing.
    Raises UserError if the folder of the flag lacks a file.
    """
    if flag is None:
        return REPOSITORY / ".venv-interop" / "node_modules" / PACKAGE / "worker"
    for folder in (Path(flag) / "worker", Path(flag)):
        missing = [name for name in WORKER if not (folder / name).is_file()]
        if not missing:
            return folder
    raise UserError(
        f"--engine={flag}: lacks {missing[0]}; name the folder of the npm package {PACKAGE}"
    )


def check_npm() -> str:
    """Returns the path of npm. Raises UserError if it is missing."""
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            "--format=web: npm is missing; install it, or name the folder of the package "
            f"{PACKAGE} with --engine=FOLDER"
        )
    return npm


def install(folder: Path) -> Path:
    """Installs the engine with npm in a folder, and returns the folder with its files."""
    package = f"{PACKAGE}@{VERSION}"
    command = [check_npm(), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    process = subprocess.run(
        [*command, "--prefix", folder, package], capture_output=True, text=True, check=False
    )
    if process.returncode:
        reason = (process.stderr.strip() or f"exit code {process.returncode}").splitlines()[-1]
        raise UserError(
            f"--format=web: npm install {package} failed ({reason:.120}); name the folder of the "
            "package with --engine=FOLDER"
        )
    return folder / "node_modules" / PACKAGE / "worker"


def copy_engine(worker: Path, folder: Path) -> None:
    """Copies the files of the engine."""
    for name in WORKER:
        shutil.copyfile(worker / name, folder / name)
