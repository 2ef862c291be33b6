"""Rules of keys and of combinations of keys: each rejects a value beyond its bound and accepts the
next.
"""

import math
import re

import pytest

from configs import base, rules
from transformer.config.keys import COMBINATIONS, declared_keys, flatten, validated_config
from transformer.config.tables import tables
from transformer.support.errors import UserError
from transformer.training.loss import TOKEN_LOSSES, label_smoothed

BASE = flatten(base.get_config())
KEYS = declared_keys()

# Values of the right type that no key can use.
UNUSABLE = {
    int: (-2, 2**32),
    float: (-0.1, math.inf, math.nan),
    str: ("a\nb",),
    tuple: ((1,), (("a.en", "url"),)),
}

# Changes to the base config that one combination rejects, and the keys and values that its message
# names.
MASKED = {"training.objective": "masked_lm", "data.target_language": ""}
MASKED |= {"training.eval_bleu": False, "checkpoint.best_metric": "loss"}
FREE = {"optimizer.name": "schedule_free_adamw", "optimizer.schedule": "constant"}
CTC = {"training.objective": "ctc", "decoding.strategy": "ctc", "training.label_smoothing": 0.0}
GUIDED = {
    "training.guided_heads": "6.8",
    "data.mixture": ("alignments=a",),
    "model.attention_implementation": "plain",
}
CANDIDATES = {
    "training.candidate_loss": "minimum_risk",
    "batch.plan": "groups",
    "batch.candidates": 4,
    "data.mixture": ("rewards=r",),
}
MUP = {
    "model.parameterization": "mup",
    "model.base_d_model": 128,
    "model.base_d_k": 16,
    "optimizer.schedule": "linear",
}
TREES = {"data.target_form": "tree", "decoding.well_formed": True}
IMPOSSIBLE_COMBINATIONS = (
    ({"model.num_heads": 7}, ("d_model=512", "num_heads=7", "d_k=None")),
    ({"model.d_model": 513, "model.num_heads": 1}, ("positions=sinusoidal", "d_model=513")),
    ({"model.num_key_heads": 3}, ("num_heads=8", "num_key_heads=3")),
    ({"model.num_key_heads": 16}, ("num_heads=8", "num_key_heads=16")),
    (
        {"model.positions": "rotary", "model.attention": "additive"},
        ("positions=rotary", "attention=additive"),
    ),
    (
        {"model.positions": "shaw", "model.attention": "additive"},
        ("positions=shaw", "attention=additive"),
    ),
    (
        {"model.positions": "t5", "model.decoder_self_attention": "ssru"},
        ("positions=t5", "attention=ssru"),
    ),
    (
        {"model.positions": "t5_per_layer", "model.decoder_self_attention": "average"},
        ("positions=t5_per_layer", "attention=average"),
    ),
    (
        {"model.share_embeddings": "inputs", "tokenizer.shared": False},
        ("share_embeddings=inputs", "shared=False"),
    ),
    ({"model.positions": "rotary", "model.d_k": 33}, ("positions=rotary", "d_k=33")),
    ({"model.positions": "rotary", "model.num_heads": 512}, ("num_heads=512", "d_k=None")),
    (
        {"model.positions": "learned", "model.max_positions": 306, "data.max_length": 307},
        ("max_positions=306", "data.max_length=307"),
    ),
    (
        {"model.positions": "learned", "model.max_positions": 305},
        ("max_positions=305", "max_extra_length=50"),
    ),
    (
        {"model.positions": "learned", "decoding.max_length_factor": 4.0},
        ("max_positions=1024", "max_length_factor=4.0"),
    ),
    (MUP | {"model.base_d_k": None}, ("parameterization=mup", "base_d_k=None")),
    (MUP | {"model.base_d_model": None}, ("parameterization=mup", "base_d_model=None")),
    (MUP | {"model.attention": "additive"}, ("parameterization=mup", "attention=additive")),
    (
        MUP | {"model.norm_position": "pre", "model.final_norm": False},
        ("parameterization=mup", "norm_position=pre", "final_norm=False"),
    ),
    (MUP | {"model.layer_drop": 0.1}, ("norm_position=post", "layer_drop=0.1", "final_norm=None")),
    (
        MUP | {"optimizer.schedule": "inverse_sqrt"},
        ("parameterization=mup", "schedule=inverse_sqrt"),
    ),
    (MUP | {"optimizer.name": "adafactor"}, ("parameterization=mup", "name=adafactor")),
    ({"data.target_language": ""}, ("objective=translation", "target_language=''")),
    ({"training.objective": "causal_lm"}, ("objective=causal_lm", "source_language=en")),
    (
        MASKED | {"tokenizer.shared": False, "model.share_embeddings": "target"},
        ("objective=masked_lm", "shared=False"),
    ),
    (MASKED | {"training.eval_bleu": True}, ("objective=masked_lm", "eval_bleu=True")),
    (
        MASKED | {"training.objective": "span_corruption", "tokenizer.subword_sampling": 0.1},
        ("objective=span_corruption", "subword_sampling=0.1", "shared=True", "source_tag="),
    ),
    (
        {"training.objective": "ctc", "training.label_smoothing": 0.0},
        ("objective=ctc", "strategy=beam"),
    ),
    ({"decoding.strategy": "ctc"}, ("objective=translation", "strategy=ctc")),
    (CTC | {"training.loss": "experimental"}, ("objective=ctc", "loss=experimental")),
    (CTC | {"training.label_smoothing": 0.1}, ("objective=ctc", "label_smoothing=0.1")),
    (
        CTC | {"model.positions": "learned", "model.max_positions": 767, "model.ctc_frames": 3},
        ("objective=ctc", "ctc_frames=3", "max_positions=767"),
    ),
    (CTC | {"batch.plan": "packed"}, ("objective=ctc", "plan=packed")),
    (MASKED | {"training.r_drop": 5.0}, ("objective=masked_lm", "r_drop=5.0")),
    (CTC | {"decoding.shortlist": 8}, ("objective=ctc", "shortlist=8")),
    (
        CTC | {"model.decoder_self_attention": "ssru"},
        ("objective=ctc", "decoder_self_attention=ssru"),
    ),
    (MASKED | {"model.decoder_start": "zero"}, ("objective=masked_lm", "decoder_start=zero")),
    ({"tokenizer.shared": False}, ("share_embeddings=all", "shared=False")),
    ({"data.source": "ids"}, ("source=ids", "kind=bpe")),
    ({"tokenizer.kind": "ids"}, ("source=tfds", "kind=ids")),
    ({"data.source": "ids", "tokenizer.kind": "ids", "data.context": 1}, ("context=1",)),
    ({"data.source": "ids", "tokenizer.kind": "ids", "data.source_tag": "7"}, ("source_tag=7",)),
    (
        {"tokenizer.kind": "word", "tokenizer.subword_sampling": 0.1},
        ("kind=word", "subword_sampling=0.1"),
    ),
    (
        {"tokenizer.kind": "pieces", "tokenizer.subword_sampling": 0.1},
        ("kind=pieces", "subword_sampling=0.1"),
    ),
    (
        {"tokenizer.kind": "char", "tokenizer.byte_fallback": True},
        ("kind=char", "byte_fallback=True"),
    ),
    ({"tokenizer.model_file": "a.model,b.model"}, ("model_file=a.model,b.model", "shared=True")),
    ({"batch.plan": "packed", "batch.packed_length": 255}, ("packed_length=255", "max_length=256")),
    ({"batch.tokens": 2047}, ("tokens=2047", "row_multiple=8", "max_length=256")),
    ({"batch.tokens": 2048, "batch.length_multiple": 96}, ("tokens=2048", "length_multiple=96")),
    (
        {"batch.plan": "packed", "batch.packed_length": 512, "batch.tokens": 4095},
        ("tokens=4095", "row_multiple=8", "packed_length=512"),
    ),
    ({"optimizer.weight_decay": 0.01}, ("name=adam", "weight_decay=0.01")),
    (FREE | {"optimizer.schedule": "cosine"}, ("name=schedule_free_adamw", "schedule=cosine")),
    (FREE | {"optimizer.beta1": 0.0}, ("name=schedule_free_adamw", "beta1=0.0")),
    (FREE | {"training.ema_decay": 0.5}, ("name=schedule_free_adamw", "ema_decay=0.5")),
    ({"training.steps": 3999, "training.eval_every": 100}, ("warmup_steps=4000", "steps=3999")),
    ({"training.eval_every": 100_001}, ("eval_every=100001", "steps=100000")),
    ({"decoding.shortlist": 8, "decoding.strategy": "sample"}, ("shortlist=8", "strategy=sample")),
    (
        {"decoding.coverage_penalty": 0.2, "decoding.strategy": "sample"},
        ("coverage_penalty=0.2", "strategy=sample"),
    ),
    ({"decoding.rerank": "run:1", "decoding.strategy": "mbr"}, ("rerank=run:1", "strategy=mbr")),
    ({"decoding.rerank": "run:1", "decoding.beam_size": 1}, ("rerank=run:1", "beam_size=1")),
    ({"decoding.rerank": "scorer:1"}, ("rerank=scorer:1", "scorer=")),
    (
        {"decoding.mbr_utility": "scorer", "decoding.strategy": "mbr"},
        ("mbr_utility=scorer", "scorer="),
    ),
    (
        {"decoding.shortlist": 8, "decoding.min_length": 2},
        ("shortlist=8", "min_length=2", "strategy=beam"),
    ),
    (
        {"data.mixture": ("weight=2",), "data.train_pairs": 9},
        ("mixture=('weight=2',)", "train_pairs=9"),
    ),
    (
        {"tokenizer.user_symbols": ("<a>",), "tokenizer.model_file": "m"},
        ("user_symbols=('<a>',)", "model_file=m"),
    ),
    (
        {"data.source": "ids", "tokenizer.kind": "ids", "tokenizer.user_symbols": ("<a>",)},
        ("user_symbols=('<a>',)", "kind=ids"),
    ),
    (
        {"decoding.mbr_utility": "bleu", "data.target_language": "zh-CN"},
        ("mbr_utility=bleu", "target_language=zh-CN"),
    ),
    (
        {"decoding.mbr_utility": "bleu", "data.target_language": "jpn"},
        ("mbr_utility=bleu", "target_language=jpn"),
    ),
    ({"tokenizer.user_symbols": ("<a>", "</s>")}, ("user_symbols=('<a>', '</s>')",)),
    ({"data.source_tag": "<pad>"}, ("source_tag=<pad>",)),
    (
        {
            "training.objective": "causal_lm",
            "data.source_language": "",
            "training.eval_bleu": False,
            "checkpoint.best_metric": "loss",
            "decoding.max_length_factor": 0.5,
        },
        ("objective=causal_lm", "max_length_factor=0.5"),
    ),
    ({"training.init_vocabulary": "own"}, ("init_vocabulary=own", "init_from=''")),
    ({"training.init_optimizer": True}, ("init_optimizer=True", "init_from=''")),
    (
        {
            "training.init_optimizer": True,
            "training.init_from": "runs/a",
            "training.init_skip": "encoder",
        },
        ("init_optimizer=True", "init_from=runs/a", "init_skip=encoder"),
    ),
    ({"data.context": 1, "decoding.shortlist": 8}, ("context=1", "shortlist=8")),
    (CTC | {"data.mixture": ("pair_weights=w",)}, ("objective=ctc", "mixture=('pair_weights=w',)")),
    (CTC | {"data.mixture": ("alignments=a",)}, ("objective=ctc", "mixture=('alignments=a',)")),
    ({"data.mixture": ("alignments=a",)}, ("mixture=('alignments=a',)", "guided_heads=''")),
    (GUIDED | {"data.mixture": ("weight=2",)}, ("guided_heads=6.8", "mixture=('weight=2',)")),
    (GUIDED | {"training.guided_heads": "6.9"}, ("guided_heads=6.9", "num_heads=8")),
    (GUIDED | {"training.guided_heads": "last"}, ("guided_heads=last",)),
    (
        GUIDED | {"model.attention_implementation": "auto"},
        ("guided_heads=6.8", "attention_implementation=auto"),
    ),
    (GUIDED | {"training.guided_heads": ","}, ("guided_heads=,",)),
    (GUIDED | {"tokenizer.kind": "word"}, ("mixture=('alignments=a',)", "kind=word")),
    (GUIDED | {"data.context": 1}, ("mixture=('alignments=a',)", "context=1")),
    (CTC | {"training.candidate_loss": "contrastive"}, ("candidate_loss=contrastive",)),
    (
        CANDIDATES | {"batch.plan": "buckets"},
        ("candidate_loss=minimum_risk", "plan=buckets", "mixture=('rewards=r',)"),
    ),
    (CANDIDATES | {"training.candidate_loss": "none"}, ("candidate_loss=none", "plan=groups")),
    (
        CANDIDATES | {"data.mixture": ("rewards=r", "train_split=b")},
        ("plan=groups", "mixture=('rewards=r', 'train_split=b')"),
    ),
    ({"data.mixture": ("rewards=r",)}, ("candidate_loss=none", "mixture=('rewards=r',)")),
    (CANDIDATES | {"training.r_drop": 5.0}, ("candidate_loss=minimum_risk", "r_drop=5.0")),
    (CANDIDATES | {"data.deduplicate": True}, ("candidate_loss=minimum_risk", "deduplicate=True")),
    (CANDIDATES | {"data.context": 1}, ("candidate_loss=minimum_risk", "context=1")),
    (CANDIDATES | {"data.mixture": ("rewards=r weight=2",)}, ("mixture=('rewards=r weight=2',)",)),
    (
        CANDIDATES | {"data.mixture": ("pair_weights=w rewards=r",)},
        ("mixture=('pair_weights=w rewards=r',)",),
    ),
    (CANDIDATES | {"batch.tokens": 8191}, ("tokens=8191", "candidates=4", "max_length=256")),
    ({"training.likelihood_weight": 0.1}, ("likelihood_weight=0.1", "candidate_loss=none")),
    (CTC | {"decoding.no_repeat_ngram": 2}, ("strategy=ctc", "no_repeat_ngram=2")),
    ({"decoding.well_formed": True}, ("well_formed=True", "target_form=text")),
    (TREES | {"decoding.shortlist": 50}, ("well_formed=True", "shortlist=50")),
    (TREES | CTC, ("well_formed=True", "strategy=ctc")),
    (TREES | {"decoding.min_length": 3}, ("well_formed=True", "min_length=3")),
    (TREES | {"decoding.banned": "a"}, ("well_formed=True", "banned=a")),
    (TREES | {"decoding.max_length_factor": 0.9}, ("well_formed=True", "max_length_factor=0.9")),
    (TREES | {"decoding.max_extra_length": 1}, ("well_formed=True", "max_extra_length=1")),
    (TREES | {"data.source_tag": "<x>"}, ("well_formed=True", "source_tag=<x>")),
    (TREES | {"data.context": 1}, ("well_formed=True", "context=1")),
    (TREES | {"tokenizer.kind": "word"}, ("well_formed=True", "kind=word")),
)

