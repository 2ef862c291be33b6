"""Plans of distillation: models, what they translate, and what other models learn from it. Plan
files get this module.

A plan file defines `get_plan(plan)` and returns the measurements that it is for. Their stages
follow from them:

    def get_plan(plan):
        teacher = plan.train("teacher", "configs/multi30k.py")
        outputs = plan.translate("outputs", teacher, "configs/multi30k.py")
        pairs = plan.mix("pairs", "configs/multi30k.py", outputs)
        student = plan.train("student", "configs/multi30k.py", {"model.d_model": 64}, data=pairs)
        return [plan.measure(model, average=10) for model in (teacher, student)]
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer.config import loading
from transformer.support.errors import UserError

CHOICES = ("score", "chrf", "bleu")  # what `Translation.choose` may name, beside a model
RESERVED = ("logs", "configs", "distill", "report.svg")  # names in the workdir that are no stage's


@dataclass(eq=False)
class Training:
    """A run of `transformer.train`, or, if it has a `workdir`, one that exists.

    values: keys of the configuration with their values. data: replaces the training pairs of the
        config.
    """

    name: str
    config: str
    values: Mapping[str, Any]
    data: "Mixture | None"
    workdir: str = ""


@dataclass(eq=False, kw_only=True)
class Decoding:
    """The part of a stage that decodes.

    checkpoint, average: the mean of `average` checkpoints of each model up to this one, as in
    `transformer.evaluate`.
    decoding: keys of the group `decoding` with their values.
    """

    checkpoint: str = "best"
    average: int = 1
    decoding: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Translation(Decoding):
    """Translations of a text, by one model or an ensemble.

    Attributes:
      text: a config, whose training sentences are translated, or a file of text, of the language
          that the models read.
      n_best: hypotheses of each sentence, among which `choose` takes one: that of the best "score"
        of the search, of the best sentence "chrf" or "bleu" by the other side of the config's
        pairs, or of the lowest loss of a model of the other direction.
    """

    name: str
    models: tuple[Training, ...]
    text: str
    n_best: int
    choose: "str | Training"


@dataclass(eq=False)
class Mixture:
    """Training pairs: those of a config, `copies` times each, and translations, whose sources begin
    with a tag.

    Equal pairs are kept once, but for the copies. The other splits are those of the config. Without
    copies only translations are left.
    """

    name: str
    config: str
    translations: tuple[Translation, ...]
    copies: int
    tag: str


@dataclass(eq=False)
class Measurement(Decoding):
    """An evaluation of a model or an ensemble by `transformer.evaluate` on a split."""

    name: str
    models: tuple[Training, ...]
    split: str


@dataclass(eq=False)
class Export(Decoding):
    """A model as `scripts.export` writes it, measured on the validation split by the other toolkit."""

    name: str
    models: tuple[Training]
    format: str
    quantization: str | None


Stage = Training | Translation | Mixture | Measurement | Export


def is_config(text: str) -> bool:
    """Tells whether a text is that of a config, FILE.py[:ARG] or FILE.json.

    All others are files of text.
    """
    return text.partition(":")[0].endswith((".py", ".json"))


def train(
    name: str, config: str, values: Mapping[str, Any] | None = None, *, data: Mixture | None = None
) -> Training:
    """Returns a model to train: a config, with other values for some keys."""
    return Training(name, config, dict(values or {}), data)


def existing(name: str, workdir: str) -> Training:
    """Returns the model of a workdir that exists, also an imported one."""
    return Training(name, "", {}, None, workdir)


def translate(
    name: str,
    models: Training | Sequence[Training],
    text: str,
    *,
    n_best: int = 1,
    choose: str | Training = "score",
    **decoding: Any,
) -> Translation:
    if not isinstance(choose, Training) and choose not in CHOICES:
        raise UserError(f"{name}: choose={choose}: must be a model or one of {', '.join(CHOICES)}")
    if choose in CHOICES[1:] and not is_config(text):
        raise UserError(
            f"{name}: choose={choose}: needs references, which {text} has not; translate a config's text"
        )
    return Translation(name, _several(name, models), text, n_best, choose, **decoding)


def mix(
    name: str, config: str, *translations: Translation, copies: int = 1, tag: str = ""
) -> Mixture:
    if not all(isinstance(translation, Translation) for translation in translations):
        raise UserError(f"{name}: give the results of plan.translate one by one, without a list")
    return Mixture(name, config, translations, copies, tag)


def measure(
    models: Training | Sequence[Training], *, split: str = "valid", name: str = "", **decoding: Any
) -> Measurement:
    models = _several(name or "plan.measure", models)
    name = name or "+".join(model.name for model in models) + f"-{split}"
    return Measurement(name, models, split, **decoding)


def export(
    model: Training,
    format: str,
    *,
    quantization: str | None = None,
    name: str = "",
    **decoding: Any,
) -> Export:
    name = name or "-".join(filter(None, (model.name, format, quantization)))
    return Export(name, (model,), format, quantization, **decoding)


def _several(name: str, models: Training | Sequence[Training]) -> tuple[Training, ...]:
    models = (models,) if isinstance(models, Training) else tuple(models)
    if not models or not all(isinstance(model, Training) for model in models):
        raise UserError(
            f"{name}: needs a model, or a list of them, from plan.train or plan.existing"
        )
    return models


def inputs(stage: Stage) -> Iterator[Stage]:
    """Yields the stages whose results a stage reads."""
    for value in vars(stage).values():
        yield from (
            item
            for item in (value if isinstance(value, tuple) else (value,))
            if isinstance(item, Stage)
        )


def in_order(measurements: Sequence[Stage]) -> list[Stage]:
    """Returns all stages, each after its inputs.

    Raises UserError if two have the same name, or one is no file name.
    """
    ordered = {}

    def add(stage: Stage) -> None:
        if ordered.get(stage.name, stage) is not stage:
            raise UserError(f"two stages have the name {stage.name}; name them differently")
        if (
            not re.fullmatch(r"\w[\w.+-]*", str(stage.name))
            or stage.name in RESERVED
            or stage.name.endswith(".json")
        ):
            listed = ", ".join(RESERVED)
            raise UserError(
                f"name={stage.name}: must be of letters, digits and . _ + -, and not {listed} or a .json"
            )
        for needed in inputs(stage):
            add(needed)
        ordered[stage.name] = stage

    for measurement in measurements:
        add(measurement)
    return list(ordered.values())


def load(name: str) -> list[Stage]:
    """Returns the stages of a plan file in order.

    Raises UserError if the file is missing or invalid.
    """
    path = loading.find_file("--plan", name)
    measurements = loading.call_function(path, "get_plan", sys.modules[__name__])
    items = measurements if isinstance(measurements, list) else []
    if not items or not all(isinstance(item, Measurement | Export) for item in items):
        raise UserError(
            f"--plan={path}: get_plan() must return a list with plan.measure(...) or plan.export(...)"
        )
    return in_order(items)
