"""Marian's names of settings and parameters, and the corresponding names here."""

import itertools
from typing import Any

from scripts.interop.portable import COMMON, Settings
from transformer.support.errors import UserError

# The values that can be expressed here, with Marian's default first. Settings that add or omit
# arrays are not in the table.
REQUIRED = {
    "type": ("transformer",),
    "input-types": ([],),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": ("swish", "relu"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("", "n"),
    "transformer-attention-mask": ("default",),
    "right-left": (False,),
    "transformer-pool": (False,),
    "transformer-disable-position-embeddings": (False,),
}
SIZES = {
    "model.num_layers": "enc-depth",
    "model.num_decoder_layers": "dec-depth",
    "model.d_model": "dim-emb",
    "model.d_ff": "transformer-dim-ffn",
    "model.num_heads": "transformer-heads",
}
LARGEST = 1 << 16
# transformer-preprocess and transformer-postprocess, the steps before and after a sub-layer:
# d is dropout, a is the residual connection, n is the norm.
NORM_POSITIONS = {"post": ("", "dan"), "pre": ("n", "da")}
_ATTENTION = {
    "query.kernel": "Wq",
    "query.bias": "bq",
    "key.kernel": "Wk",
    "key.bias": "bk",
    "value.kernel": "Wv",
    "value.bias": "bv",
    "output.kernel": "Wo",
    "output.bias": "bo",
}
# For each kind of sub-layer: Marian's name of each parameter, and the beginning of the names of its
# norm.
SUBLAYERS = {
    "attention": ({ours: f"self_{theirs}" for ours, theirs in _ATTENTION.items()}, "self_Wo"),
    "ssru": (
        {"input.kernel": "rnn_W", "forget.kernel": "rnn_Wf", "forget.bias": "rnn_bf"},
        "rnn_ffn",
    ),
    "cross_attention": (
        {ours: f"context_{theirs}" for ours, theirs in _ATTENTION.items()},
        "context_Wo",
    ),
    "feed_forward": (
        {
            "inner.kernel": "ffn_W1",
            "inner.bias": "ffn_b1",
            "outer.kernel": "ffn_W2",
            "outer.bias": "ffn_b2",
        },
        "ffn_ffn",
    ),
}
OUTPUT_BIAS = "decoder_ff_logit_out_b"
OUTPUT = "decoder_ff_logit_out_Wt"


def parameter_names(config: Settings) -> dict[str, str]:
    """Returns Marian's name of each parameter.

    `config` has the keys of the result of `to_config`, and no None.
    """
    share = config["model.share_embeddings"]
    suffix = "_pre" if config["model.norm_position"] == "pre" else ""
    names = {"decoder.embedding.table": "Wemb", "output_bias": OUTPUT_BIAS}
    if share != "all":
        names["encoder.embedding.table"] = "encoder_Wemb"
        names["decoder.embedding.table"] = "decoder_Wemb"
    if share == "none":
        names["projection.kernel"] = OUTPUT

    # The kind of each sub-layer. A decoder may have an SSRU instead of self-attention.
    encoder = {"self_attention": "attention", "feed_forward": "feed_forward"}
    decoder = encoder | {
        "self_attention": config["model.decoder_self_attention"],
        "cross_attention": "cross_attention",
    }
    for stack, sublayers, depth in (
        ("encoder", encoder, config["model.num_layers"]),
        ("decoder", decoder, config["model.num_decoder_layers"]),
    ):
        if config["model.final_norm"]:
            names |= _norm_names(f"{stack}.final_norm", f"{stack}_top")
        for layer, (sublayer, kind) in itertools.product(range(depth), sublayers.items()):
            ours = f"{stack}.layers.{layer}.{sublayer}"
            theirs = f"{stack}_l{layer + 1}"
            parameters, norm = SUBLAYERS[kind]
            for name, marian_name in parameters.items():
                names[f"{ours}.{name}"] = f"{theirs}_{marian_name}"
            # The norm of a pre-norm SSRU has another name.
            if kind == "ssru" and suffix:
                norm = "rnn"
            names |= _norm_names(f"{ours}_connection.norm", f"{theirs}_{norm}", suffix)
    return names