# Changes at the bounds of the combinations above.
POSSIBLE_COMBINATIONS = (
    TREES | {"decoding.max_length_factor": 1.0, "decoding.max_extra_length": 2},
    TREES | {"decoding.strategy": "sample"},
    {"decoding.mbr_utility": "bleu", "data.target_language": "bos_Latn"},  # Bosnian; bo is Tibetan
    {"model.num_heads": 7, "model.d_k": 64, "model.d_v": 32},
    {"model.d_model": 513, "model.num_heads": 1, "model.positions": "learned"},
    {"model.positions": "learned", "model.max_positions": 306, "data.max_length": 306},
    {
        "model.positions": "rotary",
        "model.d_model": 513,
        "model.num_heads": 1,
        "model.d_k": 32,
        "model.d_v": 513,
    },
    {"tokenizer.shared": False, "model.share_embeddings": "target"},
    {"data.source": "ids", "tokenizer.kind": "ids"},
    {"data.source": "synthetic"},
    {"model.decoder_self_attention": "ssru", "model.positions": "rotary"},
    {"model.num_key_heads": 8, "model.positions": "alibi", "model.attention": "additive"},
    MUP | {"optimizer.name": "muon", "model.share_embeddings": "none"},
    MUP | {"model.layer_drop": 0.1, "model.final_norm": True, "model.norm_position": "pre"},
    MASKED | {"data.source": "synthetic"},
    CTC,
    {"tokenizer.model_file": "a,b", "tokenizer.shared": False, "model.share_embeddings": "none"},
    CANDIDATES | {"batch.tokens": 8192, "training.likelihood_weight": 0.1},
    CANDIDATES | {"training.candidate_loss": "contrastive", "training.accumulation": 2},
    {"batch.tokens": 2048},
    {"batch.tokens": 2304, "batch.length_multiple": 96},
    GUIDED,
    {"batch.plan": "packed", "batch.packed_length": 256},
    {"optimizer.name": "adamw", "optimizer.weight_decay": 0.01},
    FREE | {"optimizer.weight_decay": 0.01},
    {"training.steps": 4000},
    {"training.init_optimizer": True, "training.init_from": "runs/a"},
    {"training.eval_bleu": False, "checkpoint.best_metric": "loss"},
    {"decoding.shortlist": 8},
    {
        "decoding.strategy": "sample",
        "decoding.banned": "phrases.txt",
        "decoding.banned_pieces": ("a",),
    },
)


