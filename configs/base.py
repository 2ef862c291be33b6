"""The base model of "Attention Is All You Need" on WMT14 English-German, and the declaration of
every key.

Data:      python -m scripts.get_data --tfds=wmt14_translate/de-en --output=data/tfds
Command:   python -m transformer.train --config=configs/base.py --workdir=runs/base
               --config.data.path=data/tfds
           python -m transformer.evaluate --workdir=runs/base --checkpoint=last --average=5
Hardware:  no run of ours yet. The paper used 8 P100 GPUs for 12 hours; docs/devices.md estimates
           other accelerators.
Expect:    the paper's 27.3 on newstest2014 (Table 2), to compare with `bleu_paper`: tokenized, with
           compounds split.

Every other config starts from this one and sets what differs. No default is defined anywhere else.
`Key(default, rule)` declares the values that a key may take. The rule `LISTED` accepts the names in
the key's table of implementations, which `transformer/config/tables.py` finds by the name of the
key. An `optional` key is None by default; its comment explains None. Keys that are marked HOST,
MESH, PATH, LOG or RECORD (`configs.rules.Scope`) may change when a run resumes.
"""

import ml_collections

from configs.rules import (
    CHANGES,
    DOWNLOADS,
    FRACTION,
    HOST,
    LANGUAGE,
    LISTED,
    LOG,
    MESH,
    NONEMPTY_TEXT,
    PATH,
    PROBABILITY,
    RECORD,
    SEED,
    SWITCH,
    TAG,
    TEXT,
    TEXTS,
    WORDS,
    Key,
    above,
    at_least,
    between,
    defaults,
    either,
    one_of,
    optional,
)


def get_config() -> ml_collections.ConfigDict:
    """Returns the defaults."""
    return defaults(get_keys())


