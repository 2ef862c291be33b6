"""The pipeline of a distillation: models, what they translate, and what other models learn from it.

A plan file defines `get_plan(plan)`, which receives this module and returns measurements. All other
stages of the pipeline follow from the measurements:

    def get_plan(plan):
        teacher = plan.train("teacher", "configs/multi30k.py")
        outputs = plan.translate("outputs", teacher, "configs/multi30k.py")
        pairs = plan.mix("pairs", "configs/multi30k.py", outputs)
        student = plan.train("student", "configs/multi30k.py", {"model.d_model": 64}, data=pairs)
        return [plan.measure(model, average=10) for model in (teacher, student)]
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer.config import loading
from transformer.support.errors import UserError

REFERENCE_CHOICES = ("chrf", "bleu")  # values of `Translation.choose` that need references
CHOICES = ("score", *REFERENCE_CHOICES)  # or a model of the other direction
RESERVED = ("logs", "configs", "distill", "report.svg")  # other names in the workdir


@dataclass(eq=False)
class TrainingStage:
    """A model: a run of `transformer.train`, or an existing run if it has a `workdir`.

    Attributes:
      values: keys of the configuration with their values.
      data: replaces the training pairs of the config.
    """

    name: str
    config: str
    values: Mapping[str, Any]
    data: "MixtureStage | None"
    workdir: str = ""


@dataclass(eq=False, kw_only=True)
class DecodingStage:
    """Base class of the stages that decode.

    Attributes:
      checkpoint, average: the mean of `average` checkpoints of each model up to this one, as in
        `transformer.evaluate`.
      decoding: keys of the group `decoding` with their values.
    """

    checkpoint: str = "best"
    average: int = 1
    decoding: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class TranslationStage(DecodingStage):
    """Translations of a text, by one model or an ensemble.

    Attributes:
      text: a file of text in the source language of the models, or a config with training sentences
        to translate.
      n_best: the number of hypotheses of each sentence.
      choose: the way to choose one of them. "score" takes the best score of the search. "chrf" and
        "bleu" take the best sentence score, with the other side of the config's pairs as reference.
        A model of the other direction takes the hypothesis with the lowest loss of the sentence.
    """

    name: str
    models: tuple[TrainingStage, ...]
    text: str
    n_best: int
    choose: "str | TrainingStage"


@dataclass(eq=False)
class MixtureStage:
    """Training pairs: the pairs of a config, `copies` times each, and pairs with translations.

    The sources of the translations begin with `tag`. A translated pair is added once, and only if
    the mixture does not have it yet. `copies=0` leaves only translations. The other splits are the
    splits of the config.
    """

    name: str
    config: str
    translations: tuple[TranslationStage, ...]
    copies: int
    tag: str


@dataclass(eq=False)
class MeasurementStage(DecodingStage):
    """An evaluation of a model or an ensemble by `transformer.evaluate` on a split."""

    name: str
    models: tuple[TrainingStage, ...]
    split: str


@dataclass(eq=False)
class ExportStage(DecodingStage):
    """A model in the format of another toolkit, which measures it on the validation split.

    `scripts.export` writes and measures it.
    """

    name: str
    models: tuple[TrainingStage]
    format: str
    quantization: str | None


Models = TrainingStage | Sequence[TrainingStage]  # a model, or the models of an ensemble
Stage = TrainingStage | TranslationStage | MixtureStage | MeasurementStage | ExportStage


def is_config(text: str) -> bool:
    """True for the name of a config, FILE.py[:ARG] or FILE.json; False for a file of text."""
    return text.partition(":")[0].endswith((".py", ".json"))


def train(
    name: str,
    config: str,
    values: Mapping[str, Any] | None = None,
    *,
    data: MixtureStage | None = None,
) -> TrainingStage:
    """Returns a model to train with a config and other values for some keys."""
    return TrainingStage(name, config, dict(values or {}), data)


def existing(name: str, workdir: str) -> TrainingStage:
    """Returns the model in an existing workdir, trained or imported."""
    return TrainingStage(name, "", {}, None, workdir)


def translate(
    name: str,
    models: Models,
    text: str,
    *,
    n_best: int = 1,
    choose: str | TrainingStage = "score",
    **decoding: Any,
) -> TranslationStage:
    # Mistakes in a plan file are reported when it is read, before anything runs.
    if not isinstance(choose, TrainingStage) and choose not in CHOICES:
        raise UserError(f"{name}: choose={choose}: must be a model or one of {', '.join(CHOICES)}")
    if choose in REFERENCE_CHOICES and not is_config(text):
        raise UserError(
            f"{name}: choose={choose}: needs references, which {text} does not have; "
            "translate a config's text"
        )
    return TranslationStage(name, _several(name, models), text, n_best, choose, **decoding)


def mix(
    name: str, config: str, *translations: TranslationStage, copies: int = 1, tag: str = ""
) -> MixtureStage:
    # A list instead of arguments is an easy mistake, which would fail much later.
    if not all(isinstance(translation, TranslationStage) for translation in translations):
        raise UserError(f"{name}: give the results of plan.translate one by one, without a list")
    return MixtureStage(name, config, translations, copies, tag)


def measure(
    models: Models,
    *,
    split: str = "valid",
    name: str = "",
    **decoding: Any,
) -> MeasurementStage:
    models = _several(name or "plan.measure", models)
    # For example teacher+student-valid.
    name = name or "+".join(model.name for model in models) + f"-{split}"
    return MeasurementStage(name, models, split, **decoding)


def export(
    model: TrainingStage,
    format: str,
    *,
    quantization: str | None = None,
    name: str = "",
    **decoding: Any,
) -> ExportStage:
    # For example student-ctranslate2-int8.
    name = name or "-".join(filter(None, (model.name, format, quantization)))
    return ExportStage(name, (model,), format, quantization, **decoding)


def _several(name: str, models: Models) -> tuple[TrainingStage, ...]:
    models = (models,) if isinstance(models, TrainingStage) else tuple(models)
    if not models or not all(isinstance(model, TrainingStage) for model in models):
        raise UserError(
            f"{name}: needs a model, or a list of them, from plan.train or plan.existing"
        )
    return models


def input_stages(stage: Stage) -> list[Stage]:
    """Returns the stages with results that a stage reads."""
    stages = []
    for value in vars(stage).values():
        # Fields hold stages or tuples of stages.
        items = value if isinstance(value, tuple) else (value,)
        stages += [item for item in items if isinstance(item, Stage)]
    return stages


def in_order(measurements: Sequence[Stage]) -> list[Stage]:
    """Returns all stages of a pipeline, each after its inputs.

    Raises UserError if two stages have the same name, or a name cannot be a file name.
    """
    ordered = {}  # by name

    def add(stage: Stage) -> None:
        if ordered.get(stage.name, stage) is not stage:
            raise UserError(f"two stages have the name {stage.name}; name them differently")
        # Names become files, folders and log files in the workdir.
        name = str(stage.name)
        is_reserved = name in RESERVED or name.endswith(".json")
        if is_reserved or not re.fullmatch(r"\w[\w.+-]*", name):
            raise UserError(
                f"name={name}: must be of letters, digits and . _ + -, "
                f"and not {', '.join(RESERVED)} or a .json"
            )

        # A pipeline has no cycles, because stages are made after their inputs.
        for input_stage in input_stages(stage):
            add(input_stage)
        ordered[stage.name] = stage

    for measurement in measurements:
        add(measurement)
    return list(ordered.values())


def load(name: str) -> list[Stage]:
    """Returns the stages of a plan file, each after its inputs.

    Raises UserError if the file is missing or invalid.
    """
    path = loading.find_file("--plan", name)
    measurements = loading.call_function(path, "get_plan", sys.modules[__name__])
    # An empty plan, or a plan that returns something else, is a mistake in its file.
    items = measurements if isinstance(measurements, list) else []
    if not items or not all(isinstance(item, MeasurementStage | ExportStage) for item in items):
        raise UserError(
            f"--plan={path}: get_plan() must return a list with plan.measure(...) "
            "or plan.export(...)"
        )
    return in_order(items)
