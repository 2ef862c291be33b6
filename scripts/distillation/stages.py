"""The work of each kind of stage: commands in child processes, and the functions of `texts`."""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from scripts.distillation import plan, texts
from scripts.distillation.folder import Folder
from scripts.sweeping import child
from transformer.config import loading
from transformer.support import files
from transformer.support.errors import UserError
from transformer.workdir import Workdir


def run(stages: Sequence[plan.Stage], folder: Folder) -> None:
    """Makes the results that are missing.

    Raises UserError if the folder has another plan's, or a command fails.
    """
    planned = folder.check(stages)
    begun = folder.read()
    for number, stage in enumerate(stages, start=1):
        if "seconds" in begun.get(stage.name, {}) and folder.of(stage).exists():
            continue
        entry = begun[stage.name] = planned[stage.name]
        logging.info(
            "Stage %d of %d: %s; %s has its output.",
            number,
            len(stages),
            stage.name,
            folder.log(stage),
        )
        files.write_json(folder.record, {"stages": begun})
        began = time.perf_counter()
        MAKERS[type(stage)](stage, folder)
        entry["seconds"] = round(time.perf_counter() - began, 1)
        files.write_json(folder.record, {"stages": begun})


def train(model: plan.Training, folder: Folder) -> None:
    if model.workdir:
        return
    # outside the workdir, whose configuration training compares with it
    path = folder.path / "configs" / model.name
    path.mkdir(parents=True, exist_ok=True)
    loading.save(folder.config(model), path)
    flags = {"config": path / loading.FILE_NAME, "workdir": folder.of(model)}
    command(folder, model, "transformer.train", flags)
    if not Workdir(folder.of(model)).is_complete():
        raise UserError(
            f"{model.name}: its training was interrupted; run the same command to continue it"
        )


def translate(translation: plan.Translation, folder: Folder) -> None:
    output = folder.of(translation)
    output.mkdir(exist_ok=True)
    source = texts.write_sources(translation, folder)
    flags = {
        "source": source,
        "output": output / texts.SHARDS,
        "shard": "1/1",
        "n_best": translation.n_best,
    }
    command(
        folder, translation, "scripts.translate_corpus", _model_flags(translation, folder) | flags
    )
    texts.choose(translation, folder)


def measure(measurement: plan.Measurement, folder: Folder) -> None:
    flags = _model_flags(measurement, folder) | {"split": measurement.split}
    files.write_json(
        folder.of(measurement),
        json.loads(command(folder, measurement, "transformer.evaluate", flags)),
    )


def export(stage: plan.Export, folder: Folder) -> None:
    shutil.rmtree(folder.of(stage), ignore_errors=True)  # of a killed process, or below the bars
    flags = {"format": stage.format, "quantization": stage.quantization, "output": folder.of(stage)}
    command(folder, stage, "scripts.export", _model_flags(stage, folder) | flags)


MAKERS = {
    plan.Training: train,
    plan.Translation: translate,
    plan.Mixture: texts.mix,
    plan.Measurement: measure,
    plan.Export: export,
}


def _model_flags(stage: plan.Decoding, folder: Folder) -> dict[str, Any]:
    """Returns the flags of the models and the search.

    Makes the shortlist of the first model if the search needs it.
    """
    workdirs = [folder.of(model) for model in stage.models]
    if stage.decoding.get("shortlist") and not Workdir(workdirs[0]).shortlist.exists():
        command(folder, stage, "scripts.shortlist", {"workdir": workdirs[0]})
    flags = {
        "workdir": ",".join(map(str, workdirs)),
        "checkpoint": stage.checkpoint,
        "average": stage.average,
    }
    return flags | {f"decoding.{key}": value for key, value in stage.decoding.items()}


def command(folder: Folder, stage: plan.Stage, module: str, flags: Mapping[str, Any]) -> str:
    """Runs a command and returns its standard output. Raises UserError, with its last lines, if it
    fails.

    The command ends with this process, even if that is killed.
    """
    log = folder.log(stage)
    given = [f"--{key}={value}" for key, value in flags.items() if value is not None]
    with log.open("ab") as errors:
        start = errors.tell()  # the output of earlier attempts ends here
        pipes = {"stdout": subprocess.PIPE, "stderr": errors}
        process = child.start(module, given, **pipes, pass_fds=folder.inherited)
    with process:
        try:
            output = process.stdout.read()
            process.wait()
        finally:
            process.terminate()  # without effect on a command that has ended
            process.wait()  # it saves before it ends
    if process.returncode:
        raise UserError(
            f"{stage.name}: {module} failed; the end of {log}: {' '.join(child.last_lines(log, start))}"
        )
    return output.decode()