def get_keys() -> ml_collections.ConfigDict:
    """Returns the declaration of every key."""
    keys = ml_collections.ConfigDict()
    keys.seed = Key(0, SEED)  # seeds parameters, dropout, data order and subword sampling

    keys.model = model = ml_collections.ConfigDict()
    # layers of the encoder, and of the decoder unless the next key is set
    model.num_layers = Key(6, at_least(1))
    model.num_decoder_layers = optional(int, at_least(1))  # None: num_layers
    model.d_model = Key(512, at_least(1))  # width of the residual stream and of the embeddings
    model.d_ff = Key(2048, at_least(1))  # inner width of the feed-forward networks
    model.num_heads = Key(8, at_least(1))  # attention heads
    # Heads of keys and values, each shared by equally many heads of queries (Ainslie et al. 2023);
    # None: num_heads
    model.num_key_heads = optional(int, at_least(1))
    # width of a head's queries and keys; None: d_model / num_heads
    model.d_k = optional(int, at_least(1))
    model.d_v = optional(int, at_least(1))  # width of a head's values; None: d_model / num_heads
    # rate on embeddings + positions and on each sub-layer's output (section 5.4)
    model.dropout = Key(0.1, PROBABILITY)
    # rate on attention weights; the paper has none, tensor2tensor 0.1
    model.attention_dropout = Key(0.0, PROBABILITY)
    # rate on the inner activations of the feed-forward networks
    model.activation_dropout = Key(0.0, PROBABILITY)
    # rate on the output of each stack, after its last norm (Raffel et al. 2020)
    model.final_dropout = Key(0.0, PROBABILITY)
    # Probability with which a training step leaves out a layer, all of its sub-layers together (Fan
    # et al. 2020)
    model.layer_drop = Key(0.0, PROBABILITY)
    # Activation of the feed-forward networks. swish is x sigmoid(x), gelu its tanh approximation
    # and gelu_exact that with the error function. glu, geglu and swiglu are gated and have one more
    # matrix.
    model.activation = Key("relu", LISTED)
    model.feed_forward_bias = Key(True, SWITCH)  # biases b; T5 has none (Raffel et al. 2020)
    # post: LayerNorm(x + f(x)), as published; pre: x + f(LayerNorm(x)); sandwich: x +
    # LayerNorm(f(LayerNorm(x)))
    model.norm_position = Key("post", LISTED)
    # a normalization after each stack; None: except with norm_position=post
    model.final_norm = optional(bool, SWITCH)
    # rms_norm: without mean and bias (Zhang and Sennrich 2019)
    model.norm = Key("layer_norm", LISTED)
    model.layer_norm_epsilon = Key(1e-6, above(0))  # added to the variance, or the mean square
    # dot_product: q . k / sqrt(d_k); dot_product_unscaled: q . k; additive: v . tanh(q + k)
    model.attention = Key("dot_product", LISTED)
    # Kernels of dot-product attention in bfloat16, in training and validation. plain: none; auto:
    # cuDNN's on NVIDIA GPUs for rows of 64 positions or more that are not packed, JAX's splash
    # attention on TPUs for packed rows; cudnn: cuDNN's for rows of any length, to compare
    model.attention_implementation = Key("auto", LISTED, MESH)
    model.attention_bias = Key(False, SWITCH)  # biases on the four projections of an attention
    # What the decoder has in place of self-attention, to decode faster. ssru: a recurrent unit (Kim
    # et al. 2019); average: gated averages of all inputs so far (Zhang et al. 2018)
    model.decoder_self_attention = Key("attention", LISTED)
    # First input of the decoder, with its position. bos: the embedding of BOS; zero: a vector of
    # zeros, as in Marian
    model.decoder_start = Key("bos", LISTED)
    # sinusoidal (sin and cos alternate), sinusoidal_concatenated (all sin, then all cos),
    # sinusoidal_marian (the same, with powers 2i / (d_model - 2) of 10000) and learned are added to
    # the embeddings. In place of these, self-attention sees distances: rotary rotates queries and
    # keys (Su et al. 2021); shaw, alibi and t5 add to scores a product of the query and a vector
    # (Shaw et al. 2018), a fixed slope (Press et al. 2022), or a trained number (Raffel et al.
    # 2020), which with t5_per_layer each layer has for itself (Chung et al. 2023).
    model.positions = Key("sinusoidal", LISTED)
    model.max_positions = Key(1024, at_least(1))  # rows of the table of learned positions
    # Matrices that are shared. all: source and target embeddings and logits; target: target
    # embeddings and logits; inputs: source and target embeddings. A model of one language always
    # shares its embeddings with the logits
    model.share_embeddings = Key("all", LISTED)
    # whether attention sees the end-of-sentence token of the source
    model.source_eos = Key(True, SWITCH)
    model.output_bias = Key(False, SWITCH)  # a bias for each token's logit
    # How initial values and learning rates depend on the width. standard: Xavier's initialization
    # and one rate; mup: the best rate of a base model is that of wider ones (Yang et al. 2022),
    # where d_ff grows in proportion to d_model
    model.parameterization = Key("standard", LISTED)
    model.base_d_model = optional(int, at_least(1))  # mup: d_model of the base model
    model.base_d_k = optional(int, at_least(1))  # mup: its width of a head's queries and keys
    # Activations that the backward pass recomputes. none: none; layers: all within a layer, which
    # saves memory for about a quarter more FLOPs
    model.remat = Key("none", LISTED, MESH)
    # objective=ctc: labels that are predicted for each source token
    model.ctc_frames = Key(2, at_least(1))
    # dtype of matmuls and activations; the rest is float32. auto: bfloat16, or float32 on
    # processors without bfloat16 instructions
    model.dtype = Key("auto", one_of("auto", "bfloat16", "float32"))

    keys.data = data = ml_collections.ConfigDict()
    # tfds: a TFDS dataset; text: parallel text files; ids: pairs of integer sequences; synthetic:
    # made-up sentences
    data.source = Key("tfds", LISTED)
    # tfds: dataset and its config; others: a name for logs
    data.name = Key("wmt14_translate/de-en", NONEMPTY_TEXT)
    # tfds: data_dir, "" for TFDS's own; text, ids: folder with STEM.LANG[.gz] files
    data.path = Key("", TEXT, PATH)
    # text, ids: (file name, URL, sha256) triples, downloaded if `path` is empty
    data.downloads = Key((), DOWNLOADS)
    # Language codes: file endings and TFDS features. "": the sentences have no such side, as for
    # language models
    data.source_language = Key("en", LANGUAGE)
    data.target_language = Key("de", LANGUAGE)
    # What target texts are. text: sentences; tree: linearized trees of tokenized sentences, from
    # scripts.get_data --trees (section 6.3)
    data.target_form = Key("text", LISTED)
    # sacreBLEU's tokenizer for bleu. auto: by target_language, char for Thai and other scripts
    # without spaces
    data.bleu_tokenizer = Key("auto", one_of("auto", "13a", "intl", "zh", "char", "none"))
    # tfds: a split such as train[:90%]; text, ids: STEM or STEM+STEM
    data.train_split = Key("train", NONEMPTY_TEXT)
    # A word that begins each source, of which the vocabulary makes a token, such as
    # >>{target_language}<<: the names of languages replace {source_language} and {target_language}.
    # A text that ends with a colon, such as "translate English to German:", is segmented like the
    # source, as in T5 (Raffel et al. 2020)
    data.source_tag = Key("", TAG)
    # Training corpora in place of train_split, a text for each: KEY=VALUE separated by spaces, with
    # keys of this group, label (for logs), weight (how many times an epoch reads each pair; 1),
    # pair_weights (a file of their weights in the loss), alignments (a file of the links of their
    # words, for guided_heads) and rewards (a file of their scores, for candidate_loss)
    data.mixture = Key((), TEXTS)
    # Mixtures: T draws from corpora in proportion to the T-th root of their size, the largest by
    # its weight
    data.mixture_temperature = Key(1.0, at_least(1))
    # Sentences before each sentence of a document that the model reads and writes with it; blank
    # lines end documents. max_length and max_source_length are those of all together
    data.context = Key(0, at_least(0))
    # number of training pairs to use, from the first on; 0: all
    data.train_pairs = Key(0, at_least(0))
    # file with the numbers of training pairs to leave out (scripts.inspect_data)
    data.exclude = Key("", TEXT)
    # like train_split; selects the best checkpoint
    data.valid_split = Key("validation", NONEMPTY_TEXT)
    # More validation sets, a text for each, as in mixture: label=WORD, and keys of this group.
    # Their scores are loss/WORD, bleu/WORD and so on; those with /mean are means over all sets.
    data.valid_sets = Key((), TEXTS)
    # like train_split; training only compares it with the other splits
    data.test_split = Key("test", NONEMPTY_TEXT)
    # Tokens of a side, end-of-sentence included. Training and the loss of held-out splits leave out
    # longer pairs
    data.max_length = Key(256, at_least(2))
    # Training pairs whose longer side has more than this many times the tokens of the shorter are
    # dropped; 0: none
    data.max_length_ratio = Key(0.0, either(0, at_least(1)))
    data.deduplicate = Key(False, SWITCH)  # drop repeated training pairs
    # training pairs; held-out splits have 1 %, at least 200
    data.synthetic_examples = Key(100_000, at_least(1))
    # everything kept between runs; "": transformer in $XDG_CACHE_HOME or ~/.cache
    data.cache_dir = Key("", TEXT, HOST)
    # Processes that encode the corpus; 0: one a core, one for a small corpus. The lesser of workers
    # and prefetch is also the number of processes for subword sampling
    data.workers = Key(0, at_least(0), HOST)
    # batches prepared ahead of the train step, by as many threads
    data.prefetch = Key(4, at_least(1), HOST)
    # how long to wait for a process without progress before failing
    data.wait_seconds = Key(7200, at_least(1), HOST)

    keys.tokenizer = tokenizer = ml_collections.ConfigDict()
    # SentencePiece's bpe, unigram, word and char; byte: the bytes of UTF-8; ids: the integers of
    # data.source=ids; pieces: of imported models
    tokenizer.kind = Key("bpe", LISTED)
    # with the four special tokens; an upper limit for word, char, byte, ids
    tokenizer.vocab_size = Key(37_000, at_least(5))
    # one vocabulary for both languages, as share_embeddings=all requires
    tokenizer.shared = Key(True, SWITCH)
    # a trained SentencePiece model; SOURCE,TARGET unless shared; "": train one
    tokenizer.model_file = Key("", TEXT)
    # SentencePiece's normalization rule; all but identity change characters such as full-width
    # punctuation
    tokenizer.normalization = Key(
        "nmt_nfkc", one_of("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
    )
    # fraction of characters that the vocabulary covers
    tokenizer.character_coverage = Key(1.0, between(0.98, 1.0))
    # encode unknown characters as bytes instead of <unk>
    tokenizer.byte_fallback = Key(False, SWITCH)
    # Words that are one token each wherever they occur, or for kind=word between spaces: ("<name>",
    # "<url>"). U+2581 at the start of a word is the space before it, now part of the token
    tokenizer.user_symbols = Key((), WORDS)
    # sentences of each side to train it on, at most
    tokenizer.sample_size = Key(5_000_000, at_least(1))
    # in training: BPE-dropout's rate or unigram's alpha; 0: off
    tokenizer.subword_sampling = Key(0.0, PROBABILITY)

    keys.batch = batch = ml_collections.ConfigDict()
    # padded positions of a global batch on either side, at most (section 5.1)
    batch.tokens = Key(25_000, at_least(1))
    # buckets: pairs of similar lengths, padded; packed: several pairs in a row; groups: like
    # buckets, with the candidates of a source in consecutive rows
    batch.plan = Key("buckets", LISTED)
    # buckets, groups: number of (rows, source, target) shapes, at most
    batch.max_buckets = Key(12, at_least(1))
    # divides the rows of a batch, or the sources with groups; mesh.data x mesh.fsdp must divide it
    batch.row_multiple = Key(8, at_least(1))
    # buckets, groups: divides the lengths of a batch. cuDNN needs even lengths, TPUs pad to 8; 1
    # pads least
    batch.length_multiple = Key(8, at_least(1))
    # packed: positions of a row on either side, at least data.max_length
    batch.packed_length = Key(256, at_least(2))
    # groups: candidate translations of each source, which are as many consecutive training pairs
    batch.candidates = Key(8, at_least(2))

    keys.optimizer = optimizer = ml_collections.ConfigDict()
    optimizer.name = Key("adam", LISTED)
    # Follows a linear warm-up.
    optimizer.schedule = Key("inverse_sqrt", LISTED)
    # inverse_sqrt: factor on d_model^-0.5 min(t^-0.5, t w^-1.5) (section 5.3); other schedules: the
    # peak
    optimizer.learning_rate = Key(1.0, above(0))
    optimizer.warmup_steps = Key(4000, at_least(0))  # steps of linear warm-up
    # decay of Adam's first moment, and of muon's except for matrices (0.95); schedule_free_adamw:
    # the weight of the averaged parameters where gradients are computed
    optimizer.beta1 = Key(0.9, PROBABILITY)
    optimizer.beta2 = Key(0.98, PROBABILITY)  # decay of Adam's second moment
    optimizer.beta3 = Key(0.9999, PROBABILITY)  # ademamix: decay of the slow average of gradients
    optimizer.alpha = Key(5.0, at_least(0))  # ademamix: weight of the slow average
    # ademamix: updates over which alpha grows from 0, and beta3 from beta1; 0: none
    optimizer.alpha_warmup_steps = Key(0, at_least(0))
    # added to Adam's denominator, and to muon's norm of a matrix
    optimizer.epsilon = Key(1e-9, above(0))
    # decoupled, times the learning rate, on all matrices; not for adam
    optimizer.weight_decay = Key(0.0, at_least(0))
    # Factors on the learning rate of parameters, by name or its beginning, the last one that fits:
    # encoder:0.1,decoder.embedding:0.5; "": none
    optimizer.rate_factors = Key("", TEXT)
    # gradients of larger global norm are scaled down to it; 0: off
    optimizer.clip_norm = Key(0.0, at_least(0))

    keys.training = training = ml_collections.ConfigDict()
    # translation; masked_lm: the encoder predicts masked tokens of the source (Devlin et al. 2019);
    # span_corruption: the decoder predicts masked spans of the source (Raffel et al. 2020);
    # causal_lm: the decoder predicts each target token from those before it. These three read
    # monolingual text. ctc: the encoder predicts all target tokens at once
    training.objective = Key("translation", LISTED)
    # masked_lm, span_corruption: the fraction of tokens, or words, to mask
    training.masked_fraction = Key(0.15, FRACTION)
    training.mean_span_length = Key(3.0, at_least(1))  # span_corruption: tokens of a masked span
    # masked_lm: mask all tokens of a word, or none
    training.whole_word_masking = Key(False, SWITCH)
    training.steps = Key(100_000, at_least(1))  # optimizer updates
    training.accumulation = Key(1, at_least(1))  # batches whose gradients are summed for one update
    # Its changes: STEP:BATCHES,STEP:BATCHES,... (Smith et al. 2018); "": none
    training.accumulation_changes = Key("", CHANGES)
    training.loss = Key("cross_entropy", LISTED)  # of each target token
    # probability mass taken from the correct token (section 5.4)
    training.label_smoothing = Key(0.1, PROBABILITY)
    # Where that mass goes. uniform: all V tokens; others: all but the correct token and padding
    training.label_smoothing_support = Key("uniform", LISTED)
    # R-Drop (Liang et al. 2021): weight of the KL divergence between two passes with different
    # dropout, 5 in the paper. It doubles the cost of a step and is not part of the reported loss.
    # 0: one pass
    training.r_drop = Key(0.0, at_least(0))
    # Compares whole candidates by the rewards of a mixture, for plan=groups. minimum_risk: the
    # expected risk (Shen et al. 2016); contrastive: the preference for the best over the worst (Xu
    # et al. 2024)
    training.candidate_loss = Key("none", LISTED)
    # minimum_risk: exponent of the probabilities, the paper's alpha
    training.risk_sharpness = Key(5e-3, above(0))
    # contrastive: factor on the difference of log-probabilities, the paper's beta
    training.preference_scale = Key(0.1, above(0))
    # Adds the token loss of the best candidate to candidate_loss, times this weight. Both are sums
    # over the batch
    training.likelihood_weight = Key(0.0, at_least(0))
    # Heads of cross-attention that learn the links of words in a mixture's alignments (Chen et al.
    # 2016), LAYER.HEAD from 1.1 on, such as 5.1,5.2; "": none
    training.guided_heads = Key("", TEXT)
    # weight of their loss, which the reported loss leaves out
    training.guided_weight = Key(0.1, above(0))
    # Moving average of the parameters, to validate and decode with. After n updates its decay is at
    # most (1 + n) / (10 + n), so that it soon forgets the initial parameters; 0: off
    training.ema_decay = Key(0.0, PROBABILITY)
    training.note = Key("", TEXT, LOG)  # what the run is for, which reports show
    training.tags = Key((), WORDS, LOG)  # words to find runs by, which reports show
    # Trackers that draw metrics.jsonl: tensorboard, wandb and mlflow, with commas between them; "":
    # none
    training.trackers = Key("tensorboard", TEXT, LOG)
    training.log_every = Key(100, at_least(1), LOG)  # steps between log lines
    training.eval_every = Key(2500, at_least(1), RECORD)  # steps between validations
    training.eval_bleu = Key(True, SWITCH, RECORD)  # decode the validation split for BLEU
    # number of sentences to decode for it, from the first on; 0: all
    training.eval_sentences = Key(0, at_least(0))
    training.eval_beam_size = Key(1, at_least(1))  # beam size for it; 1: greedy
    # Adds the norms of gradients and weights by module, at the last step, to the lines of
    # validations
    training.module_norms = Key(False, SWITCH, LOG)
    # Validation sentences whose translations and attention are shown at each validation, with
    # eval_bleu; 0: none
    training.samples = Key(3, at_least(0), LOG)
    # The run whose parameters, and tokenizer, this one starts from: WORKDIR (its best checkpoint),
    # WORKDIR:last or WORKDIR:STEP; "": random parameters
    training.init_from = Key("", TEXT)
    # Parameters not taken from it, by name or its beginning: decoder;
    # encoder.embedding,encoder.layers.0; "": none
    training.init_skip = Key("", TEXT)
    # The vocabulary of a run with a parent. parent: the parent's; own: one of its text or of
    # tokenizer.model_file, in which tokens that both have keep their vectors, and new ones get the
    # mean of their parts
    training.init_vocabulary = Key("parent", one_of("parent", "own"))
    # Also take the optimizer's state, such as Adam's moments, and with it the raw parameters, even
    # if the parent has a moving average; the schedule begins at its first step
    training.init_optimizer = Key(False, SWITCH)
    # parameters that no update changes, by names as in init_skip; "": none
    training.freeze = Key("", TEXT)
    # Consecutive updates skipped for a non-finite loss or gradient before a rollback
    training.max_skipped = Key(20, at_least(1))
    # rollbacks to the last finite checkpoint before the run fails
    training.max_rollbacks = Key(3, at_least(0), RECORD)
    # Abort if a step takes longer, not counting compilation; 0: never
    training.stall_seconds = Key(1800.0, at_least(0), HOST)
    # validations without a better best_metric before stopping; 0: off
    training.patience = Key(0, at_least(0), RECORD)

    keys.checkpoint = checkpoint = ml_collections.ConfigDict()
    checkpoint.every = Key(1000, at_least(1), RECORD)  # steps between checkpoints
    # newest checkpoints kept, and as many at or before the best
    checkpoint.keep = Key(5, at_least(1), RECORD)
    # checkpoints at its multiples are kept forever; 0: none
    checkpoint.keep_every = Key(0, at_least(0), RECORD)
    # Validation metric that defines the best checkpoint: loss, bleu, chrf, exact_match, ..., of
    # another set bleu/WORD, or bleu/mean; of equal scores the one of the lower loss is the best
    checkpoint.best_metric = Key("bleu", NONEMPTY_TEXT)

    keys.decoding = decoding = ml_collections.ConfigDict()
    # beam; sample: drawn at random; mbr, mbr_beam: the highest expected utility among mbr_samples
    # samples, or among the hypotheses of a beam search (minimum Bayes risk); ctc: prefix beam
    # search, for objective=ctc
    decoding.strategy = Key("beam", LISTED)
    # dtype of matmuls with weights. auto: model.dtype; int8: 8-bit integers, to which weights and
    # activations are rounded, on CPUs with instructions for them
    decoding.dtype = Key("auto", one_of("auto", "int8"))
    # hypotheses per sentence (section 6.1); 1: greedy
    decoding.beam_size = Key(4, between(1, 1000))
    decoding.length_penalty = Key(0.6, at_least(0))  # alpha of the length penalty; 0: none
    # Divides the log-probability of an output by its length, end included. gnmt: ((5 + length) /
    # 6)^alpha (Wu et al. 2016); power: length^alpha, as in CTranslate2, Hugging Face and Marian
    decoding.length_penalty_form = Key("gnmt", LISTED)
    # beam: beta of the coverage penalty (Wu et al. 2016), by which the ended hypotheses of the beam
    # are ranked; 0: none
    decoding.coverage_penalty = Key(0.0, at_least(0))
    # Whether an ended hypothesis keeps its place among the beam_size, as in Marian
    decoding.shrinking_beam = Key(False, SWITCH)
    # When a sentence with beam_size ended hypotheses is done. ended: at once; current: when no live
    # hypothesis scores better now than the worst ended one; bound: when none can become better.
    # docs/interop.md names the toolkits
    decoding.stopping = Key("current", LISTED)
    decoding.forbid_unk = Key(True, SWITCH)  # never generate <unk>, which represents no text
    # An output has at most max_length_factor x source length + max_extra_length tokens (section
    # 6.1)
    decoding.max_length_factor = Key(1.0, between(0, 100))
    decoding.max_extra_length = Key(50, at_least(0))
    # Output tokens, end excluded, at least, if the limit above allows
    decoding.min_length = Key(0, between(0, 1 << 16))
    # no output has an n-gram of this many tokens twice; 0: any may
    decoding.no_repeat_ngram = Key(0, between(0, 100))
    # file of phrases, one a line, whose tokens no output has; empty: none
    decoding.banned = Key("", TEXT)
    decoding.banned_pieces = Key((), TEXTS)  # pieces of the target vocabulary that no output has
    # target_form=tree: only outputs that are trees with a leaf for each word of the source
    decoding.well_formed = Key(False, SWITCH)
    # Source tokens, end included; the rest is cut, with a warning
    decoding.max_source_length = Key(256, between(2, 1 << 16))
    # Source or output positions x beams of a decoding batch, at most
    decoding.batch_tokens = Key(8192, at_least(1), MESH)
    # beam: translations of each source token among the candidates of an output, at most 64, from
    # the file that scripts.shortlist makes; not for training. 0: the whole vocabulary
    decoding.shortlist = Key(0, at_least(0))
    # beam, ctc: WORKDIR:WEIGHT,WORKDIR:WEIGHT,... of the runs whose models rerank the hypotheses;
    # scorer:WEIGHT is the command of decoding.scorer; empty: none
    decoding.rerank = Key("", TEXT)
    # A command for mbr_utility=scorer and rerank=scorer:WEIGHT. Its fields {source}, {reference}
    # and {hypothesis} are files with a text on each line, and it prints a number for each line
    decoding.scorer = Key("", TEXT)
    decoding.temperature = Key(1.0, above(0))  # sample, mbr: divides the logits
    # sample, mbr: draw from the k most likely tokens; 0: from all
    decoding.top_k = Key(0, at_least(0))
    # sample, mbr: draw from the smallest set of most likely tokens that has this probability
    decoding.top_p = Key(1.0, FRACTION)
    # sample, mbr: draw no token of a lower probability (Hewitt et al. 2022), except the likeliest
    decoding.epsilon = Key(0.0, PROBABILITY)
    decoding.seed = Key(0, SEED)  # sample, mbr: random seed
    decoding.mbr_samples = Key(64, between(1, 4096))  # mbr: samples per sentence
    # Sentence score of a candidate by another one. chrf; bleu, of words as sacreBLEU's tokenizer
    # 13a separates them; scorer: the command of decoding.scorer
    decoding.mbr_utility = Key("chrf", LISTED)

    keys.mesh = mesh = ml_collections.ConfigDict()
    # devices of all hosts that split the batch; -1: all that remain
    mesh.data = Key(-1, either(-1, at_least(1)), MESH)
    # devices that split parameters and optimizer state, and the batch
    mesh.fsdp = Key(1, at_least(1), MESH)
    # devices that split heads, feed-forward width and vocabulary
    mesh.tensor = Key(1, at_least(1), MESH)
    return keys
