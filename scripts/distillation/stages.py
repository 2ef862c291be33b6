"""The work of each kind of stage: commands in child processes, and the functions of `texts`."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from scripts.distillation import texts
from scripts.distillation.folder import PipelineFolder
from scripts.distillation.pipeline import (
    DecodingStage,
    ExportStage,
    MeasurementStage,
    MixtureStage,
    Stage,
    TrainingStage,
    TranslationStage,
)
from scripts.sweeping import child
from transformer.config import loading
from transformer.support import files
from transformer.support.errors import UserError
from transformer.workdir import Workdir


def run(stages: Sequence[Stage], folder: PipelineFolder) -> None:
    """Makes the results that are missing.

    Raises UserError if the folder belongs to another pipeline, or a command fails.
    """
    descriptions = folder.check(stages)
    record = folder.read_record()
    for number, stage in enumerate(stages, start=1):
        is_finished = "seconds" in record.get(stage.name, {})
        if is_finished and folder.result_path(stage).exists():
            continue
        logging.info(
            "Stage %d of %d: %s; %s has its output.",
            number,
            len(stages),
            stage.name,
            folder.log_path(stage),
        )

        # The entry is in the record before the stage begins, and has its seconds once it has ended.
        entry = descriptions[stage.name]
        record[stage.name] = entry
        files.write_json(folder.record, {"stages": record})
        start = time.perf_counter()
        MAKERS[type(stage)](stage, folder)
        entry["seconds"] = round(time.perf_counter() - start, 1)
        files.write_json(folder.record, {"stages": record})


def train(model: TrainingStage, folder: PipelineFolder) -> None:
    if model.workdir:
        return
    # The config is saved outside the workdir, because training compares it with the workdir's own.
    config_folder = folder.path / "configs" / model.name
    config_folder.mkdir(parents=True, exist_ok=True)
    loading.save(folder.config(model), config_folder)

    workdir = folder.result_path(model)
    flags = {"config": config_folder / loading.FILE_NAME, "workdir": workdir}
    command(folder, model, "transformer.train", flags)
    # An interrupted training saves a checkpoint and ends without an error.
    if not Workdir(workdir).is_complete():
        raise UserError(
            f"{model.name}: its training was interrupted; run the same command to continue it"
        )


def translate(translation: TranslationStage, folder: PipelineFolder) -> None:
    output = folder.result_path(translation)
    output.mkdir(exist_ok=True)
    flags = {
        "source": texts.write_sources(translation, folder),
        "output": output / texts.SHARDS,
        "shard": "1/1",
        "n_best": translation.n_best,
    }
    flags = _model_flags(translation, folder) | flags
    command(folder, translation, "scripts.translate_corpus", flags)
    texts.choose(translation, folder)


def measure(measurement: MeasurementStage, folder: PipelineFolder) -> None:
    flags = _model_flags(measurement, folder) | {"split": measurement.split}
    output = command(folder, measurement, "transformer.evaluate", flags)
    files.write_json(folder.result_path(measurement), json.loads(output))


def export(stage: ExportStage, folder: PipelineFolder) -> None:
    output = folder.result_path(stage)
    # An export may be there if its process was killed, or if its scores failed the certificate.
    shutil.rmtree(output, ignore_errors=True)
    flags = {"format": stage.format, "quantization": stage.quantization, "output": output}
    command(folder, stage, "scripts.export", _model_flags(stage, folder) | flags)


MAKERS = {
    TrainingStage: train,
    TranslationStage: translate,
    MixtureStage: texts.mix,
    MeasurementStage: measure,
    ExportStage: export,
}


def _model_flags(stage: DecodingStage, folder: PipelineFolder) -> dict[str, Any]:
    """Returns the flags of the models and the search.

    Makes the shortlist of the first model if the search needs it.
    """
    workdirs = [folder.result_path(model) for model in stage.models]
    # A shortlist is made once for a run, from its training data.
    if stage.decoding.get("shortlist") and not Workdir(workdirs[0]).shortlist.exists():
        command(folder, stage, "scripts.shortlist", {"workdir": workdirs[0]})
    flags = {
        "workdir": ",".join(map(str, workdirs)),
        "checkpoint": stage.checkpoint,
        "average": stage.average,
    }
    return flags | {f"decoding.{key}": value for key, value in stage.decoding.items()}


def command(folder: PipelineFolder, stage: Stage, module: str, flags: Mapping[str, Any]) -> str:
    """Runs a command and returns its standard output. Flags with the value None are left out.

    The command ends with this process, even if this process is killed. Raises UserError, with the
    last lines of the log, if it fails.
    """
    arguments = [f"--{key}={value}" for key, value in flags.items() if value is not None]
    log = folder.log_path(stage)
    return child.output_of(stage.name, module, arguments, log, pass_fds=folder.inherited)