@pytest.fixture(autouse=True)
def another_loss(monkeypatch):
    monkeypatch.setitem(TOKEN_LOSSES, "experimental", label_smoothed)


def error_of(changes: dict) -> str:
    with pytest.raises(UserError) as caught:
        validated_config(BASE | changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_listed_key_has_a_table():
    declared = flatten(base.get_keys())
    assert {name for name, key in declared.items() if key.rule is rules.LISTED} == set(tables())


def test_every_default_obeys_its_rule():
    assert all(key.is_optional or key.rule.accepts(key.default) for key in KEYS.values())
    assert flatten(validated_config(BASE)) == BASE


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.type is not bool])
def test_an_unusable_value_is_named_with_the_rule(name):
    for value in UNUSABLE[KEYS[name].type]:
        message = error_of({name: value})
        assert message.startswith(f"config.{name}=")
        assert f"must be {KEYS[name].rule.description}" in message


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        (rules.at_least(2), [2, 2**31 - 1], [1, 2**31]),
        (rules.above(0.5), [0.6], [0.5, math.inf, math.nan]),
        (rules.between(0.98, 1.0), [0.98, 1.0], [0.97, 1.01, math.nan]),
        (rules.either(-1, rules.at_least(1)), [-1, 1], [0, -2]),
        (rules.one_of("bpe", "word"), ["bpe"], ["BPE", "bp", ""]),
        (KEYS["model.activation"].rule, ["relu"], ["rleu"]),
        (rules.PROBABILITY, [0.0, 0.99], [1.0, -0.01, math.nan]),
        (rules.FRACTION, [0.01, 1.0], [0.0, 1.01, math.nan]),
        (rules.SEED, [0, 2**32 - 1], [-1, 2**32]),
        (rules.TEXT, ["", "a b"], ["a\nb", "a\0"]),
        (rules.NONEMPTY_TEXT, ["a"], ["", " ", "a\nb"]),
        (rules.LANGUAGE, ["", "en"], ["e n", "\n"]),
        (
            rules.CHANGES,
            ["", "2:1", "20:2,40:1"],
            ["1:2", "5:0", "5:2,5:3", "5:2,4:3", "5:2,", "5", "5:a", "5:2 "],
        ),
        (rules.TEXTS, [(), ("a b", "")], [("a\nb",), (1,)]),
        (rules.WORDS, [(), ("<a>",)], [("a b",), ("",), (1,)]),
        (
            rules.DOWNLOADS,
            [(), (("a.en", "url", "0f"),)],
            [(("a.en", "url"),), (("a.en", "url", "0f\n"),), ("a",)],
        ),
    ],
)
def test_a_rule_accepts_its_bounds_and_rejects_what_lies_beyond(rule, accepted, rejected):
    assert all(map(rule.accepts, accepted)) and not any(map(rule.accepts, rejected))


