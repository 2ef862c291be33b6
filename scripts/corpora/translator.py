"""Translation of the shards of a corpus by one process."""

import hashlib
import io
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow
from pyarrow import parquet

from scripts.corpora.plan import Plan, Request, Shard
from transformer.checkpoints import trained
from transformer.checkpoints.trained import Trained
from transformer.data.sources.lines import read_text_file
from transformer.decoding.control.arguments import LINE_BREAKS
from transformer.support import cache, files
from transformer.support.errors import UserError
from transformer.workdir import split_names

Rows = list[tuple[Any, ...]]  # with the columns of SCHEMA

# translated together, on any number of devices: batches must not depend on the machine
CHUNK_LINES = 4096
SCHEMA = pyarrow.schema(
    {
        "file": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "line": pyarrow.int64(),  # in the file, from 1
        # of the translation among the n_best of the line, each of which has a row
        "rank": pyarrow.int32(),
        "source": pyarrow.string(),
        "translation": pyarrow.string(),
        "score": pyarrow.float64(),
        # null if the line was translated; else rank, translation and score are null
        "error": pyarrow.string(),
        # the translation is of the first tokens of a line that was too long
        "cut": pyarrow.bool_(),
    }
)


class Report(NamedTuple):
    """A finished shard: its lines, how many are cut, an error for each that is not translated, and
    the seconds.
    """

    number: int
    lines: int
    cut: int
    errors: Sequence[str]
    seconds: float


def load(
    workdir: str, checkpoint: str, average: int, overrides: Sequence[tuple[str, str]]
) -> Trained:
    """Loads the models of the flags.

    Raises UserError if they cannot be loaded or translate no single sentences.
    """
    models = trained.load(split_names(workdir), checkpoint, average, overrides)
    trained.check_translates_sentences(models.config, workdir)
    return models


def identity(models: Trained) -> dict[str, Any]:
    """Returns all of the models that translations depend on, wherever their workdir is, as JSON
    types.
    """
    banned = models.config.decoding.banned
    digest = hashlib.sha256(
        "\n".join(read_text_file(files.expanded(banned)) if banned else []).encode()
    )
    rerankers = [scorer.parameters[scorer.models.devices[0]] for scorer in models.scorers]
    for array in jax.tree.leaves((models.parameters, rerankers)):
        digest.update(np.ascontiguousarray(array))
    return {
        "languages": [models.config.data.source_language, models.config.data.target_language],
        "steps": [list(checkpoint.averaged) for checkpoint in models.checkpoints],
        "parameters": digest.hexdigest()[:16],
        "model": cache.key(models.config.model.to_dict()),
        "vocabulary": f"{models.tokenizer.fingerprint} {models.tokenizer.source_tag}".strip(),
        "decoding": models.config.decoding.to_dict(),
    }


class Translator:
    """Models on the devices of this process, which translate shards of a plan."""

    def __init__(self, models: Trained, plan: Plan) -> None:
        self.plan = plan
        self.decoder, self.parameters = models.decoder()

    def translate(self, shard: Shard) -> Report:
        """Writes the file of a shard, atomically.

        A line that cannot be translated, for example since it is not UTF-8, has its error in the
        file and the report.
        """
        began = time.perf_counter()
        texts, errors, cut = self._read(shard)
        first_line = shard.start + 1
        n_best = self.plan.request["n_best"]
        translations = []
        usable = [
            "" if line in errors else text for line, text in enumerate(texts, start=first_line)
        ]
        for start in range(0, len(texts), CHUNK_LINES):
            chunk = usable[start : start + CHUNK_LINES]
            translations += self.decoder.translate(
                self.parameters, chunk, n_best, first_line + start
            )
        rows = []
        for line, text, best in zip(itertools.count(first_line), texts, translations):
            if line in errors:
                rows.append((shard.file, line, None, text, None, None, errors[line], False))
                continue
            for rank, translation in enumerate(best, start=1):
                score = round(translation.score, 4)
                rows.append(
                    (shard.file, line, rank, text, translation.text, score, None, line in cut)
                )
        files.write_bytes(
            self.plan.path(shard), FORMATS[self.plan.request["format"]](rows, self.plan.request)
        )
        messages = [f"{shard.file}, line {line} {error}" for line, error in errors.items()]
        return Report(shard.number, len(texts), len(cut), messages, time.perf_counter() - began)

    def _read(self, shard: Shard) -> tuple[list[str], dict[int, str], set[int]]:
        """Returns the texts of a shard, "" where one cannot be decoded, errors by line, and long
        lines.
        """
        longest = self.decoder.config.max_source_length
        texts = []
        errors = {}
        cut = set()
        for line, content in enumerate(self.plan.read(shard), start=shard.start + 1):
            text = ""
            if content is None:
                errors[line] = "has no text"
            else:
                try:
                    text = content.decode().translate(LINE_BREAKS)
                    (tokens,) = self.decoder.tokenizer.encoders[0].encode([text])
                    if len(tokens) + 1 > longest:  # with end-of-sentence
                        cut.add(line)
                except UnicodeDecodeError as error:
                    errors[line] = f"is not UTF-8 (byte {error.start + 1})"
                except UserError as error:
                    errors[line] = f"cannot be encoded: {error}"
            texts.append(text)
        return texts, errors, cut


def as_text(rows: Rows, request: Request) -> bytes:
    """Returns lines of LINE, SCORE and TRANSLATION, separated by tabs.

    The last two are empty after an error.
    """
    return "".join(
        f"{line}\t\t\n" if text is None else f"{line}\t{score:.4f}\t{text}\n"
        for _, line, _, _, text, score, *_ in rows
    ).encode()


def as_parquet(rows: Rows, request: Request) -> bytes:
    """Returns a Parquet file with the columns of SCHEMA, and the request, which names the model, as
    metadata.
    """
    sink = io.BytesIO()
    schema = SCHEMA.with_metadata({"request": json.dumps(request)})
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [
        pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)
    ]
    parquet.write_table(pyarrow.table(arrays, schema=schema), sink, compression="zstd")
    return sink.getvalue()


FORMATS = {"text": as_text, "parquet": as_parquet}
