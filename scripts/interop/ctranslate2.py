"""Export of a model to CTranslate2's format, which its own converter writes in an environment of its own."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scripts.interop import certificate
from scripts.interop.ctranslate2_reader import ACTIVATIONS, SINUSOIDS, STACKS, names, sinusoids
from scripts.interop.portable import PortableModel
from transformer import files
from transformer.config.keys import freeze
from transformer.config_types import head_widths
from transformer.data.tokenizers.vocabulary import IdsVocabulary, PieceVocabulary, SentencePieceVocabulary, Vocabulary
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, UNK

EXPRESSIBLE = {
    "training.objective": ("translation",),
    "model.attention": ("dot_product", "dot_product_unscaled"),
    "model.decoder_self_attention": ("attention",),
    "model.activation": tuple(ACTIVATIONS),
}
QUANTIZATIONS = ("int8", "int8_float32", "bfloat16", "float16")
MAX_POSITIONS = 2048  # of sinusoids, which are stored
README = """\
# A model for CTranslate2

A source is segmented into pieces {segmentation}. The decoder never generates `<pad>` or `<s>`:

```python
translator = ctranslate2.Translator(FOLDER)
translator.translate_batch(
    [pieces], beam_size={beam_size}, length_penalty=1, disable_unk=True, suppress_sequences=[["<pad>"], ["<s>"]]
)
```
"""


def write(model: PortableModel, folder: Path, quantization: str | None) -> None:
    """Writes the model, its SentencePiece models, and vmap.txt if it has a shortlist."""
    model.check_expressible("ctranslate2", EXPRESSIBLE)
    config = freeze(model.settings)
    vocabularies = [list(side.pieces) for side in model.tokenizer.sides]
    with tempfile.TemporaryDirectory() as temporary:
        np.savez(Path(temporary, "variables.npz"), **_variables(model, config.model))
        vmap = Path(temporary, "vmap.txt")
        if model.shortlist is not None:
            vmap.write_text("".join(f"{line}\n" for line in _candidates(model)), encoding="utf-8")
        request = {
            "folder": str(folder),
            "quantization": quantization,
            "variables": str(Path(temporary, "variables.npz")),
            **dict(zip(STACKS, _arguments(config.model), strict=True)),
            "config": {
                "unk_token": vocabularies[1][UNK],
                "bos_token": vocabularies[1][BOS],
                "eos_token": vocabularies[1][EOS],
                "decoder_start_token": vocabularies[1][BOS],
                "add_source_eos": config.model.source_eos,
                "layer_norm_epsilon": config.model.layer_norm_epsilon,
            },
            "vocabularies": vocabularies,
            "vmap": None if model.shortlist is None else str(vmap),
        }
        certificate.ask("ctranslate2", request)
    segmenters = _segmenters(model.tokenizer.sides)
    for name, content in segmenters.items():
        files.write_bytes(folder / name, content)
    segmentation = f"by {' and '.join(segmenters)}" if segmenters else "at spaces"
    files.write_text(folder / "README.md", README.format(segmentation=segmentation, beam_size=config.decoding.beam_size))


def _arguments(config: Config) -> list[dict[str, Any]]:
    """Returns the arguments of the specifications of both stacks. `config` is `config.model`."""
    activation, is_gated = ACTIVATIONS[config.activation]
    d_k = head_widths(config)[0]
    common = {
        "num_heads": config.num_heads,
        "activation": activation,
        "ffn_glu": is_gated,
        "no_final_norm": not has_final_norm(config),
        "head_dim": None if d_k * config.num_heads == config.d_model else d_k,
        "rotary_dim": 0 if config.positions == "rotary" else None,
        "rotary_interleave": False,
    }
    layers = config.num_layers, config.num_decoder_layers or config.num_layers
    return [common | {"num_layers": number} for number in layers]


def _variables(parameters: dict[str, np.ndarray], config: Config) -> dict[str, np.ndarray]:
    layers = {stack: arguments["num_layers"] for stack, arguments in zip(STACKS, _arguments(config), strict=True)}
    variables = {
        theirs: np.concatenate([parameters[name].T for name in ours])
        for theirs, ours in names(layers)
        if ours[0] in parameters
    }
    table = parameters["decoder.embedding.table"]
    variables["encoder/embeddings_0/weight"] = parameters.get("encoder.embedding.table", table)
    variables["decoder/embeddings/weight"] = table
    variables["decoder/projection/weight"] = parameters.get("projection.kernel", table.T).T
    if config.output_bias:
        variables["decoder/projection/bias"] = parameters["output_bias"]
    variables["decoder/start_from_zero_embedding"] = np.int8(config.decoder_start == "zero")
    for stack in STACKS:
        # The specifications have a final norm only with pre-norm.
        variables[f"{stack}/pre_norm"] = np.int8(config.norm_position == "pre")
        if config.positions in SINUSOIDS:
            encodings = sinusoids(config.positions, config.d_model, np.arange(MAX_POSITIONS))
            variables[f"{stack}/position_encodings/encodings"] = encodings
        elif config.positions == "learned":
            variables[f"{stack}/position_encodings/encodings"] = parameters[f"{stack}.positions.table"]
    if config.attention == "dot_product_unscaled":
        weights = [theirs for theirs in variables if theirs.endswith("attention/linear_0/weight")]
        variables |= {theirs.replace("linear_0/weight", "queries_scale"): np.float32(1) for theirs in weights}
    return variables


def _vocabulary_map(model: PortableModel) -> str:
    """Returns the lines of vmap.txt: a source token, a tab and its candidates; without a token those of all sources."""
    source, target = (side.pieces for side in model.tokenizer.sides)
    lines = ["\t" + " ".join(target[token] for token in model.shortlist.frequent)]
    for token, translations in enumerate(model.shortlist.translations):
        candidates = [target[translation] for translation in translations if translation >= 0]
        candidates += [source[token]] if model.shortlist.is_shared else []
        if token >= SPECIAL and candidates:
            lines.append(f"{source[token]}\t{' '.join(candidates)}")
    return "".join(f"{line}\n" for line in lines)


def _segmenters(source: Vocabulary, target: Vocabulary) -> dict[str, bytes]:
    """Returns the content of SentencePiece models by file name."""
    if isinstance(source, PieceVocabulary):
        models = source.models[0], target.models[1]
    else:
        models = [side.serialized if isinstance(side, SentencePieceVocabulary) else None for side in (source, target)]
    if models[0] == models[1]:
        return {} if models[0] is None else {"sentencepiece.model": models[0]}
    return {f"{side}.spm": model for side, model in zip(SIDES.values(), models, strict=True) if model is not None}