def _norm_names(ours: str, theirs: str, suffix: str = "") -> dict[str, str]:
    return {f"{ours}.{part}": f"{theirs}_ln_{part}{suffix}" for part in ("scale", "bias")}


def to_config(settings: Settings, num_arrays: int) -> Settings:
    """Returns the configuration of an architecture.

    No stack has more layers than the file has arrays. Raises UserError, with the setting, if the
    architecture cannot be expressed.
    """
    for name, values in REQUIRED.items():
        value = settings.get(name, values[0])
        if value not in values:
            allowed = " or ".join(map(repr, values))
            raise UserError(f"{name}={value!r:.60} cannot be expressed here, only {allowed}")
    # Of the recurrent decoders, only the SSRU exists here.
    is_ssru = settings.get("transformer-decoder-autoreg") == "rnn"
    cell = settings.get("dec-cell")
    if is_ssru and cell != "ssru":
        raise UserError(f"dec-cell={cell!r:.60} cannot be expressed here, only 'ssru'")
    # Both settings decide whether sub-layers are pre-norm or post-norm.
    norms = settings.get("transformer-preprocess"), settings.get("transformer-postprocess")
    positions = [position for position, steps in NORM_POSITIONS.items() if steps == norms]
    if not positions:
        allowed = " or ".join(map(repr, NORM_POSITIONS.values()))
        raise UserError(
            f"transformer-preprocess and -postprocess {norms!r:.80} cannot be expressed here, "
            f"only {allowed}"
        )

    # A damaged file must not make the names of billions of layers.
    config = {}
    for key, name in SIZES.items():
        value = settings.get(name)
        largest = num_arrays if key.endswith("layers") else LARGEST
        if type(value) is not int or not 1 <= value <= largest:
            raise UserError(f"{name}={value!r:.60} must be an integer from 1 to {largest}")
        config[key] = value
    share = "target" if settings.get("tied-embeddings") else "none"
    return config | {
        "model.share_embeddings": "all" if settings.get("tied-embeddings-all") else share,
        "model.activation": settings.get("transformer-ffn-activation", "swish"),
        "model.norm_position": positions[0],
        "model.final_norm": settings.get("transformer-postprocess-top") == "n",
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.positions": "sinusoidal_marian",
        "model.decoder_start": "zero",
        "model.decoder_self_attention": "ssru" if is_ssru else "attention",
    }


def expressible(config: Settings) -> dict[str, tuple[Any, ...]]:
    """Returns the values that Marian can express. Keys of `SIZES` may have any value."""
    is_ssru = config["model.decoder_self_attention"] == "ssru"
    head_width = config["model.d_model"] // config["model.num_heads"]
    return COMMON | {
        "tokenizer.kind": ("bpe", "unigram", "word", "char"),
        # Marian normalizes the keys and values of self-attention after a norm in training, but not
        # in decoding.
        "model.norm_position": ("post", "pre") if is_ssru else ("post",),
        "model.positions": ("sinusoidal_marian",),
        "model.decoder_start": ("zero",),
        "model.decoder_self_attention": ("attention", "ssru"),
        "model.activation": REQUIRED["transformer-ffn-activation"],
        "model.layer_norm_epsilon": (1e-6,),
        "model.d_k": (None, head_width),
        "model.d_v": (None, head_width),
    }


def from_config(config: Settings) -> Settings:
    """Returns Marian's settings of an architecture that it can express. `config` has no None."""
    share = config["model.share_embeddings"]
    is_ssru = config["model.decoder_self_attention"] == "ssru"
    before, after = NORM_POSITIONS[config["model.norm_position"]]
    defaults = {name: values[0] for name, values in REQUIRED.items()}
    sizes = {name: config[key] for key, name in SIZES.items()}
    return {
        **defaults,
        **sizes,
        "transformer-ffn-activation": config["model.activation"],
        "transformer-preprocess": before,
        "transformer-postprocess": after,
        "transformer-postprocess-top": "n" if config["model.final_norm"] else "",
        "transformer-decoder-autoreg": "rnn" if is_ssru else "self-attention",
        "dec-cell": "ssru" if is_ssru else "gru",
        "tied-embeddings": share == "target",
        "tied-embeddings-all": share == "all",
    }
