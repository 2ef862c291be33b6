"""A model between toolkits: readers of formats return it, and writers take it."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_collections
import numpy as np
from jaxtyping import Float

from transformer.config.keys import coerce_types, format_value
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.shortlist import Shortlist
from transformer.model.positions import POSITIONS
from transformer.support.errors import UserError

# The id of a special token that the other toolkit lacks.
ABSENT = -1
# The output bias of an absent token. It is far below every logit, but finite, so that losses stay
# finite.
NEVER = -100.0

# The kinds of tokenizers whose pieces a SentencePiece model or spaces separate.
SEGMENTED = ("bpe", "unigram", "char", "word", "pieces", "ids")
# The values that most formats can express. A format that supports other values replaces the entry.
COMMON = {
    "training.objective": ("translation",),
    "model.attention": ("dot_product",),
    "model.norm": ("layer_norm",),
    "model.norm_position": ("post", "pre"),
    "model.num_key_heads": (None,),
    "model.positions": (
        "sinusoidal",
        "sinusoidal_concatenated",
        "sinusoidal_marian",
        "learned",
        "rotary",
    ),
    "model.share_embeddings": ("all", "target", "none"),
    "model.decoder_self_attention": ("attention",),
    "model.source_eos": (True,),
    "data.context": (0,),
    "tokenizer.kind": SEGMENTED,
}

Arrays = dict[str, np.ndarray]  # by name
Settings = dict[str, Any]  # by dotted key, or by another toolkit's name


class PortableModel(NamedTuple):
    """A model in this project's terms.

    config: values by dotted key, such as {"model.num_layers": 6}. Absent keys have the defaults of
        base.py.
    parameters: float32 arrays by dotted name, as `checkpoints.restore.named_leaves` names them.
    tokenizer: token i is row i of the embedding and output tables.
    factors: of a model that came from Firefox, the factors with which its engine quantizes
        activations, by Marian's name of the matrix that multiplies them.
    directions: values that translations of a direction have, by codes such as "en-de".
    """

    config: Settings
    parameters: Arrays
    tokenizer: Tokenizer
    shortlist: Shortlist | None = None
    factors: Mapping[str, float] | None = None
    directions: Mapping[str, Settings] = MappingProxyType({})

    @property
    def settings(self) -> Settings:
        """The values of all keys, by dotted key."""
        return coerce_types(self.config)

    def check_expressible(self, format: str, expressible: Mapping[str, Collection[Any]]) -> None:
        """Raises UserError if a format of export cannot express the value of a key."""
        settings = self.settings
        for key, values in expressible.items():
            value = settings[key]
            if value not in values:
                allowed = ", ".join(map(format_value, values))
                raise UserError(
                    f"--format={format}: cannot express {key}={format_value(value)}, only {allowed}"
                )


def sinusoids(name: str, d_model: int, positions: np.ndarray) -> Float[np.ndarray, "_ D"]:
    """Returns the encodings of these positions, one row for each."""
    # The modules of positions take a batch of positions, (1, length).
    module = POSITIONS[name](ml_collections.ConfigDict({"d_model": d_model}), False, None)
    return np.asarray(module(jnp.asarray(positions)[None])[0])


def fitting_positions(
    names: Collection[str], tables: Collection[Float[np.ndarray, "_ D"]]
) -> str | None:
    """Returns the first kind of positions with the encodings of all tables, or None."""

    def fits(name: str, table: np.ndarray) -> bool:
        length, width = table.shape
        encodings = sinusoids(name, width, np.arange(length))
        # Other toolkits compute tables in other precisions.
        return np.allclose(table, encodings, rtol=0, atol=5e-3)

    return next((name for name in names if all(fits(name, table) for table in tables)), None)


def rows_in_order(
    table: Float[np.ndarray, "V ..."], ids: list[int], absent: float = 0.0
) -> Float[np.ndarray, "W ..."]:
    """Returns the rows with these ids of another toolkit. Rows of absent tokens are `absent`."""
    rows = np.full((len(ids), *table.shape[1:]), absent, np.float32)
    present = np.array(ids) != ABSENT
    rows[present] = table[np.array(ids)[present]]
    return rows
