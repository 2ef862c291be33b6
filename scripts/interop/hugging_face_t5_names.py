"""Names of settings and tensors of T5's family in Hugging Face's layout.

The family is T5 (Raffel et al. 2020) with its version 1.1, Flan-T5 (Chung et al. 2022), mT5 (Xue et
al. 2021), umT5 (Chung et al. 2023) and ByT5 (Xue et al. 2022), which is T5 1.1 on bytes.
"""

from collections.abc import Iterator

from scripts.interop.portable import Settings

# model_type and class, by model.positions.
CLASSES = {
    "t5": ("t5", "T5ForConditionalGeneration"),
    "t5_per_layer": ("umt5", "UMT5ForConditionalGeneration"),
}
# The classes that Transformers has had for a model with an encoder, a decoder and logits.
ARCHITECTURES = ("ForConditionalGeneration", "WithLMHeadModel")
# Keys of config.json, with the values of absent keys.
DEFAULTS = {
    "num_layers": 6,
    "num_heads": 8,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "vocab_size": 32128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "pad_token_id": 0,
    "eos_token_id": 1,
}
MULTILINGUAL_DEFAULTS = DEFAULTS | {
    "num_layers": 8,
    "num_heads": 6,
    "d_ff": 1024,
    "vocab_size": 250112,
    "feed_forward_proj": "gated-gelu",
}
# The values of absent keys, and the settings that say whether the logits are divided by
# sqrt(d_model), by model_type. The first setting in the file counts. Without one, they are divided,
# except in mT5.
MODEL_TYPES = {
    "t5": (DEFAULTS, ("scale_decoder_outputs", "tie_word_embeddings")),
    "mt5": (MULTILINGUAL_DEFAULTS, ()),
    "umt5": (MULTILINGUAL_DEFAULTS, ("tie_word_embeddings",)),
}
# The only values of these settings, which are constants here.
FIXED = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
KEYS = {
    "model.num_layers": "num_layers",
    "model.num_decoder_layers": "num_decoder_layers",
    "model.d_model": "d_model",
    "model.d_ff": "d_ff",
    "model.num_heads": "num_heads",
    "model.d_k": "d_kv",
    "model.d_v": "d_kv",
    "model.dropout": "dropout_rate",
    "model.attention_dropout": "dropout_rate",
    "model.activation_dropout": "dropout_rate",
    "model.final_dropout": "dropout_rate",
    "model.layer_norm_epsilon": "layer_norm_epsilon",
}
# All models of the family have these values.
ARCHITECTURE = {
    "model.attention": "dot_product_unscaled",
    "model.attention_bias": False,
    "model.feed_forward_bias": False,
    "model.norm": "rms_norm",
    "model.norm_position": "pre",
}
# model.activation, by feed_forward_proj.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "silu": "swish",
    "gated-gelu": "geglu",
    "gated-silu": "swiglu",
}
GATED_ACTIVATIONS = ("geglu", "swiglu")
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
FEED_FORWARD = {"inner": "wi", "outer": "wo"}
GATED = {"inner": "wi_0", "gate": "wi_1", "outer": "wo"}
# The table of both sides. The copies, which older files have, are equal.
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"
# Files of the first models have these numbers, which no class reads.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def parameter_names(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the name of each parameter except tables, here and in Transformers."""
    depth = settings["model.num_layers"]
    decoder_depth = settings["model.num_decoder_layers"] or depth
    is_gated = settings["model.activation"] in GATED_ACTIVATIONS
    is_shared = settings["model.positions"] == "t5"
    self_attention = {"self_attention": "SelfAttention"}
    cross_attention = {"cross_attention": "EncDecAttention"}
    for stack, num_layers, attentions in (
        ("encoder", depth, self_attention),
        ("decoder", decoder_depth, self_attention | cross_attention),
    ):
        for index in range(num_layers):
            layer = f"{stack}.layers.{index}"
            # The sub-layers of a block have numbers.
            block = f"{stack}.block.{index}.layer"
            for number, (attention, foreign) in enumerate(attentions.items()):
                for projection, letter in PROJECTIONS.items():
                    yield (
                        f"{layer}.{attention}.{projection}.kernel",
                        f"{block}.{number}.{foreign}.{letter}.weight",
                    )
                yield (
                    f"{layer}.{attention}_connection.norm.scale",
                    f"{block}.{number}.layer_norm.weight",
                )
            number = len(attentions)
            for linear, foreign in (GATED if is_gated else FEED_FORWARD).items():
                yield (
                    f"{layer}.feed_forward.{linear}.kernel",
                    f"{block}.{number}.DenseReluDense.{foreign}.weight",
                )
            yield (
                f"{layer}.feed_forward_connection.norm.scale",
                f"{block}.{number}.layer_norm.weight",
            )
            if index == 0 or not is_shared:
                yield (
                    f"{stack}.relations.{index}.table",
                    f"{block}.0.SelfAttention.relative_attention_bias.weight",
                )
        yield f"{stack}.final_norm.scale", f"{stack}.final_layer_norm.weight"
