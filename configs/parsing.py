"""English constituency parsing: the two Transformers of the paper's Table 4 (section 6.3), and a
miniature for two CPU cores.

Data:      python -m scripts.get_data --output=data/wsj --trees=$(echo wsj/{02..21} | tr " " ,)
               --validation=wsj/22 --test=wsj/23
           semi_supervised also needs silver trees in data/silver; docs/parsing.md makes some.
           mini: the sample of the Penn Treebank that NLTK distributes, in data/wsj.
Command:   python -m transformer.train --config=configs/parsing.py:wsj --workdir=runs/wsj
           python -m transformer.evaluate --workdir=runs/wsj --split=test
Hardware:  wsj, semi_supervised: no run of ours yet. mini: 15 minutes on two CPU cores with AMX.
Expect:    the paper's F1 on section 23 (`bracket_f1`): wsj 91.3, semi_supervised 92.7.
           mini: 79.1 +- 0.5 on section 22 (three seeds).

The paper gives 4 layers, d_model = 1024, the sizes of the vocabularies, beam size 21, alpha = 0.3
and outputs of up to input length + 300. Section 22 chose dropout and learning rate, which the paper
does not print: here they are those of tensor2tensor's `transformer_parsing_base` and
`transformer_parsing_big`. The number of steps is open too. All else is as in the base model.
"""

import ml_collections

from configs import base
from configs.rules import choose

# The labels of the Penn Treebank, and the leaves of linearized trees. A label that is missing here
# becomes several tokens.
LABELS = (
    "ADJP ADVP CONJP FRAG INTJ LST NAC NP NX PP PRN PRT QP RRC S SBAR SBARQ SINV SQ UCP VP WHADJP "
    "WHADVP WHNP WHPP X"
)
LEAVES = ("XX", ",", ":", "``", "''", ".")
# U+2581 is the space before a symbol, so that each symbol is one token.
SYMBOLS = tuple(
    f"\u2581{symbol}"
    for symbol in (
        *(f"({label}" for label in LABELS.split()),
        *(f"){label}" for label in LABELS.split()),
        *LEAVES,
    )
)


def wsj() -> ml_collections.ConfigDict:
    """Trained on sections 02 to 21 of the Wall Street Journal: 40,000 sentences."""
    config = base.get_config()
    config.model.num_layers = 4
    config.model.d_model = 1024
    config.model.dropout = 0.2  # tensor2tensor
    config.model.attention_dropout = 0.2  # tensor2tensor

    config.data.source = "text"
    config.data.name = "wsj"
    config.data.path = "data/wsj"
    config.data.target_language = "trees"
    config.data.target_form = "tree"
    config.data.max_length = 512  # tensor2tensor
    config.tokenizer.vocab_size = 16_000
    config.tokenizer.user_symbols = SYMBOLS

    config.optimizer.learning_rate = 0.5  # tensor2tensor: half of the base model's
    config.optimizer.warmup_steps = 16_000  # tensor2tensor
    # Sentences whose output is no tree count as zero here, and are left out of bracket_f1.
    config.checkpoint.best_metric = "bracket_f1_with_errors"
    config.decoding.beam_size = 21
    config.decoding.length_penalty = 0.3
    config.decoding.max_extra_length = 300
    config.decoding.max_source_length = 512
    return config


def semi_supervised() -> ml_collections.ConfigDict:
    """Also trained on 17 million sentences that other parsers have parsed, in the paper."""
    config = wsj()
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.1
    config.data.mixture = ("label=gold path=data/wsj", "label=silver path=data/silver")
    config.tokenizer.vocab_size = 32_000
    config.optimizer.warmup_steps = 4000
    return config


def mini() -> ml_collections.ConfigDict:
    """A small model for 3,580 trees, with the settings of configs/multi30k.py for little data."""
    config = wsj()
    config.model.num_decoder_layers = 3
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.norm_position = "pre"
    config.model.positions = "rotary"
    config.model.share_embeddings = "target"
    config.model.attention_dropout = 0.0

    # So few trees do not teach attention to read one word after the other: a head gets the links.
    config.data.mixture = ("label=gold alignments=train.links",)
    config.training.guided_heads = "2.1"
    config.training.guided_weight = 0.5
    config.model.attention_implementation = "plain"
    config.data.max_length = 160  # leaves out sentences of more than about 60 words
    config.tokenizer.vocab_size = 2000
    # with 2560 tokens the perplexity after 300 updates is no better, and they take twice as long
    config.batch.tokens = 1280
    config.batch.plan = "packed"
    config.batch.packed_length = 160
    config.batch.length_multiple = 1  # of validation
    config.batch.max_buckets = 3  # of validation

    config.optimizer.name = "muon"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 7e-3
    config.optimizer.weight_decay = 0.1
    config.optimizer.warmup_steps = 200
    config.training.steps = 3600  # 19 epochs
    config.training.log_every = 50
    config.training.eval_every = 900
    config.checkpoint.every = 50
    config.checkpoint.keep = 10
    config.decoding.well_formed = True
    # Trees of the Treebank are shorter than this; 300 tokens more make each step slower.
    config.decoding.max_length_factor = 2.0
    config.decoding.max_extra_length = 40
    config.decoding.max_source_length = 256
    return config


ROWS = {"wsj": wsj, "semi_supervised": semi_supervised, "mini": mini}


def get_config(row: str = "") -> ml_collections.ConfigDict:
    return choose("row", row, ROWS)()