@pytest.mark.parametrize("name", KEYS)
def test_a_value_of_another_type_is_rejected(name):
    assert error_of({name: b"bytes"}).startswith(f"config.{name}=b'bytes': must be ")


@pytest.mark.parametrize("name", [name for name, value in BASE.items() if value is not None])
def test_only_optional_keys_can_be_none(name):
    assert error_of({name: None}).startswith(f"config.{name}=None: must be ")


@pytest.mark.parametrize(
    ("name", "value"), [("model.d_model", True), ("training.eval_bleu", 1), ("seed", 1.5)]
)
def test_types_are_exact(name, value):
    assert error_of({name: value}).startswith(f"config.{name}={value}: must be ")


@pytest.mark.parametrize(
    ("name", "value", "suggestion"),
    [
        ("model.activation", "rleu", "relu"),
        ("model.positions", "sinusoidal_concat", "sinusoidal_concatenated"),
        ("optimizer.name", "adam_w", "adamw"),
    ],
)
def test_the_error_suggests_the_nearest_name(name, value, suggestion):
    assert error_of({name: value}).endswith(f"did you mean {suggestion}?")


@pytest.mark.parametrize(("changes", "named"), IMPOSSIBLE_COMBINATIONS)
def test_an_impossible_combination_is_named(changes, named):
    message = error_of(changes)
    for value in named:
        assert value in message


def test_every_combination_has_a_test():
    messages = [error_of(changes) for changes, _ in IMPOSSIBLE_COMBINATIONS]
    for advice in COMBINATIONS:
        assert any(message.endswith(advice) for message in messages)


@pytest.mark.parametrize("changes", POSSIBLE_COMBINATIONS)
def test_a_possible_combination_is_accepted(changes):
    validated_config(BASE | changes)


def test_an_unknown_key_is_named_with_the_nearest_keys():
    message = error_of({"model.d_modle": 3})
    assert re.fullmatch(
        r"config\.model\.d_modle=3: there is no key model\.d_modle; did you mean model\.d_model, "
        r"[\w.]+, [\w.]+\?",
        message,
    )
    assert "did you mean model.d_model" in error_of({"modle.d_model": 3})
    assert error_of({"zzzzzz": 3}).endswith("configs/base.py explains every key")


def test_missing_keys_have_their_defaults():
    without = {name: value for name, value in BASE.items() if name != "model.d_ff"}
    assert validated_config(without).model.d_ff == BASE["model.d_ff"]
