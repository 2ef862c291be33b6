"""The systems of this project: a training step, and a translator with random weights."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Int

from configs import base
from scripts.benchmarking.worker import Prepared, Task
from transformer.config.types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.batches import pad
from transformer.decoding.shortlist import Shortlist
from transformer.decoding.text_decoder import TextDecoder
from transformer.distributed.mesh import make_mesh
from transformer.support.special_tokens import SPECIAL
from transformer.training.compiled_step import CompiledStep
from transformer.training.optimizer import make_schedule
from transformer.training.parameterization import make_run_optimizer
from transformer.training.state import Initializer, init_model

SIZE_KEYS = ("num_layers", "d_model", "d_ff", "num_heads")
MODEL_KEYS = (*SIZE_KEYS, "dtype")
# Far below all other logits, so that no hypothesis ends before its limit.
LOGIT_OF_END = -1e4


def prepare_training(task: Task) -> Prepared:
    """Prepares a training step with the functions that `transformer.train` calls."""
    config = base.get_config()
    config.model.update({key: task[key] for key in (*MODEL_KEYS, "dropout")})
    config.training.label_smoothing = task["label_smoothing"]
    sizes = (task["vocab_size"], task["vocab_size"])
    step, initializer = make_step(config, jax.devices(), sizes)

    state = initializer.create()
    batch = step.place(make_batch(task))

    # The step donates its state, so each repetition continues from the previous one.
    def repeat() -> dict:
        """Returns the metrics of the step."""
        nonlocal state
        state, metrics = step(state, [batch])
        return jax.block_until_ready((state, metrics))[1]

    tokens = int((batch["target_output"] != task["pad"]).sum())
    return Prepared(repeat, tokens, f"JAX {jax.__version__}")


def make_step(
    config: Config, devices: Sequence[jax.Device], sizes: tuple[int, int]
) -> tuple[CompiledStep, Initializer]:
    """Returns the training step of a config on devices, and the initializer of its state.

    `sizes` are the sizes of the source and the target vocabulary.
    """
    # These are the parts that `transformer.run.preparation` builds, without data and workdir.
    mesh = make_mesh(config, devices)
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_run_optimizer(config, schedule)
    initializer = Initializer(config, optimizer, mesh, sizes)
    pieces = [""] * sizes[0]
    step = CompiledStep(config, initializer.graph, optimizer, schedule, mesh, pieces)
    return step, initializer


def make_batch(task: Task) -> dict[str, Int[np.ndarray, "B _"]]:
    """Returns the arrays of a training batch, like `collation.assemble_batch` for a corpus."""
    sentences = {
        "source": task["source"],
        "target_input": [[task["bos"], *row[:-1]] for row in task["target"]],
        "target_output": task["target"],
    }
    return {name: pad(rows, len(rows), max(map(len, rows))) for name, rows in sentences.items()}


def prepare_decoding(task: Task) -> Prepared:
    """Prepares a translator. All outputs have `output_tokens` tokens with EOS, like the sources."""
    rows = len(task["source"])
    length = task["output_tokens"]
    vocab_size = task["vocab_size"]
    config = base.get_config()
    config.model.update({key: task[key] for key in MODEL_KEYS})

    # Weights in int8 are an option of decoding, not a dtype of the model.
    if task["dtype"] == "int8":
        config.model.dtype = "auto"
        config.decoding.dtype = "int8"

    # An output may be as long as its source. A batch has the rows of the task, without filler.
    config.decoding.beam_size = task["beam_size"]
    config.decoding.max_source_length = length
    config.decoding.max_extra_length = 0
    config.decoding.batch_tokens = rows * task["beam_size"] * length

    initialize = jax.jit(lambda: init_model(config, vocab_size, vocab_size))
    graph, parameters = jax.device_get(initialize())
    forbid_end(parameters, task["eos"])

    shortlist = None
    if task["shortlist"]:
        # Random translations of each token. The first 100 tokens are the frequent ones.
        ordinary = np.arange(SPECIAL, vocab_size, dtype=np.int32)
        shape = (vocab_size, task["shortlist"])
        translations = np.random.default_rng(0).choice(ordinary, shape)
        shortlist = Shortlist(translations, ordinary[:100], vocab_size, is_shared=True)

    # Text is space-separated token ids, so that the search includes conversion from and to text.
    vocabulary = IdsVocabulary(vocab_size)
    tokenizer = Tokenizer(vocabulary, vocabulary)
    decoder = TextDecoder((graph,), tokenizer, config.decoding, jax.local_devices(), shortlist)
    placed = decoder.place([parameters])
    texts = vocabulary.decode(task["source"])

    def translate() -> list[int]:
        """Returns the number of tokens of each translation."""
        return [len(best.tokens) for (best,) in decoder.translate(placed, texts)]

    return Prepared(translate, sum(translate()), f"JAX {jax.__version__}")


def forbid_end(parameters: dict, end: int) -> None:
    """Gives EOS the logit LOGIT_OF_END.

    The first dimension of the decoder's output is set to this constant. In the embedding table,
    which the logits share, only EOS uses the dimension.
    """
    decoder = parameters["decoder"]

    # Encoder, decoder and logits share the table.
    table = decoder["embedding"]["table"].copy()
    table[:, 0] = 0.0
    table[end] = np.eye(table.shape[1])[0]
    decoder["embedding"]["table"] = table

    # The last norm of the decoder sets the first dimension of its output to the constant.
    norm = decoder["layers"][max(decoder["layers"])]["feed_forward_connection"]["norm"]
    norm["scale"] = np.array([0.0, *norm["scale"][1:]], np.float32)
    norm["bias"] = np.array([LOGIT_OF_END, *norm["bias"][1:]], np.float32)
