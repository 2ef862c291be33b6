"""Flags, log lines, errors and exit codes of the commands."""

import errno
import os
import pkgutil
import signal
import subprocess
import sys
import tomllib
import warnings

import pytest
from absl import logging

from tests.conftest import REPOSITORY
from transformer import evaluate, translate
from transformer.config import cli, loading
from transformer.support import logs
from transformer.support.errors import UserError

TRAIN = cli.Parser("transformer.train", "Trains.\n\nMore.", overrides="config")
TRAIN.add_argument("--config", required=True, metavar="FILE.py[:ARG]", help="the configuration")
TRAIN.add_argument("--plan", action="store_true", help="say what would be done")
EVALUATE = cli.Parser("transformer.evaluate", "Evaluates.", overrides="decoding")
EVALUATE.add_argument("--average", type=int, help="checkpoints averaged")
EVALUATE.add_argument("--format", choices=("text", "jsonl"), help="of the output")
PLAIN = cli.Parser("scripts.plain", "Does nothing.")


def ends_with(parser: cli.Parser, argv: list[str], capsys, main=print) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    code = cli.execute(parser, main, argv)
    return code, *capsys.readouterr()


def raising(error: BaseException):
    def main(arguments) -> None:
        raise error

    return main


def test_overrides_are_parsed_as_keys_and_text():
    argv = [
        "--config=c.py:x",
        "--config.model.d_model=64",
        "--plan",
        "--config.seed",
        "-1",
        "--config.data.path=a=b",
    ]
    arguments = TRAIN.parse(argv)
    assert (arguments.config, arguments.plan) == ("c.py:x", True)
    assert arguments.overrides == [("model.d_model", "64"), ("seed", "-1"), ("data.path", "a=b")]
    assert EVALUATE.parse(["--decoding.beam_size=2"]).overrides == [("decoding.beam_size", "2")]
    assert PLAIN.parse([]).overrides == []


def test_a_path_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    parser = cli.Parser("scripts.plain", "Does nothing.")
    parser.add_argument("--workdir")
    assert parser.parse(["--workdir=~/runs/a"]).workdir == "/home/me/runs/a"
    assert parser.parse(["--workdir=~/a,~/b"]).workdir == "/home/me/a,/home/me/b"
    assert parser.parse(["--workdir=~"]).workdir == "/home/me"
    assert parser.parse(["--workdir=runs/~/a"]).workdir == "runs/~/a"


@pytest.mark.parametrize("flag", ["--workdir=", "--output="])
def test_an_empty_folder_and_a_bucket_are_refused(flag, capsys):
    parser = cli.Parser("tests", "A command.")
    parser.add_argument("--workdir")
    parser.add_argument("--output")
    for words in ([flag], [flag[:-1], ""]):
        empty = f"^{words[0]}: is empty \\(unset shell variable\\?\\); name a folder$"
        with pytest.raises(UserError, match=empty):
            parser.parse(words)
    for words in ([f"{flag}gs://a/b"], [flag[:-1], "gs://a/b"]):
        with pytest.raises(UserError, match=f"^{flag}gs://a/b: must be a folder of this machine"):
            parser.parse(words)


@pytest.mark.parametrize("flag", ["--data=", "--source=", "--reference="])
def test_an_empty_path_is_refused(flag):
    with pytest.raises(UserError, match=f"^{flag}: is empty .* name a path$"):
        evaluate.make_parser().parse(["--workdir=a", flag])


def test_a_flag_that_collects_values_may_be_repeated():
    parser = cli.Parser("scripts.plain", "Does nothing.")
    parser.add_argument("--text", action="append", default=[])
    assert parser.parse(["--text=a", "--text=b"]).text == ["a", "b"]


def test_decoding_overrides_apply_to_the_runs_configuration():
    config = loading.load_file("configs/base.py", [("decoding.beam_size", "7")])
    arguments = EVALUATE.parse(["--decoding.length_penalty=1"])
    decoding = loading.override(config, arguments.overrides).decoding
    assert (decoding.beam_size, decoding.length_penalty) == (7, 1.0)
    with pytest.raises(
        UserError, match=r"--decoding.beam_sise=1: .*did you mean decoding.beam_size, decoding\."
    ):
        EVALUATE.parse(["--decoding.beam_sise=1"])
    with pytest.raises(UserError, match="--decoding.beam_sise=1: "):
        loading.override(config, [("decoding.beam_sise", "1")])


