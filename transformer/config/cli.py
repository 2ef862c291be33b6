"""Flags, errors and exit codes of all commands.

Standard output carries only results. An error that the user can correct is one line on standard
error and exit code 2; an interruption is one line and exit code 130. Only a bug shows a traceback,
with exit code 1.
"""

import argparse
import errno
import gc
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import logging

from transformer.config.keys import declared_keys, nearest
from transformer.config.loading import parse_overrides
from transformer.support import files, logs, runtime
from transformer.support.errors import UserError, is_out_of_memory
from transformer.support.extras import installation_advice

LANGUAGES = ("source_language", "target_language")
FOLDERS = ("--workdir", "--output")
INPUTS = ("--data", "--source", "--reference", "--glossary")
DISK_IS_FULL = "the disk is full"
# The advice, by the keys that a command can change (`Parser.overrides`).
OUT_OF_MEMORY = {
    "config": "lower config.batch.tokens and raise config.training.accumulation in return, "
    "or lower config.data.max_length; a run that continues can set config.model.remat=layers; "
    "if validation does not fit, lower config.decoding.batch_tokens",
    "decoding": "lower --decoding.batch_tokens",
    "data": "use a device with more memory",
    None: "use a device with more memory",
}
# Errors of the file system that another path avoids.
UNUSABLE_PATH = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


