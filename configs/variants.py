"""Models that other codebases call the Transformer, each as its differences from the paper's base
or big model.

Data:      python -m scripts.get_data --tfds=wmt14_translate/de-en --output=data/tfds
           wmt17_translate/de-en for flax_wmt and algoperf_wmt; annotated_transformer downloads
           Multi30k; no path.
Command:   python -m transformer.train --config=configs/variants.py:tensor2tensor_base
               --workdir=runs/tensor2tensor --config.data.path=data/tfds

Each function names its source, and the score that was reported with it. docs/paper.md lists what no
key can switch.
"""

import ml_collections

from configs import base, big, multi30k
from configs.rules import choose


def tensor2tensor_base() -> ml_collections.ConfigDict:
    """tensor2tensor's later base model: `transformer_base_v3` in
    tensor2tensor/models/transformer.py.

    The batch is 4,096 subwords on each of 8 GPUs. The paper's own settings are
    `transformer_base_v1`.
    """
    config = base.get_config()
    config.model.norm_position = "pre"
    config.model.attention_dropout = 0.1
    config.model.activation_dropout = 0.1
    config.model.positions = "sinusoidal_marian"
    config.tokenizer.vocab_size = 2**15  # of the problem translate_ende_wmt32k
    config.batch.tokens = 8 * 4096
    config.optimizer.learning_rate = 2.0
    config.optimizer.warmup_steps = 8000
    config.optimizer.beta2 = 0.997
    return config


def annotated_transformer() -> ml_collections.ConfigDict:
    """The Annotated Transformer on Multi30k, German to English: harvardnlp/annotated-transformer.

    Eight epochs in batches of 32 pairs, padded to 72, with an update every 10 batches. Its schedule
    counts batches (warm-up 3000, factor 1); the same rates by updates have a tenth of the warm-up
    and 10^-0.5 as factor. Words are spaCy's there and separated by spaces here.
    """
    config = base.get_config()
    config.model.norm_position = "pre"
    config.model.attention_dropout = 0.1
    config.model.activation_dropout = 0.1
    config.model.attention_bias = True
    config.model.share_embeddings = "none"
    config.model.output_bias = True
    config.model.dtype = "float32"

    config.data = multi30k.get_config().data
    config.data.source_language = "de"
    config.data.target_language = "en"
    config.data.max_length = 72
    config.tokenizer.kind = "word"
    config.tokenizer.shared = False
    config.batch.tokens = 32 * 72
    config.batch.length_multiple = 72
    config.batch.max_buckets = 1

    config.optimizer.learning_rate = 10**-0.5
    config.optimizer.warmup_steps = 300
    config.training.accumulation = 10
    config.training.steps = 725
    config.training.label_smoothing_support = "others"
    config.training.eval_every = 91  # an epoch
    config.checkpoint.every = 91
    config.decoding.beam_size = 1
    return config


def fairseq_scaling_nmt_big() -> ml_collections.ConfigDict:
    """The big model of "Scaling Neural Machine Translation" (Ott et al. 2018) with fairseq's large
    batches.

    BLEU on newstest2014 is 29.3, tokenized with compounds split, and 28.6 by sacreBLEU. From
    fairseq's examples/scaling_nmt/README.md: 8 GPUs, 3,584 tokens on each, 16 batches for an
    update, a peak rate of 0.001. The length of about 24,000 updates is from fairseq's issue 1976,
    and Adam's epsilon is PyTorch's default.
    """
    config = big.get_config()
    config.model.attention_bias = True
    config.model.layer_norm_epsilon = 1e-5
    config.model.positions = "sinusoidal_marian"
    config.tokenizer.vocab_size = 2**15
    config.batch.tokens = 8 * 3584
    config.optimizer.learning_rate = (
        0.001 * (config.model.d_model * config.optimizer.warmup_steps) ** 0.5
    )
    config.optimizer.epsilon = 1e-8
    config.training.accumulation = 16
    config.training.steps = 24_000
    return config


def flax_wmt() -> ml_collections.ConfigDict:
    """Flax's example on WMT17 German-English: examples/wmt/configs/default.py, with 8 devices.

    Its README reports 25.55 BLEU after 24 minutes and 32.87 after 13 hours 18 minutes on a TPU
    v3-8, by its own implementation of BLEU. It tests on newstest2014; here the splits are those of
    WMT17.
    """
    config = big.get_config()
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.activation_dropout = 0.1
    config.model.norm_position = "pre"
    config.model.positions = "sinusoidal_marian"
    config.data.name = "wmt17_translate/de-en"
    config.data.source_language = "de"
    config.data.target_language = "en"
    config.tokenizer.vocab_size = 32_000
    config.batch.plan = "packed"
    config.batch.tokens = 8 * 32 * config.batch.packed_length
    config.optimizer.warmup_steps = 1000
    config.optimizer.learning_rate = (
        0.002 * (config.model.d_model * config.optimizer.warmup_steps) ** 0.5
    )
    config.training.steps = 100_000
    return config


def algoperf_wmt() -> ml_collections.ConfigDict:
    """The WMT workload of AlgoPerf in JAX: mlcommons/algorithmic-efficiency,
    algoperf/workloads/wmt.

    A tuned run reaches 30.85 BLEU on validation in 10 to 12 hours on 8 V100 GPUs. Training
    algorithms compete on this workload, so it prescribes no optimizer; this configuration has that
    of `flax_wmt`.
    """
    config = flax_wmt()
    config.model.d_ff = 1024
    config.batch.tokens = 128 * config.batch.packed_length
    config.training.steps = 133_333
    return config


def deep_encoder() -> ml_collections.ConfigDict:
    """Twelve layers in the encoder and one in the decoder, which decodes faster: "12-1" of Kasai et
    al. (2021).

    From the README of jungokasai/deep-shallow: BLEU is 26.9 without distillation and 28.3 with it;
    16 GPUs, 4,096 tokens on each, a peak rate of 0.0005, dropout 0.2.
    """
    config = base.get_config()
    config.model.num_layers = 12
    config.model.num_decoder_layers = 1
    config.model.dropout = 0.2
    config.model.attention_bias = True
    config.model.positions = "sinusoidal_marian"
    config.batch.tokens = 16 * 4096
    config.optimizer.learning_rate = (
        0.0005 * (config.model.d_model * config.optimizer.warmup_steps) ** 0.5
    )
    config.training.steps = 300_000
    return config


VARIANTS = {
    function.__name__: function
    for function in (
        tensor2tensor_base,
        annotated_transformer,
        fairseq_scaling_nmt_big,
        flax_wmt,
        algoperf_wmt,
        deep_encoder,
    )
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    return choose("variant", variant, VARIANTS)()
