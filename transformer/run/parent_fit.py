"""Checks that the parameters and vocabularies of a run's parent fit the run."""

import re

from transformer.checkpoints.restore import differing_arrays, named_leaves, readable
from transformer.config.keys import nearest, show
from transformer.config_types import Config
from transformer.data.tokenizers import tokenizer
from transformer.errors import UserError
from transformer.run.parent import Parent, is_part, named
from transformer.training.state import abstract_parameters


def check_parent(config: Config, parent: Parent) -> None:
    """Raises UserError if the parent's parameters do not fit the run. Reads no array."""
    expected = abstract_parameters(config, *_check_vocabularies(config, parent))
    origins, shapes = parent.origins(config), named_leaves(expected)
    wanted = {origin: shapes[name] for name, origin in origins.items()}
    with named(config), readable(parent.checkpoint, "name another step"):
        differing = differing_arrays(parent.checkpoint, parent.item, wanted)
    if not parent.has_objective_of(config):
        differing = {name: text for name, text in differing.items() if name in wanted}
    names = shapes | differing
    for prefix in parent.skipped:
        if not any(is_part(name, prefix) for name in names):
            modules = {name[: dot.start()] for name in names for dot in re.finditer(r"\.", name)}
            parts = ", ".join(sorted(module for module in modules if module.count(".") < 2))
            raise UserError(
                f"config.training.init_skip={config.training.init_skip}: no parameter's name is or begins with {prefix}"
                f"{nearest(prefix, modules) or f'; they begin with {parts}'}"
            )
    if unfit := [f"{name}: {text}" for name, text in differing.items() if name in wanted or parent.takes(name)]:
        more = f" and {len(unfit) - 3} more" if len(unfit) > 3 else ""
        raise UserError(
            f"config.training.init_from={config.training.init_from}: its parameters do not fit this model "
            f"({'; '.join(unfit[:3])}{more}); make the models equal ({parent.model_difference(config)}) or list what "
            "is not to be taken in config.training.init_skip"
        )


def _check_vocabularies(config: Config, parent: Parent) -> tuple[int, int]:
    """Returns the vocabulary sizes of the run, as far as they are known: a vocabulary to be trained has the parent's.

    Raises UserError if parameters are taken that belong to another vocabulary.
    """
    taken = parent.token_parameters(config)
    advice = f"take that run's tokenizer, or set config.training.init_skip={','.join([*parent.skipped, *taken])}"
    # The vocabulary of a monolingual parent is that of either side.
    keys = ("kind", "shared") if parent.is_bilingual else ("kind",)
    differing = [key for key in keys if config.tokenizer[key] != parent.config.tokenizer[key]]
    own = tokenizer.read_model_files(config) if config.tokenizer.model_file else parent.tokenizer
    if any(own.sides[side].serialized != parent.tokenizer.sides[side].serialized for side in taken.values()):
        differing.append("model_file")
    if taken and differing:
        key, value = differing[0], show(config.tokenizer[differing[0]])
        raise UserError(
            f"config.tokenizer.{key}={value}: {parent.workdir.path} has another tokenizer, so its embeddings would get "
            f"other tokens; {advice}"
        )
    source, target = own.vocab_sizes
    return source, source if config.tokenizer.shared else target
