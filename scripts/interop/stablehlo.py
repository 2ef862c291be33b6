"""Exports that need no toolkit: weights in safetensors, and StableHLO programs for JAX."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from absl import logging
from jax.sharding import AbstractDevice, AbstractMesh
from jaxtyping import Array, Float, Int
from safetensors.numpy import save

from scripts.interop import vocabularies
from scripts.interop.portable import SEGMENTED, PortableModel
from transformer.checkpoints.restore import named_leaves
from transformer.config.keys import validated_config
from transformer.decoding import ensemble
from transformer.decoding.batches import convert_weights
from transformer.decoding.beam_search import SourceBatch, output_limits
from transformer.decoding.strategies import strategy_of
from transformer.model.transformer import Transformer
from transformer.support import files
from transformer.training.state import abstract_init

TRANSLATE = Path(__file__).with_name("exported_translate.py")
PLATFORMS = ("cpu", "cuda", "tpu")
# This device has no platform, so programs traced for it have no form for one platform only.
ANY_PLATFORM = AbstractMesh((), (), abstract_device=AbstractDevice("any", None, "any"))
EXPRESSIBLE = {
    "training.objective": ("translation",),
    "decoding.strategy": ("beam",),
    "data.context": (0,),
    "tokenizer.kind": SEGMENTED,
}
# Parts that the exported search leaves out, with the values that turn them off.
LOST = {
    "decoding.shortlist": 0,
    "decoding.min_length": 0,
    "decoding.no_repeat_ngram": 0,
    "decoding.banned": "",
    "decoding.rerank": "",
    "decoding.banned_pieces": (),
    "decoding.well_formed": False,
}

Parameters = dict[str, Float[Array, "..."]]  # by dotted name


def write_safetensors(model: PortableModel, folder: Path, *_: object) -> None:
    """Writes the float32 parameters, the settings of model and search, and the vocabularies."""
    config = validated_config(model.config)
    settings = {
        "model": config.model.to_dict(),
        "decoding": config.decoding.to_dict(),
        "languages": [config.data.source_language, config.data.target_language],
    }

    arrays = {
        name: np.ascontiguousarray(array, np.float32) for name, array in model.parameters.items()
    }

    # The metadata has one entry, because safetensors writes several in random order.
    files.write_bytes(folder / "model.safetensors", save(arrays, {"config": json.dumps(settings)}))
    files.write_json(folder / "config.json", settings)

    source, target = model.tokenizer.sides
    pieces = {"source": source.pieces, "target": target.pieces}
    files.write_json(folder / "vocabulary.json", pieces)
    vocabularies.write_segmenters(folder, model.tokenizer)


def write_stablehlo(
    model: PortableModel, folder: Path, quantization: str | None, *_: object
) -> None:
    """Writes encoder.jax, search.jax, translate.py and the files of `write_safetensors`.

    translate.py needs only these files. Matmuls are computed in float32, or in bfloat16 with that
    `quantization`. Raises UserError if the search cannot be exported.
    """
    model.check_expressible("stablehlo", EXPRESSIBLE)
    config = validated_config(model.config | {"model.dtype": quantization or "float32"})
    for key in LOST:
        value = model.settings[key]
        if value:
            logging.warning("%s=%s: the exported search has no such part.", key, value)

    # The parameters are arguments of the programs, by name as in safetensors.
    graph, shapes = abstract_init(config, *model.tokenizer.vocab_sizes)
    structure = jax.tree.structure(shapes)
    names = list(named_leaves(shapes))
    decoding = config.decoding

    def build(parameters: Parameters) -> list[Transformer]:
        tree = structure.unflatten(parameters[name] for name in names)
        weights = convert_weights(is_int8=False, graph=graph, parameters=tree)
        return ensemble.build_models([graph], [weights])

    def encoder(parameters: Parameters, source: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        return build(parameters)[0].encoder(source).astype(np.float32)

    def search(
        parameters: Parameters, source: Int[Array, "B S"]
    ) -> tuple[Int[Array, "B L"], Float[Array, " B"]]:
        # The largest limit of sources of this length, or a little more. The length may be symbolic.
        longest = math.ceil(decoding.max_length_factor) * (source.shape[1] - 1)
        max_length = longest + decoding.max_extra_length + 1
        sentences = SourceBatch(source, output_limits(source, decoding), max_length)
        best, _ = strategy_of(decoding).search(build(parameters), sentences, decoding, n_best=1)
        return best.tokens[:, 0], best.scores[:, 0]

    write_safetensors(model, folder)
    for program in (encoder, search):
        files.write_bytes(folder / f"{program.__name__}.jax", export(program, model.parameters))
    shutil.copy(TRANSLATE, folder / "translate.py")


def export(program: Callable[..., Any], parameters: Mapping[str, np.ndarray]) -> bytes:
    """Returns the serialized program of parameters and source, for all `PLATFORMS`.

    The number and the length of the sentences are symbolic.
    """
    arrays = {
        name: jax.ShapeDtypeStruct(array.shape, np.float32) for name, array in parameters.items()
    }
    source = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, length"), np.int32)

    # By default, accelerators round the operands of float32 matmuls.
    with jax.sharding.use_abstract_mesh(ANY_PLATFORM), jax.default_matmul_precision("float32"):
        exported = jax.export.export(jax.jit(program), platforms=PLATFORMS)(arrays, source)
        return bytes(exported.serialize())
