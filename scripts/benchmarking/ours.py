"""The systems of this project: a training step, and translation with random weights that never
prefer EOS.
"""

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
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.state import Initializer, init_model

SIZE_KEYS = ("num_layers", "d_model", "d_ff", "num_heads")
MODEL_KEYS = (*SIZE_KEYS, "dtype")
LOGIT_OF_END = -1e4  # far below all others, so that no hypothesis ends before its limit


def prepare_training(task: Task) -> Prepared:
    """Prepares a training step, by the functions that `transformer.train` calls."""
    config = base.get_config()
    config.model.update({key: task[key] for key in (*MODEL_KEYS, "dropout")})
    config.training.label_smoothing = task["label_smoothing"]
    step, initializer = step_of(config, jax.devices(), (task["vocab_size"], task["vocab_size"]))
    state = initializer.create()
    batch = step.place(make_batch(task))

    def repeat() -> Task:
        """Returns the metrics of the step."""
        nonlocal state
        state, metrics = step(state, [batch])
        return jax.block_until_ready((state, metrics))[1]

    return Prepared(
        repeat, int((batch["target_output"] != task["pad"]).sum()), f"JAX {jax.__version__}"
    )


def step_of(
    config: Config, devices: Sequence[jax.Device], sizes: tuple[int, int]
) -> tuple[CompiledStep, Initializer]:
    """Returns the step of a config and these sizes of vocabularies on devices, and what makes its
    initial state.
    """
    mesh = make_mesh(config, devices)
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule, config.training.freeze)
    initializer = Initializer(config, optimizer, mesh, sizes)
    return CompiledStep(
        config, initializer.graph, optimizer, schedule, mesh, [""] * sizes[0]
    ), initializer


def make_batch(task: Task) -> dict[str, Int[np.ndarray, "B _"]]:
    """Returns the arrays of a training batch, as `collation.assemble` does for sentences of a
    corpus.
    """
    inputs = [[task["bos"], *row[:-1]] for row in task["target"]]
    sides = {"source": task["source"], "target_input": inputs, "target_output": task["target"]}
    return {name: pad(rows, len(rows), max(map(len, rows))) for name, rows in sides.items()}


def prepare_decoding(task: Task) -> Prepared:
    """Prepares a translator whose outputs have `output_tokens` tokens with EOS, as many as each
    source has.
    """
    rows = len(task["source"])
    length = task["output_tokens"]
    config = base.get_config()
    config.model.update({key: task[key] for key in MODEL_KEYS})
    # An output may be as long as its source, and a batch has the rows of the task without any
    # filler.
    config.decoding.update(
        {"beam_size": task["beam_size"], "max_source_length": length, "max_extra_length": 0}
    )
    if task["dtype"] == "int8":
        config.model.dtype = "auto"
        config.decoding.dtype = "int8"
    config.decoding.batch_tokens = rows * task["beam_size"] * length
    sizes = (task["vocab_size"], task["vocab_size"])
    graph, parameters = jax.device_get(jax.jit(lambda: init_model(config, *sizes))())
    forbid_end(parameters, task["eos"])
    vocabulary = IdsVocabulary(task["vocab_size"])
    devices = jax.local_devices()
    shortlist = None
    # random translations of each token; the first 100 tokens are the frequent ones
    if task["shortlist"]:
        ordinary = np.arange(SPECIAL, task["vocab_size"], dtype=np.int32)
        translations = np.random.default_rng(0).choice(
            ordinary, (task["vocab_size"], task["shortlist"])
        )
        shortlist = Shortlist(translations, ordinary[:100], task["vocab_size"], is_shared=True)
    decoder = TextDecoder(
        (graph,), Tokenizer(vocabulary, vocabulary), config.decoding, devices, shortlist
    )
    placed = decoder.place([parameters])
    texts = vocabulary.decode(task["source"])

    def translate() -> list[int]:
        """Returns the number of tokens of each translation."""
        return [len(best.tokens) for (best,) in decoder.translate(placed, texts)]

    return Prepared(translate, sum(translate()), f"JAX {jax.__version__}")


def forbid_end(parameters: dict, end: int) -> None:
    """Gives EOS the logit LOGIT_OF_END, by a dimension of the decoder's output that all other
    tokens ignore.
    """
    decoder = parameters["decoder"]
    # shared with encoder and logits
    table = decoder["embedding"]["table"] = decoder["embedding"]["table"].copy()
    last = decoder["layers"][max(decoder["layers"])]["feed_forward_connection"]["norm"]
    table[:, 0] = 0.0
    table[end] = np.eye(table.shape[1])[0]
    last["scale"] = np.array([0.0, *last["scale"][1:]], np.float32)
    last["bias"] = np.array([LOGIT_OF_END, *last["bias"][1:]], np.float32)
