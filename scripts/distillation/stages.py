"""The work of each kind of stage: commands in child processes, and the functions of `texts`."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from scripts.distillation import plan, texts
from scripts.distillation.folder import Folder
from transformer import files
from transformer.config import loading
from transformer.errors import UserError
from transformer.workdir import Workdir

LAST_LINES = 3  # of a failed command's output, in the error


def run(stages: Sequence[plan.Stage], folder: Folder) -> None:
    """Makes the results that are missing. Raises UserError if the folder has another plan's, or a command fails."""
    planned, begun = folder.check(stages), folder.read()
    for number, stage in enumerate(stages, start=1):
        entry = begun.setdefault(stage.name, planned[stage.name])
        if "seconds" in entry and folder.of(stage).exists():
            continue
        logging.info("Stage %d of %d: %s; %s has its output.", number, len(stages), stage.name, folder.log(stage))
        files.write_json(folder.record, {"stages": begun})
        began = time.perf_counter()
        MAKERS[type(stage)](stage, folder)
        entry["seconds"] = round(time.perf_counter() - began, 1)
        files.write_json(folder.record, {"stages": begun})


def train(model: plan.Training, folder: Folder) -> None:
    if model.workdir:
        return
    path = folder.path / "configs" / model.name  # outside the workdir, whose configuration training compares with it
    path.mkdir(parents=True, exist_ok=True)
    loading.save(folder.config(model), path)
    flags = {"config": path / loading.FILE_NAME, "workdir": folder.of(model)}
    command(folder, model, "transformer.train", flags)
    if not Workdir(folder.of(model)).is_complete():
        raise UserError(f"{model.name}: its training was interrupted; run the same command to continue it")


def translate(translation: plan.Translation, folder: Folder) -> None:
    output = folder.of(translation)
    output.mkdir(exist_ok=True)
    source = texts.write_sources(translation, folder, output)
    flags = _model_flags(translation, folder) | {"source": source, "output": output / texts.SHARDS, "shard": "1/1"}
    flags["n_best"] = translation.n_best
    command(folder, translation, "scripts.translate_corpus", flags, translation.decoding)
    texts.choose(translation, folder, output)


def mix(mixture: plan.Mixture, folder: Folder) -> None:
    shutil.rmtree(folder.of(mixture), ignore_errors=True)  # of a process that was killed before it recorded the end
    texts.mix(mixture, folder, folder.of(mixture))


def measure(measurement: plan.Measurement, folder: Folder) -> None:
    flags = _model_flags(measurement, folder) | {"split": measurement.split}
    output = command(folder, measurement, "transformer.evaluate", flags, measurement.decoding)
    files.write_json(folder.of(measurement), json.loads(output))


def export(stage: plan.Export, folder: Folder) -> None:
    shutil.rmtree(folder.of(stage), ignore_errors=True)  # as above, or below the bars
    flags = {"workdir": folder.of(stage.model), "checkpoint": stage.checkpoint, "average": stage.average}
    flags |= {"format": stage.format, "output": folder.of(stage)}
    command(folder, stage, "scripts.export", flags | ({"quantization": q} if (q := stage.quantization) else {}))


MAKERS: dict[type, Callable[[Any, Folder], None]] = {
    plan.Training: train,
    plan.Translation: translate,
    plan.Mixture: mix,
    plan.Measurement: measure,
    plan.Export: export,
}


def _model_flags(stage: plan.Translation | plan.Measurement, folder: Folder) -> dict[str, Any]:
    workdirs = ",".join(str(folder.of(model)) for model in stage.models)
    return {"workdir": workdirs, "checkpoint": stage.checkpoint, "average": stage.average}


def command(
    folder: Folder, stage: plan.Stage, module: str, flags: Mapping[str, Any], decoding: Mapping[str, Any] | None = None
) -> str:
    """Runs a command and returns its standard output. Raises UserError, with its last lines, if it fails.

    The command ends with this process, even if that is killed.
    """
    named = flags | {f"decoding.{key}": value for key, value in (decoding or {}).items()}
    overrides = [f"--{key}={value}" for key, value in named.items()]
    argv = [sys.executable, "-m", "scripts.sweeping.child", module, *overrides]
    log = folder.log(stage)
    start = log.stat().st_size if log.exists() else 0  # the output of earlier attempts ends here
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # `child` ends when its standard input does
    options["start_new_session"] = True  # Ctrl-C in a terminal reaches only this process
    with log.open("ab") as errors, subprocess.Popen(argv, stderr=errors, **options) as process:
        try:
            output = process.stdout.read()
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()  # it saves before it ends
            raise
    if process.returncode:
        lines = log.read_bytes()[start:].decode(errors="replace").splitlines()[-LAST_LINES:]
        raise UserError(f"{stage.name}: {module} failed; the end of {log}: {' '.join(lines)}")
    return output.decode()