@pytest.mark.parametrize(
    ("parser", "argv", "says"),
    [
        (TRAIN, [], "the following arguments are required: --config"),
        (
            TRAIN,
            ["--confg=configs/base.py"],
            "--confg=configs/base.py: no such flag; did you mean --config?",
        ),
        (TRAIN, ["--note=a"], "--note=a: no such flag; did you mean --config.training.note?"),
        (
            TRAIN,
            ["--config=a.py", "--confg.model.dmodel=1"],
            "did you mean --config.model.d_model?",
        ),
        (
            TRAIN,
            ["--config=a.py", "--config.seed"],
            "--config.seed: needs a value, --config.seed=VALUE",
        ),
        (
            TRAIN,
            ["--config=a.py", "--decoding.beam_size=2"],
            "did you mean --config.decoding.beam_size?",
        ),
        (TRAIN, ["--config=a.py", "b.py"], "unrecognized arguments: b.py"),
        (EVALUATE, ["--config.decoding.beam_size=2"], "did you mean --decoding.beam_size?"),
        (EVALUATE, ["--model.d_model=2"], "--model.d_model=2: no such flag"),
        (EVALUATE, ["--average=few"], "argument --average: invalid int value: 'few'"),
        (EVALUATE, ["--format=json"], "argument --format: invalid choice: 'json'"),
        (EVALUATE, ["--averag=2"], "did you mean --average?"),
        (
            TRAIN,
            ["--config=a.py", "--config=a.py"],
            "--config=a.py: --config=a.py is given before it; give --config once",
        ),
        (
            TRAIN,
            ["--config=a.py", "--config.seed=1", "--config.seed=2"],
            "--config.seed=2: --config.seed=1 is given be",
        ),
        (
            translate.make_parser(),
            ["--workdir=a", "--prefix_column", "--prefix_column"],
            "--prefix_column: --prefix_column is given before it; give --prefix_column once",
        ),
        (PLAIN, ["--config.seed=1"], "--config.seed=1: no such flag"),
    ],
)
def test_wrong_flags_are_a_one_line_error(parser, argv, says, capsys):
    code, output, errors = ends_with(parser, argv, capsys)
    assert (code, output) == (2, "")
    assert errors.startswith("error: ") and errors.count("\n") == 1 and says in errors


def test_integers_below_the_least_are_refused(capsys):
    parser = cli.Parser("scripts.any", "Any command.")
    parser.add_number("--jobs", None, "jobs")
    assert parser.parse(["--jobs=1"]).jobs == 1
    for text, reason in (("0", "0: must be at least 1"), ("one", "invalid integer value: 'one'")):
        _, _, errors = ends_with(parser, [f"--jobs={text}"], capsys)
        assert f"argument --jobs: {reason}" in errors


def test_installed_commands_are_those_of_the_modules(monkeypatch):
    ran = []

    def run(parser, main):
        ran.append((parser.prog, main.__module__))
        raise SystemExit

    monkeypatch.setattr(cli, "run", run)
    for entry in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "scripts"
    ].values():
        with pytest.raises(SystemExit):
            pkgutil.resolve_name(entry)()
    modules = [f"transformer.{name}" for name in ("train", "evaluate", "translate")]
    assert ran == [(f"python -m {module}", module) for module in modules]


def test_help_shows_the_flags(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.execute(TRAIN, print, ["--help"])
    output, _ = capsys.readouterr()
    assert caught.value.code == 0
    for part in (
        "python -m transformer.train",
        "Trains.\n\nMore.",
        "--config FILE.py[:ARG]",
        "--plan",
    ):
        assert part in output
    assert "--config.KEY=VALUE" in output


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("data.path=x: no such folder"), 2, "error: data.path=x: no such folder\n"),
        (UserError("first\nsecond"), 2, "error: first second\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (KeyboardInterrupt("saved step 3"), 130, "error: saved step 3\n"),
    ],
)
def test_expected_errors_are_one_line(error, code, line, capsys):
    assert ends_with(PLAIN, [], capsys, raising(error)) == (code, "", line)


def test_a_full_disk_is_a_one_line_error_whatever_exception_wraps_it(capsys):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x/metrics.jsonl")
    wrapped = RuntimeError("saving failed")
    wrapped.__cause__ = full
    for error in (
        full,
        wrapped,
        ValueError("RESOURCE_EXHAUSTED: No space left on device [tensorstore]"),
    ):
        code, _, errors = ends_with(PLAIN, [], capsys, raising(error))
        assert (
            code == 2 and errors.startswith("error: the disk is full") and errors.count("\n") == 1
        )


class JaxRuntimeError(RuntimeError):
    """The error of JAX, which is recognized by its name."""


