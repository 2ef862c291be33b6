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


def _arguments(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of the specifications of both stacks."""
    d_k, d_v = head_widths(config)
    if d_k != d_v:
        raise UserError(f"--format=ctranslate2: cannot express model.d_k={d_k} and model.d_v={d_v}, only equal widths")
    activation, is_gated = ACTIVATIONS[config.activation]
    common = {
        "num_heads": config.num_heads,
        "activation": activation,
        "ffn_glu": is_gated,
        "no_final_norm": not has_final_norm,
        "head_dim": None if d_k * config.num_heads == config.d_model else d_k,
        "rotary_dim": 0 if config.positions == "rotary" else None,
        "rotary_interleave": False,
    }
    decoder_layers = config.num_decoder_layers or config.num_layers
    return common | {"num_layers": config.num_layers}, common | {"num_layers": decoder_layers}
