"""Export of a model to CTranslate2's format, which the toolkit's own converter writes."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scripts.interop import runtimes
from scripts.interop.ctranslate2_variables import ACTIVATIONS, SIDES, SINUSOIDS, STACKS, names, sinusoids
from scripts.interop.portable import PortableModel
from transformer import files
from transformer.config.keys import freeze
from transformer.config_types import Config, head_widths
from transformer.data.tokenizers.vocabulary import PieceVocabulary, SentencePieceVocabulary, Vocabulary
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, SPECIAL, SPECIAL_PIECES, UNK

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

The pieces of a text are {segmentation}. In Python:

```python
translator = ctranslate2.Translator("FOLDER")
results = translator.translate_batch(
    [pieces], beam_size={beam_size}, disable_unk=True, suppress_sequences=[["<pad>"], ["<s>"]]
)
```

CTranslate2 divides the log-probability of a hypothesis by length^length_penalty.
"""


def write(model: PortableModel, folder: Path, quantization: str | None, python: Path | None = None) -> None:
    """Writes the model, its SentencePiece models, and vmap.txt if it has a shortlist.

    `python` has CTranslate2's converter; None: .venv-interop has it. Raises UserError if CTranslate2 cannot express a
    setting, or the converter is missing.
    """
    model.check_expressible("ctranslate2", EXPRESSIBLE)
    config, vocabularies = freeze(model.settings), [list(side.pieces) for side in model.tokenizer.sides]
    d_k, d_v = head_widths(config.model)
    if d_k != d_v:
        raise UserError(f"--format=ctranslate2: cannot express model.d_k={d_k} with model.d_v={d_v}, only equal widths")
    with tempfile.TemporaryDirectory() as temporary:
        variables, vmap = Path(temporary, "variables.npz"), Path(temporary, "vmap.txt")
        np.savez(variables, **_variables(model.parameters, config.model))
        if model.shortlist is not None:
            files.write_text(vmap, vocabulary_map(model))
        request = {
            "folder": str(folder.resolve()),
            "quantization": quantization,
            "variables": str(variables),
            **dict(zip(STACKS, _arguments(config.model, "decoder.final_norm.scale" in model.parameters), strict=True)),
            "config": {
                "unk_token": SPECIAL_PIECES[UNK],
                "bos_token": SPECIAL_PIECES[BOS],
                "eos_token": SPECIAL_PIECES[EOS],
                "decoder_start_token": SPECIAL_PIECES[BOS],
                "add_source_eos": config.model.source_eos,
                "layer_norm_epsilon": config.model.layer_norm_epsilon,
            },
            "vocabularies": vocabularies,
            "vmap": str(vmap) if vmap.exists() else None,
            "sources": [],
        }
        try:
            runtimes.ask(python or runtimes.find_python(None, is_here=False) or Path("python"), "ctranslate2", request)
        except runtimes.Unavailable as reason:
            raise UserError(f"--format=ctranslate2: needs CTranslate2's converter: {reason}") from reason
    segmenters = _segmenters(*model.tokenizer.sides)
    for name, content in segmenters.items():
        files.write_bytes(folder / name, content)
    segmentation = f"those of {' and '.join(segmenters)}" if segmenters else "separated by spaces"
    readme = README.format(segmentation=segmentation, beam_size=config.decoding.beam_size)
    files.write_text(folder / "README.md", readme)


def _arguments(config: Config, has_final_norm: bool) -> list[dict[str, Any]]:
    """Returns the arguments of the specifications of both stacks. `config` is `config.model`."""
    activation, is_gated = ACTIVATIONS[config.activation]
    d_k = head_widths(config)[0]
    common = {
        "num_heads": config.num_heads,
        "activation": activation,
        "ffn_glu": is_gated,
        "no_final_norm": not has_final_norm,
        "head_dim": None if d_k * config.num_heads == config.d_model else d_k,
        "rotary_dim": 0 if config.positions == "rotary" else None,
        "rotary_interleave": False,
    }
    layers = config.num_layers, config.num_decoder_layers or config.num_layers
    return [common | {"num_layers": number} for number in layers]


def _variables(parameters: dict[str, np.ndarray], config: Config) -> dict[str, np.ndarray]:
    layers = dict(zip(STACKS, (config.num_layers, config.num_decoder_layers or config.num_layers), strict=True))
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


def vocabulary_map(model: PortableModel) -> str:
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
