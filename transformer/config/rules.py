"""What the value of each configuration key may be. `config.validate` applies the table."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """What a key's value, of the right type, must be; None is checked with the type."""

    allowed: str
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def at_least(least: int | float) -> Rule:
    """And not so large that arrays of 32 bits could not count to it."""
    return Rule(f"at least {least} and below 2^31", lambda value: least <= value < 2**31)


def above(bound: int | float) -> Rule:
    return Rule(f"above {bound}", lambda value: bound < value < math.inf)


def between(least: int | float, most: int | float) -> Rule:
    return Rule(f"from {least} to {most}", lambda value: least <= value <= most)


def one_of(*choices: str) -> Rule:
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices, choices)


def one_line(value: str) -> bool:
    """Whether it could be the name of a file, as most texts are; such a name may have bytes that are not UTF-8."""
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return "\n" not in value and "\0" not in value


def triples_of_text(value: tuple) -> bool:
    triples = all(isinstance(item, tuple) and [type(part) for part in item] == [str, str, str] for item in value)
    return triples and all(one_line(part) for item in value for part in item)


TEXT = Rule("text of one line", one_line)
SOME_TEXT = Rule("text of one line, not empty", lambda value: value.strip() != "" and one_line(value))
SWITCH = Rule("true or false", lambda value: True)
PROBABILITY = Rule("at least 0 and below 1", lambda value: 0 <= value < 1)
SEED = between(0, 2**32 - 1)
DEVICES = at_least(1)

RULES = {
    "seed": SEED,
    "model.num_layers": at_least(1),
    "model.num_decoder_layers": at_least(1),
    "model.d_model": at_least(1),
    "model.d_ff": at_least(1),
    "model.num_heads": at_least(1),
    "model.d_k": at_least(1),
    "model.d_v": at_least(1),
    "model.dropout": PROBABILITY,
    "model.attention_dropout": PROBABILITY,
    "model.activation_dropout": PROBABILITY,
    "model.activation": one_of("relu", "gelu", "glu", "geglu", "swiglu"),
    "model.norm_position": one_of("post", "pre"),
    "model.final_norm": SWITCH,
    "model.layer_norm_epsilon": above(0),
    "model.attention": one_of("dot_product", "additive"),
    "model.attention_bias": SWITCH,
    "model.positions": one_of("sinusoidal", "sinusoidal_concatenated", "learned", "rotary"),
    "model.max_positions": at_least(1),
    "model.share_embeddings": one_of("all", "target", "none"),
    "model.source_vectors": TEXT,
    "model.target_vectors": TEXT,
    "model.dtype": one_of("bfloat16", "float32"),
    "data.source": one_of("tfds", "text", "ids", "synthetic"),
    "data.name": SOME_TEXT,
    "data.path": TEXT,
    "data.downloads": Rule("a tuple of (file name, URL, sha256) triples", triples_of_text),
    "data.source_language": SOME_TEXT,
    "data.target_language": SOME_TEXT,
    "data.train_split": SOME_TEXT,
    "data.valid_split": SOME_TEXT,
    "data.test_split": SOME_TEXT,
    "data.max_length": at_least(2),
    "data.max_length_ratio": Rule("0 or at least 1", lambda value: value == 0 or 1 <= value < math.inf),
    "data.deduplicate": SWITCH,
    "data.synthetic_examples": at_least(1),
    "data.synthetic_maximum": between(999, 999_999_999),
    "data.cache_dir": TEXT,
    "data.workers": at_least(0),
    "data.prefetch": at_least(1),
    "data.wait_seconds": at_least(1),
    "tokenizer.kind": one_of("bpe", "unigram", "word", "char", "ids"),
    "tokenizer.vocab_size": at_least(5),
    "tokenizer.shared": SWITCH,
    "tokenizer.model_file": TEXT,
    "tokenizer.normalization": one_of("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"),
    "tokenizer.character_coverage": between(0.98, 1.0),
    "tokenizer.byte_fallback": SWITCH,
    "tokenizer.sample_size": at_least(1),
    "tokenizer.sampling": PROBABILITY,
    "batch.tokens": at_least(1),
    "batch.plan": one_of("buckets", "packed"),
    "batch.max_buckets": at_least(1),
    "batch.row_multiple": at_least(1),
    "batch.packed_length": at_least(2),
    "optimizer.name": one_of("adam", "adamw", "adafactor", "muon"),
    "optimizer.schedule": one_of("inverse_sqrt", "constant", "linear", "cosine"),
    "optimizer.learning_rate": above(0),
    "optimizer.warmup_steps": at_least(0),
    "optimizer.beta1": PROBABILITY,
    "optimizer.beta2": PROBABILITY,
    "optimizer.epsilon": above(0),
    "optimizer.weight_decay": at_least(0),
    "optimizer.clip_norm": at_least(0),
    "training.steps": at_least(1),
    "training.accumulation": at_least(1),
    "training.label_smoothing": PROBABILITY,
    "training.label_smoothing_support": one_of("uniform", "others"),
    "training.r_drop": at_least(0),
    "training.ema_decay": PROBABILITY,
    "training.log_every": at_least(1),
    "training.eval_every": at_least(1),
    "training.eval_bleu": SWITCH,
    "training.eval_sentences": at_least(0),
    "training.eval_beam_size": at_least(1),
    "training.max_skipped": at_least(1),
    "training.max_rollbacks": at_least(0),
    "training.stall_seconds": at_least(0),
    "training.patience": at_least(0),
    "checkpoint.every": at_least(1),
    "checkpoint.keep": at_least(1),
    "checkpoint.keep_every": at_least(0),
    "checkpoint.best_metric": one_of("bleu", "loss"),
    "decoding.strategy": one_of("beam", "sample"),
    "decoding.beam_size": at_least(1),
    "decoding.length_penalty": at_least(0),
    "decoding.max_extra_length": at_least(0),
    "decoding.max_source_length": at_least(2),
    "decoding.batch_tokens": at_least(1),
    "decoding.temperature": above(0),
    "decoding.forbid_unk": SWITCH,
    "decoding.top_k": at_least(0),
    "decoding.top_p": Rule("above 0 and at most 1", lambda value: 0 < value <= 1),
    "decoding.seed": SEED,
    "mesh.data": Rule("-1 or at least 1", lambda value: value == -1 or value >= 1),
    "mesh.fsdp": DEVICES,
    "mesh.tensor": DEVICES,
}
