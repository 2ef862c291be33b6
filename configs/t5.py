"""T5 1.1 (Raffel et al. 2020) on WMT14 English-German, with its authors' settings of fine-tuning.

Data:      python -m scripts.get_data --tfds=wmt14_translate/de-en --output=data/tfds
Command:   python -m transformer.train --config=configs/t5.py:small --workdir=runs/t5
               --config.data.path=data/tfds
           python -m scripts.plan --config=configs/t5.py:large --device=h100
Sizes:     small, base, large and xl, which are also those of Flan-T5
Hardware:  no run of ours. A run from random parameters is only a baseline; docs/interop.md
           fine-tunes an imported model.
Expect:    a model that scripts.export --format=huggingface writes as T5ForConditionalGeneration.
"""

import ml_collections

from configs import base
from configs.rules import choose

# d_model, d_ff, layers of each stack, and heads, which have a width of 64 in all sizes.
SIZES = {
    "small": (512, 1024, 8, 6),
    "base": (768, 2048, 12, 12),
    "large": (1024, 2816, 24, 16),
    "xl": (2048, 5120, 24, 32),
}


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """Returns the configuration of a size. Raises UnknownName for an unknown size."""
    d_model, d_ff, num_layers, num_heads = choose("size", size, SIZES)
    config = base.get_config()
    config.model.update(d_model=d_model, d_ff=d_ff, num_layers=num_layers, num_heads=num_heads)
    config.model.d_k = 64
    config.model.d_v = 64
    config.model.positions = "t5"
    config.model.attention = "dot_product_unscaled"
    config.model.activation = "geglu"
    config.model.feed_forward_bias = False
    config.model.norm = "rms_norm"
    config.model.norm_position = "pre"
    config.model.share_embeddings = "inputs"
    config.model.attention_dropout = 0.1
    config.model.activation_dropout = 0.1
    config.model.final_dropout = 0.1

    config.tokenizer.kind = "unigram"
    config.tokenizer.vocab_size = 32_128
    config.batch.tokens = 65_536  # 128 sequences of 512 tokens
    config.optimizer.name = "adafactor"
    config.optimizer.schedule = "constant"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 0
    config.training.label_smoothing = 0.0
    return config
