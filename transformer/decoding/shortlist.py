"""A lexical shortlist: the target tokens that a search considers for a sentence.

Without one, the search considers the whole vocabulary.
Jean et al. (2015, section 3), Marian's shortlists and CTranslate2's vocabulary maps do the same.
"""

import hashlib
import io
import shlex
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.model.cache import DecodingCache
from transformer.model.matmul import FLOAT32, batched_dtype, matmul_dtype
from transformer.model.transformer import Transformer
from transformer.support import files
from transformer.support.errors import UNREADABLE, UserError
from transformer.support.special_tokens import SPECIAL


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The likeliest translations of each source token, and the most frequent target tokens.

    translations: target tokens, the most probable first; -1 where a source token has fewer.
    frequent: tokens that are listed for every sentence.
    vocab_size: V, the number of target tokens.
    is_shared: whether both languages have one vocabulary. Source tokens are then listed too, to
      be copied.
    """

    translations: Int[np.ndarray, "VS N"]
    frequent: Int[np.ndarray, " F"]
    vocab_size: int
    is_shared: bool

    def tokens_of(self, source: Int[np.ndarray, "B S"]) -> Int[np.ndarray, "B C"]:
        """Returns the target tokens to consider for each row, without duplicates.

        The special tokens come first, so that the index of each is its id. The other tokens ascend.
        -1 fills up a row with fewer than C. C depends on S only.
        """
        # All tokens of a row, in ascending order, with repetitions.
        rows = len(source)
        translations = self.translations[source].reshape(rows, -1)  # (B, S * N)
        parts = [translations, np.tile(self.frequent, (rows, 1))]
        if self.is_shared:
            parts.append(source)
        tokens = np.sort(np.concatenate(parts, axis=1), axis=1)

        # V is not a token, and sorts after all tokens.
        is_repeated = np.diff(tokens, axis=1, prepend=-1) == 0
        tokens[is_repeated | (tokens < SPECIAL)] = self.vocab_size
        tokens = np.sort(tokens, axis=1)[:, : self.vocab_size - SPECIAL]
        tokens[tokens == self.vocab_size] = -1
        special = np.tile(np.arange(SPECIAL), (rows, 1))
        return np.concatenate([special, tokens], axis=1).astype(np.int32)

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for equal shortlists."""
        arrays = [array.tobytes() for array in (self.translations, self.frequent)]
        return hashlib.sha256(b" ".join(arrays)).hexdigest()

    def save(self, path: Path, tokenizer: Tokenizer) -> None:
        """Writes the shortlist atomically, with the tokenizer's fingerprint."""
        content = io.BytesIO()
        np.savez_compressed(
            content,
            vocabulary=tokenizer.fingerprint,
            translations=self.translations,
            frequent=self.frequent,
        )
        files.write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer, size: int | None) -> "Shortlist":
        """Reads a shortlist with `size` translations of each source token; None: all.

        Raises UserError if the file is missing, damaged, for another vocabulary, or too small.
        """
        flag = f"--decoding.shortlist={size}"
        command = f"python -m scripts.shortlist --workdir={shlex.quote(str(path.parent))}"
        if not path.exists():
            raise UserError(f"{flag}: {path} is missing; make it with: {command}")
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                vocabulary = arrays["vocabulary"]
                translations = arrays["translations"]
                frequent = arrays["frequent"]
        except (*UNREADABLE, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(
                f"{path}: damaged ({type(error).__name__}); make it again with: {command}"
            ) from error
        if vocabulary != tokenizer.fingerprint:
            raise UserError(f"{path}: is for another vocabulary; make it again with: {command}")
        largest = translations.shape[1]
        if size is not None and size > largest:
            raise UserError(
                f"{flag}: must be at most {largest}, the translations of each token in {path}"
            )
        return cls(translations[:, :size], frequent, tokenizer.target.size, tokenizer.is_shared)


class ShortlistModel:
    """An `AutoregressiveModel` that predicts only the shortlisted tokens of a row, never -1.

    The probabilities of these tokens sum to 1.
    """

    def __init__(self, model: Transformer, shortlisted: Int[Array, "B C"]):
        self.model = model
        self.shortlisted = shortlisted
        dtype = batched_dtype(matmul_dtype(model.decoder.embedding.dtype))
        table, bias = model.output_table_and_bias
        rows = jnp.take(table, shortlisted, axis=0, mode="clip").astype(dtype)
        self.bias = None if bias is None else jnp.take(bias, shortlisted, mode="clip")

        # The matmul of a step is faster on CPUs with this layout. Without a barrier XLA may
        # transpose at each step.
        self.weights = jax.lax.optimization_barrier(rows.swapaxes(1, 2))  # (B, D, C)

    def start_cache(self, source: Int[Array, "B S"], beams: int, length: int) -> DecodingCache:
        return self.model.start_cache(source, beams, length)

    def decode_step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B K C"], DecodingCache]:
        """Returns the logits of the shortlist, and the next cache. `tokens` are vocabulary ids."""
        x, cache = self.model.decoder.step(tokens, position, cache)
        x = x.astype(self.weights.dtype)
        logits = jnp.einsum("bkd,bdc->bkc", x, self.weights, preferred_element_type=FLOAT32)
        if self.bias is not None:
            logits = logits + self.bias[:, None]

        # -1 is not a token.
        return jnp.where((self.shortlisted >= 0)[:, None], logits, -jnp.inf), cache