@pytest.mark.parametrize(
    ("parser", "argv", "advice"),
    [
        (
            TRAIN,
            ["--config=x"],
            "lower config.batch.tokens and raise config.training.accumulation in return, or ",
        ),
        (EVALUATE, [], "lower --decoding.batch_tokens\n"),
        (PLAIN, [], "use a device with more memory\n"),
    ],
)
def test_out_of_memory_is_a_one_line_error_with_keys_of_the_command(parser, argv, advice, capsys):
    for kind in ("RESOURCE_EXHAUSTED", "INTERNAL"):  # of accelerators, of CPUs
        error = JaxRuntimeError(f"{kind}: Out of memory allocating 1024 bytes.")
        code, _, errors = ends_with(parser, argv, capsys, raising(error))
        assert (
            code == 2
            and errors.startswith(f"error: out of device memory; {advice}")
            and errors.count("\n") == 1
        )


def test_a_forbidden_folder_is_a_one_line_error(capsys):
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/root/x")
    code, _, errors = ends_with(PLAIN, [], capsys, raising(error))
    assert (
        code == 2
        and errors.startswith("error: /root/x: Permission denied")
        and errors.count("\n") == 1
    )


def test_a_bug_shows_its_traceback(capsys):
    code, output, errors = ends_with(
        PLAIN, [], capsys, raising(ZeroDivisionError("division by zero"))
    )
    assert (code, output) == (1, "")
    assert (
        "Traceback" in errors
        and "raise error" in errors
        and "ZeroDivisionError: division by zero" in errors
    )


def test_log_lines_go_to_standard_error_and_to_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logs, "OWN_CODE", (os.path.dirname(__file__),))

    def main(arguments):
        logging.info("before")
        logs.to_file(tmp_path / "log.txt")
        logging.info("after %d", 1)
        logging.warning("look")
        raise UserError("stop")

    code, output, errors = ends_with(PLAIN, [], capsys, main)
    assert (code, output) == (2, "")
    lines = errors.splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "before",
        "after 1",
        "warning: look",
        "stop",
    ]
    logged = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in logged] == [
        "INFO after 1",
        "WARNING look",
        "ERROR stop",
    ]
    # The next command in this process does not write to the file.
    cli.execute(PLAIN, lambda arguments: logging.warning("elsewhere"), [])
    assert "elsewhere" not in (tmp_path / "log.txt").read_text()


def test_only_warnings_of_libraries_are_logged(tmp_path, capsys):
    def main(arguments):
        logs.to_file(tmp_path / "log.txt")
        # absl's lines carry the path of their caller: this file is not the project's own code.
        logging.info("progress of a library")
        logging.warning("a library warns")

    _, _, errors = ends_with(PLAIN, [], capsys, main)
    for text in (errors, (tmp_path / "log.txt").read_text()):
        assert "progress" not in text and "a library warns" in text


def run_python(body: str, redirections: str = "", **options) -> subprocess.Popen:
    """Starts a command with this body of `main(arguments)` and the shell's redirections."""
    lines = "\n    ".join(["pass", *body.splitlines()])
    code = (
        "import sys, time\nfrom transformer.config import cli\n"
        f"def main(arguments):\n    {lines}\n"
        "cli.run(cli.Parser('scripts.plain', 'Does nothing.'), main)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", code]
    return subprocess.Popen(argv, text=True, env=buffered, **pipes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_interrupts_a_command(number):
    process = run_python("print('ready', flush=True)\ntime.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")
    assert errors.startswith("error: ") and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("platform", "reason"), [("cuda", "not installed"), ("absent", "'absent' is not in")]
)
def test_platforms_that_jax_does_not_have_are_an_error_of_one_line(platform, reason, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    process = run_python("import jax\njax.devices()")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert (
        errors.startswith(f"error: JAX_PLATFORMS={platform}: JAX cannot use") and reason in errors
    )
    assert errors.count("\n") == 1


def test_a_closed_pipe_is_no_error():
    process = run_python("for _ in range(100_000): print('line')")
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 128 + signal.SIGPIPE
    process.stderr.close()


def test_failing_to_write_the_output_is_an_error():
    with open("/dev/full", "w") as full:
        process = run_python("print('result')", stdout=full)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors.startswith("error: the disk is full") and errors.count("\n") == 1


@pytest.mark.parametrize("numbers", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_streams_are_the_null_device(tmp_path, numbers):
    body = (
        "sys.stdin.read(); print('result'); print('note', "
        f"file=sys.stderr)\nopen({str(tmp_path / 'x')!r}, 'w').close()"
    )
    process = run_python(
        body, stdin=subprocess.DEVNULL, redirections=" ".join(f"{number}>&-" for number in numbers)
    )
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert (output, errors) == (
        "" if 1 in numbers else "result\n",
        "" if 2 in numbers else "note\n",
    )


def test_python_warnings_are_log_lines(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, _, errors = ends_with(
            PLAIN, [], capsys, lambda arguments: warnings.warn("old", UserWarning, stacklevel=1)
        )
    assert "warning: " in errors and "UserWarning: old" in errors
