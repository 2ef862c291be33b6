"""Names of files, settings and tensors of Hugging Face's MarianMTModel and Pegasus.

MarianMTModel is the class of all OPUS-MT models. PegasusForConditionalGeneration has the same
layers with pre-norm. Both classes have biases everywhere, LayerNorm's epsilon 1e-5, and positions
with all sines before all cosines, unless the weights have a table of positions.
"""

from collections.abc import Iterator

from scripts.interop.portable import Settings

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
WEIGHTS = "model.safetensors"
VOCABULARIES = ("vocab.json", "target_vocab.json")
# model_type and class, by model.norm_position.
CLASSES = {
    "post": ("marian", "MarianMTModel"),
    "pre": ("pegasus", "PegasusForConditionalGeneration"),
}
NORM_POSITIONS = {model_type: norm_position for norm_position, (model_type, _) in CLASSES.items()}
EPSILON = 1e-5  # of every LayerNorm
# The keys of config.json that have the value of a key here.
KEYS = {
    "model.num_layers": ("encoder_layers",),
    "model.num_decoder_layers": ("decoder_layers",),
    "model.d_model": ("d_model",),
    "model.d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "model.num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    **{f"model.{name}": (name,) for name in ("dropout", "attention_dropout", "activation_dropout")},
}
# Settings of the search that have no counterpart here, with the values that turn them off.
# Settings of sampling are not listed, because they matter only with do_sample.
NOT_TAKEN = {
    "max_length": 20,
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "renormalize_logits": False,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    **dict.fromkeys(
        (
            "max_new_tokens",
            "min_new_tokens",
            "max_time",
            "stop_strings",
            "begin_suppress_tokens",
            "force_words_ids",
            "forced_decoder_ids",
            "sequence_bias",
            "exponential_decay_length_penalty",
            "guidance_scale",
            "penalty_alpha",
            "constraints",
        )
    ),
}
# decoding.stopping by early_stopping.
STOPPING = {True: "ended", False: "current", "never": "bound"}
LANGUAGES = {"data.source_language": "source_lang", "data.target_language": "target_lang"}
ACTIVATIONS = {
    "silu": "swish",
    "swish": "swish",
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
}
# The classes compute the first kind of positions. Others are in tables.
POSITIONS = ("sinusoidal_concatenated", "sinusoidal_marian")
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
SHARED = "model.shared.weight"
HEAD = "lm_head.weight"
BIAS = "final_logits_bias"
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def module_names(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the names, here and in Transformers, of the linear maps and norms of both stacks."""
    depth = settings["model.num_layers"]
    decoder_depth = settings["model.num_decoder_layers"] or depth
    self_attention = {"self_attention": "self_attn"}
    cross_attention = {"cross_attention": "encoder_attn"}
    for stack, num_layers, attentions in (
        ("encoder", depth, self_attention),
        ("decoder", decoder_depth, self_attention | cross_attention),
    ):
        for index in range(num_layers):
            layer = f"{stack}.layers.{index}"
            for attention, foreign in attentions.items():
                for projection, foreign_projection in PROJECTIONS.items():
                    yield (
                        f"{layer}.{attention}.{projection}",
                        f"model.{layer}.{foreign}.{foreign_projection}",
                    )
                yield f"{layer}.{attention}_connection.norm", f"model.{layer}.{foreign}_layer_norm"
            yield f"{layer}.feed_forward.inner", f"model.{layer}.fc1"
            yield f"{layer}.feed_forward.outer", f"model.{layer}.fc2"
            yield f"{layer}.feed_forward_connection.norm", f"model.{layer}.final_layer_norm"
        if settings["model.norm_position"] == "pre":
            yield f"{stack}.final_norm", f"model.{stack}.layer_norm"
