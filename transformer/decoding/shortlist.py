"""A lexical shortlist: the target tokens that a search considers for a sentence, instead of the
whole vocabulary.

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
from transformer.model.kernels import FLOAT32, batched_dtype, product_dtype
from transformer.model.transformer import Transformer
from transformer.support import files
from transformer.support.errors import UNREADABLE, UserError
from transformer.support.special_tokens import SPECIAL


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The likeliest translations of each source token, and the most frequent target tokens.

    translations: target tokens, the most probable first; -1 where a source token has fewer.
    frequent: candidates of every sentence. vocab_size: V, the number of target tokens.
    is_shared: whether both languages have one vocabulary. Source tokens are then candidates too, to
        be copied.
    """

    translations: Int[np.ndarray, "VS N"]
    frequent: Int[np.ndarray, "F"]
    vocab_size: int
    is_shared: bool

    def candidates(self, source: Int[np.ndarray, "B S"]) -> Int[np.ndarray, "B C"]:
        """Returns the target tokens to consider for each row, without duplicates; -1 where a row
        has fewer than C.

        The special tokens come first, each at the index that is its id; other tokens ascend. C
        depends on S only.
        """
        rows = len(source)
        candidates = [
            self.translations[source].reshape(rows, -1),
            np.tile(self.frequent, (rows, 1)),
        ]
        tokens = np.sort(
            np.concatenate([*candidates, source] if self.is_shared else candidates, axis=1), axis=1
        )
        is_repeated = np.diff(tokens, axis=1, prepend=-1) == 0
        # which is no token, and sorts after all tokens
        tokens[is_repeated | (tokens < SPECIAL)] = self.vocab_size
        tokens = np.sort(tokens, axis=1)[:, : self.vocab_size - SPECIAL]
        tokens[tokens == self.vocab_size] = -1
        return np.concatenate([np.tile(np.arange(SPECIAL), (rows, 1)), tokens], axis=1).astype(
            np.int32
        )

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for equal shortlists."""
        arrays = (self.translations, self.frequent)
        return hashlib.sha256(
            b" ".join(np.ascontiguousarray(array) for array in arrays)
        ).hexdigest()

    def save(self, path: Path, tokenizer: Tokenizer) -> None:
        """Writes the shortlist atomically, with the tokenizer's fingerprint."""
        content = io.BytesIO()
        arrays = {"translations": self.translations, "frequent": self.frequent}
        np.savez_compressed(content, vocabulary=tokenizer.fingerprint, **arrays)
        files.write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer, size: int | None) -> "Shortlist":
        """Reads a shortlist with `size` translations of each source token; None: all.

        Raises UserError if it cannot.
        """
        flag = f"--decoding.shortlist={size}"
        command = f"python -m scripts.shortlist --workdir={shlex.quote(str(path.parent))}"
        if not path.exists():
            raise UserError(f"{flag}: {path} is missing; make it with: {command}")
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                vocabulary, translations, frequent = map(
                    arrays.__getitem__, ("vocabulary", "translations", "frequent")
                )
        except (*UNREADABLE, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(
                f"{path}: damaged ({type(error).__name__}); make it again with: {command}"
            ) from error
        if vocabulary != tokenizer.fingerprint:
            raise UserError(f"{path}: is for another vocabulary; make it again with: {command}")
        if size is not None and size > (most := translations.shape[1]):
            raise UserError(
                f"{flag}: must be at most {most}, the translations of each token in {path}"
            )
        return cls(translations[:, :size], frequent, tokenizer.target.size, tokenizer.is_shared)


class CandidateModel:
    """An `AutoregressiveModel` that predicts only the candidates of a row, never -1.

    Their probabilities sum to 1.
    """

    def __init__(self, model: Transformer, candidates: Int[Array, "B C"]):
        self.model, self.candidates = model, candidates
        dtype = batched_dtype(product_dtype(model.decoder.embedding.dtype))
        table, bias = model.output_table_and_bias
        rows = jnp.take(table, candidates, axis=0, mode="clip").astype(dtype)
        self.bias = None if bias is None else jnp.take(bias, candidates, mode="clip")
        # (B, D, C), since the product of a step is faster so on CPUs. Without a barrier XLA may
        # transpose at each step.
        self.weights = jax.lax.optimization_barrier(rows.swapaxes(1, 2))

    def start_cache(self, source: Int[Array, "B S"], beams: int, length: int) -> DecodingCache:
        return self.model.start_cache(source, beams, length)

    def decode_step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B K C"], DecodingCache]:
        """Returns the logits of the candidates as the token after `tokens`, which are ids of the
        vocabulary.
        """
        x, cache = self.model.decoder.step(tokens, position, cache)
        x = x.astype(self.weights.dtype)
        logits = jnp.einsum("bkd,bdc->bkc", x, self.weights, preferred_element_type=FLOAT32)
        logits = logits if self.bias is None else logits + self.bias[:, None]
        return jnp.where((self.candidates >= 0)[:, None], logits, -jnp.inf), cache
