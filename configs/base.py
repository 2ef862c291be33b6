"""The paper's base model on WMT14 English-German: every key there is, its meaning and its unit.

What it reproduces: Vaswani et al. 2017, Table 2, "Transformer (base model)", BLEU 27.3 on newstest2014
(tokenised, compound-split; see the README for what sacreBLEU makes of it).
Command:   python -m transformer.train --config=configs/base.py --workdir=runs/base
Hardware:  the paper used 8 P100 GPUs for 12 hours; any JAX device works, `config.mesh` spreads the run.

Every other config starts from this one and sets its differences. No default lives anywhere else.
A key whose comment says "None:" is unset by default and says what unset means.
"""

import ml_collections
from ml_collections.config_dict import placeholder


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.seed = 0  # parameters, dropout, data order and subword sampling are functions of it

    config.model = model = ml_collections.ConfigDict()
    model.num_layers = 6  # layers of the encoder, and of the decoder unless the next key is set
    model.num_decoder_layers = placeholder(int)  # None: as many as num_layers
    model.d_model = 512  # width of the residual stream and of the embeddings
    model.d_ff = 2048  # inner width of the feed-forward networks
    model.num_heads = 8  # attention heads
    model.d_k = placeholder(int)  # width of a head's queries and keys; None: d_model / num_heads
    model.d_v = placeholder(int)  # width of a head's values; None: d_model / num_heads
    model.dropout = 0.1  # on embeddings + positions and on every sub-layer's output (section 5.4)
    model.attention_dropout = 0.0  # on attention weights (not in the paper; tensor2tensor later used 0.1)
    model.activation_dropout = 0.0  # on the feed-forward networks' inner activations (likewise)
    model.activation = "relu"  # relu | gelu | glu | geglu | swiglu; the last three are gated: one more matrix
    model.norm_position = "post"  # post: LayerNorm(x + f(x)), as published | pre: x + f(LayerNorm(x))
    model.final_norm = placeholder(bool)  # a LayerNorm after each stack; None: with pre-norm only
    model.layer_norm_epsilon = 1e-6  # added to the variance in LayerNorm
    model.attention = "dot_product"  # dot_product: scaled by 1/sqrt(d_k) | additive: v . tanh(q + k)
    model.attention_bias = False  # biases on the four attention projections
    # sinusoidal: sin, cos interleaved | sinusoidal_concatenated | learned: these are added to the embeddings | rotary:
    # queries and keys of self-attention are turned instead (Su et al. 2021)
    model.positions = "sinusoidal"
    model.max_positions = 1024  # rows of the table of learned positions; the others have no limit
    model.share_embeddings = "all"  # all: source, target and logits | target: target and logits | none
    model.source_vectors = ""  # word2vec text file to initialise source embeddings from; "": random
    model.target_vectors = ""  # likewise for target embeddings
    model.dtype = "bfloat16"  # of products and activations: bfloat16 | float32; all else is float32

    config.data = data = ml_collections.ConfigDict()
    data.source = "tfds"  # tfds | text: parallel text files | ids: pairs of integer sequences | synthetic: numbers
    data.name = "wmt14_translate/de-en"  # tfds: dataset, with its config; otherwise only a name for logs
    data.path = ""  # tfds: its data_dir ("": TFDS's own); text, ids: the folder with STEM.LANG[.gz] files
    data.downloads = ()  # text, ids: (file name, URL, sha256) triples, fetched when `path` is empty
    data.source_language = "en"  # language code: file ending, TFDS feature, and what BLEU's tokeniser is told
    data.target_language = "de"  # likewise
    data.train_split = "train"  # tfds: a split expression such as train[:90%]; text, ids: STEM or STEM+STEM
    data.valid_split = "validation"  # likewise: what selects checkpoints
    data.test_split = "test"  # likewise: read by `transformer.evaluate` alone
    data.max_length = 256  # pieces on either side, end-of-sentence included; longer training pairs are dropped
    data.max_length_ratio = 0.0  # longer side over shorter, in pieces, above which a training pair is dropped; 0: off
    data.deduplicate = False  # drop training pairs seen before
    data.synthetic_examples = 100_000  # synthetic: training pairs; each held-out split has a hundredth, at least 200
    data.synthetic_maximum = 999_999_999  # synthetic: the largest number spelled out, from 999 on
    data.cache_dir = ""  # of all that is kept between runs; "": transformer in $XDG_CACHE_HOME or ~/.cache
    data.workers = 0  # processes that prepare the corpus; 0: as many as cores, or one if it is small
    data.prefetch = 4  # batches made ready ahead of the step
    data.wait_seconds = 7200  # how long to wait for another process that prepares data, before giving up

    config.tokenizer = tokenizer = ml_collections.ConfigDict()
    tokenizer.kind = "bpe"  # bpe | unigram | word | char; ids: for data.source = ids
    tokenizer.vocab_size = 37_000  # pieces, the four special ones included; a ceiling for word, char and ids
    tokenizer.shared = True  # one vocabulary for both languages; model.share_embeddings = all needs it
    tokenizer.model_file = ""  # a ready SentencePiece .model, of any size ("SOURCE,TARGET" unless shared); "": train
    tokenizer.normalization = "nmt_nfkc"  # SentencePiece's rule: nmt_nfkc | nfkc | nmt_nfkc_cf | nfkc_cf | identity
    tokenizer.character_coverage = 1.0  # share of characters the vocabulary must cover
    tokenizer.byte_fallback = False  # spell unknown characters as bytes instead of <unk>
    tokenizer.sample_size = 5_000_000  # sentences a side it is trained on at most, drawn by a fixed rule
    tokenizer.sampling = 0.0  # subword regularisation in training: BPE-dropout rate, or unigram's alpha; 0: off

    config.batch = batch = ml_collections.ConfigDict()
    batch.tokens = 25_000  # the most padded positions a global batch may have on either side (section 5.1)
    batch.plan = "buckets"  # buckets: similar lengths together, padded | packed: several sentences a row
    batch.max_buckets = 12  # buckets: how many (rows, source, target) shapes there may be
    batch.row_multiple = 8  # rows of a batch are a multiple of it; data x fsdp devices, of all hosts, must divide it
    batch.packed_length = 256  # packed: positions of a row on either side, at least data.max_length

    config.optimizer = optimizer = ml_collections.ConfigDict()
    optimizer.name = "adam"  # adam | adamw | adafactor | muon
    optimizer.schedule = "inverse_sqrt"  # the paper's, section 5.3 | constant | linear | cosine, all with warm-up
    optimizer.learning_rate = 1.0  # inverse_sqrt: factor on d_model^-0.5 min(t^-0.5, t w^-1.5); others: the peak
    optimizer.warmup_steps = 4000  # steps of linear warm-up
    optimizer.beta1 = 0.9  # decay of Adam's first moment (muon's is 0.95, on matrices)
    optimizer.beta2 = 0.98  # decay of Adam's second moment
    optimizer.epsilon = 1e-9  # added to Adam's denominator, and to the norm that muon divides a matrix by
    optimizer.weight_decay = 0.0  # adamw, adafactor, muon: decoupled, times the rate; on all matrices, embeddings too
    optimizer.clip_norm = 0.0  # global gradient norm above which gradients are scaled down; 0: off

    config.training = training = ml_collections.ConfigDict()
    training.steps = 100_000  # optimizer updates
    training.accumulation = 1  # batches whose gradients are summed for one update
    training.label_smoothing = 0.1  # probability mass taken from the truth (section 5.4)
    training.label_smoothing_support = "uniform"  # uniform: over all V entries | others: over all but truth and padding
    # R-Drop (Liang et al. 2021): weight of the divergence between two passes of each batch that differ in dropout, 5 in
    # that paper; not in the loss that is reported; a step then costs twice as much; 0: one pass
    training.r_drop = 0.0
    training.ema_decay = 0.0  # exponential moving average of parameters, used to validate and decode; 0: off
    training.log_every = 100  # steps between log lines
    training.eval_every = 2500  # steps between validations
    training.eval_bleu = True  # decode the validation split then, for BLEU
    training.eval_sentences = 0  # validation sentences decoded for BLEU, from the first; 0: all
    training.eval_beam_size = 1  # beam of these decodings; 1: greedy
    training.max_skipped = 20  # updates in a row left out for a loss or gradient that is not finite, before going back
    training.max_rollbacks = 3  # times the run goes back to its last good checkpoint before it gives up
    training.stall_seconds = 1800.0  # without a finished step, compiling apart, after which the process ends; 0: never
    training.patience = 0  # validations without a better checkpoint.best_metric before stopping; 0: never

    config.checkpoint = checkpoint = ml_collections.ConfigDict()
    checkpoint.every = 1000  # steps between checkpoints
    checkpoint.keep = 5  # newest checkpoints kept, beside the best
    checkpoint.keep_every = 0  # checkpoints of steps that are multiples of it are kept for ever; 0: none
    checkpoint.best_metric = "bleu"  # what "best" means on the validation split: bleu | loss

    config.decoding = decoding = ml_collections.ConfigDict()
    decoding.strategy = "beam"  # beam (beam_size 1: greedy) | sample
    decoding.beam_size = 4  # hypotheses kept a sentence (section 6.1)
    decoding.length_penalty = 0.6  # alpha of ((5 + length) / 6)^alpha; 0: none
    decoding.forbid_unk = True  # never generate <unk>, which no text stands for
    decoding.max_extra_length = 50  # output pieces beyond the source's length (section 6.1)
    decoding.max_source_length = 256  # source pieces, end included; longer input is cut, with a warning
    decoding.batch_tokens = 8192  # positions, of source or output, x beam that a decoding batch may have
    decoding.temperature = 1.0  # sample: divides the logits
    decoding.top_k = 0  # sample: from the k likeliest pieces; 0: all
    decoding.top_p = 1.0  # sample: from the likeliest pieces that together have this probability
    decoding.seed = 0  # sample: its random numbers

    config.mesh = mesh = ml_collections.ConfigDict()
    mesh.data = -1  # devices, of all hosts, that the batch is split over; -1: all that the other two leave
    mesh.fsdp = 1  # devices parameters and optimizer state are split over; the batch too
    mesh.tensor = 1  # devices heads, feed-forward and vocabulary are split over
    return config