class Parser(argparse.ArgumentParser):
    """The flags of one command, and its overrides of configuration keys.

    Overrides are `--config.GROUP.KEY=VALUE` if `overrides` is "config", and `--GROUP.KEY=VALUE` if
    it is the name of a group. `arguments.overrides` lists them as (GROUP.KEY, VALUE), the argument
    of `load_file` and `override`.
    """

    def __init__(self, module: str, description: str, overrides: str | None = None):
        epilog = f"--{overrides}.KEY=VALUE sets a configuration key; configs/base.py explains each."
        super().__init__(
            prog=f"python -m {module}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=epilog if overrides else None,
            allow_abbrev=False,
        )
        self.overrides = overrides
        self._prefix = "--config." if overrides == "config" else "--"  # of the keys

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses the arguments.

        Raises UserError for an unknown or repeated flag or key, or a value of another type.
        """
        # argparse parses all words but the overrides.
        plain, overrides = self._split(argv)
        _check_paths(plain)
        arguments = self.parse_args(plain)

        # The flags of languages are short forms of overrides.
        for name in LANGUAGES:
            code = getattr(arguments, name, None)
            if code is not None:
                overrides.append((f"data.{name}", code))
        parse_overrides(overrides, self._prefix)
        arguments.overrides = overrides
        return arguments

    def _split(self, argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """Returns the words that are not overrides, and the overrides."""
        flags = self._option_string_actions
        plain = []
        overrides = []
        previous = {}
        words = iter(argv)
        for word in words:
            name, equals, text = word.partition("=")
            # Flags with a list collect several values; all other flags may be given once.
            flag = flags.get(name)
            collects_values = flag and isinstance(flag.default, list) and flag.nargs != 0
            if name in previous and not collects_values:
                raise UserError(f"{word}: {previous[name]} is given before it; give {name} once")
            if not name.startswith("--"):
                plain.append(word)
                continue
            previous[name] = word
            if self._is_override(name):
                value = text if equals else next(words, None)
                if value is None:
                    raise UserError(f"{word}: needs a value, {word}=VALUE")
                overrides.append((name.removeprefix(self._prefix), value))
            elif name not in flags:
                keys = filter(self._is_override, (self._prefix + key for key in declared_keys()))
                advice = nearest(name, [*flags, *keys])
                raise UserError(f"{word}: no such flag{advice} (--help lists the flags)")
            elif text.startswith("~"):
                # The shell expands ~ only at the beginning of a word.
                paths = [os.path.expanduser(path) for path in text.split(",")]
                plain.append(f"{name}={','.join(paths)}")
            else:
                plain.append(word)
        return plain, overrides

    def add_model_flags(
        self, ensemble: bool = True, several: bool = False, languages: bool = False
    ) -> None:
        """Adds the flags that select the model to decode with, which may be an `ensemble`.

        With `several`, --workdir is repeatable. `languages` adds the flags --source_language and
        --target_language, which replace the keys of `data`.
        """
        workdir = "the folder of a run" + ("; DIR,DIR,... for an ensemble" if ensemble else "")
        options: dict[str, Any] = {"action": "append", "default": []} if several else {}
        self.add_argument("--workdir", metavar="DIR", required=True, help=workdir, **options)
        self.add_argument(
            "--checkpoint",
            metavar="best|last|STEP",
            default="best",
            help="checkpoint to load (best)",
        )
        self.add_number("--average", 1, "mean of N checkpoints up to it")
        for name in LANGUAGES if languages else ():
            side = name.partition("_")[0]
            text = f"the {side} language, of a model that knows several (the run's)"
            self.add_argument(f"--{name}", metavar="CODE", help=text)

    def add_number(self, flag: str, default: int | None, text: str, least: int = 1) -> None:
        """Adds a flag with an integer of at least `least`.

        Its help has the text and the default, if any.
        """

        def integer(value: str) -> int:
            if int(value) < least:
                raise argparse.ArgumentTypeError(f"{value}: must be at least {least}")
            return int(value)

        if default is not None:
            text = f"{text} ({default})"
        self.add_argument(flag, metavar="N", type=integer, default=default, help=text)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the flags)")

    def _is_override(self, name: str) -> bool:
        return self.overrides is not None and name.startswith(f"--{self.overrides}.")


def _check_paths(words: Sequence[str]) -> None:
    """Raises UserError for an empty path, or a folder that is not of this machine."""
    for word, following in itertools.pairwise([*words, "-"]):
        name, equals, text = word.partition("=")
        path = text if equals else following
        if name in (*FOLDERS, *INPUTS) and not path:
            kind = "folder" if name in FOLDERS else "path"
            raise UserError(f"{word}: is empty (unset shell variable?); name a {kind}")
        if name in FOLDERS and "://" in path:
            raise UserError(f"{name}={path}: must be a folder of this machine; mount the bucket")


def run(parser: Parser, main: Callable[[argparse.Namespace], None]) -> NoReturn:
    """Runs `main` on the command line's arguments and ends the process."""
    runtime.set_up()

    def terminate(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(f"terminated by signal {number}")

    # These signals end a command as Ctrl-C does.
    for number in runtime.TERMINATIONS:
        signal.signal(number, terminate)
    code = execute(parser, main, sys.argv[1:])
    # Otherwise the exit would search all modules for garbage: half a second with JAX.
    gc.freeze()
    sys.exit(code)


def execute(parser: Parser, main: Callable[[argparse.Namespace], None], argv: Sequence[str]) -> int:
    """Runs `main` on the arguments in `argv` and returns the exit code."""
    with logs.to_standard_error():
        try:

            def run_main() -> None:
                main(parser.parse(argv))
                sys.stdout.flush()

            return exit_code(run_main, parser.overrides)
        finally:
            try:
                sys.stdout.flush()
            except OSError:
                # Otherwise the interpreter would fail again at its exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(function: Callable[[], object], overrides: str | None) -> int:
    """Calls the function, logs its error, if any, and returns the exit code.

    `overrides` is the attribute of the `Parser`.
    """
    try:
        function()
        return 0
    except UserError as error:
        logging.error("%s", " ".join(str(error).splitlines()))
        return 2
    except KeyboardInterrupt as interruption:
        logging.error("%s", str(interruption) or "interrupted")
        return 130
    except BrokenPipeError:
        # The reader has closed its end, as `| head` does. SIGPIPE ends programs with this code.
        return 128 + signal.SIGPIPE
    except Exception as error:
        advice = _advice(error, overrides)
        if advice:
            logging.error("%s", advice)
            return 2
        logging.exception("unexpected %s; this is a bug", type(error).__name__)
        return 1


def _advice(error: BaseException | None, overrides: str | None) -> str | None:
    """Returns a message if the error, or one that caused it, comes from the machine.

    Returns None if it comes from the code.
    """
    if isinstance(error, ModuleNotFoundError):
        advice = installation_advice(error)
        if advice:
            return advice

    # Libraries wrap errors of the machine, so the causes are searched too.
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        if number in files.FULL_DISK or "No space left on device" in str(error):
            reason = str(error).splitlines()[0]
            return f"{DISK_IS_FULL} ({reason}); make room and run the same command again"
        if isinstance(error, OSError) and number in UNUSABLE_PATH and error.filename is not None:
            return (
                f"{error.filename}: {error.strerror}; "
                "change its permissions or move it, or name another path"
            )
        if is_out_of_memory(error):
            return f"out of device memory; {OUT_OF_MEMORY[overrides]}"
        # JAX starts its devices in xla_bridge.py.
        frames = traceback.extract_tb(error.__traceback__)
        if frames and frames[-1].filename.endswith("xla_bridge.py"):
            platforms = os.environ.get("JAX_PLATFORMS", "")
            reason = str(error).partition("\n")[0] or "it is not installed for them"
            return (
                f"JAX_PLATFORMS={platforms}: JAX cannot use these devices ({reason}); "
                "install JAX for them, or set JAX_PLATFORMS=cpu"
            )
        error = error.__cause__ or error.__context__
    return None
