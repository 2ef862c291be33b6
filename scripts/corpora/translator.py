"""Translation of the shards of a corpus by one process."""

import hashlib
import io
import itertools
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow
from absl import logging
from pyarrow import parquet

from scripts.corpora.shards import Json, Shard, ShardedCorpus
from transformer.checkpoints import loaded_models
from transformer.checkpoints.loaded_models import LoadedModels
from transformer.data.sources.lines import read_text_file
from transformer.decoding.control.arguments import LINE_BREAKS
from transformer.support import cache, files
from transformer.support.errors import UserError, first_of
from transformer.workdir import split_names

Rows = list[tuple[Any, ...]]  # values of the columns of SCHEMA

# Lines that are translated together. It is a constant because batches must not depend on the
# machine or the number of its devices.
CHUNK_LINES = 4096
SHOWN = 3  # errors of a shard in the log; its file has all
# A line has a row for each of its n_best translations.
SCHEMA = pyarrow.schema(
    {
        "file": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "line": pyarrow.int64(),  # in the file, from 1
        "rank": pyarrow.int32(),  # of the translation, from 1
        "source": pyarrow.string(),
        "translation": pyarrow.string(),
        "score": pyarrow.float64(),
        # Null if the line was translated; otherwise rank, translation and score are null.
        "error": pyarrow.string(),
        # True if the line was too long, and only its first tokens were translated.
        "cut": pyarrow.bool_(),
    }
)


class ShardReport(NamedTuple):
    """A finished shard: its number of lines, of cut lines, and an error for each failed line."""

    number: int
    lines: int
    cut: int
    errors: Sequence[str]
    seconds: float


def load(
    workdir: str, checkpoint: str, average: int, overrides: Sequence[tuple[str, str]]
) -> LoadedModels:
    """Loads the models of the flags.

    Raises UserError if they cannot be loaded, or do not translate single sentences.
    """
    models = loaded_models.load(split_names(workdir), checkpoint, average, overrides)
    loaded_models.check_translates_sentences(models.config, workdir)
    return models


def identity(models: LoadedModels) -> Json:
    """Returns everything in the models that affects translations, as JSON types.

    It does not depend on the path of the workdir.
    """
    config = models.config
    banned = config.decoding.banned
    # The content of the file of banned phrases counts, not its path.
    phrases = read_text_file(files.expand_user(banned)) if banned else []
    digest = hashlib.sha256("\n".join(phrases).encode())
    # Every device has a copy of a reranker's parameters; one copy identifies them.
    rerankers = [scorer.parameters[scorer.models.devices[0]] for scorer in models.scorers]
    for array in jax.tree.leaves((models.parameters, rerankers)):
        digest.update(np.ascontiguousarray(array))
    return {
        "languages": [config.data.source_language, config.data.target_language],
        "steps": [list(checkpoint.averaged) for checkpoint in models.checkpoints],
        "parameters": digest.hexdigest()[:16],
        "model": cache.digest_of(config.model.to_dict()),
        "vocabulary": f"{models.tokenizer.fingerprint} {models.tokenizer.source_tag}".strip(),
        "decoding": config.decoding.to_dict(),
    }


def make_request(
    models: LoadedModels,
    paths: Sequence[Path],
    n_best: int,
    format: str = "parquet",
    column: str = "text",
    shards: int | None = None,
) -> Json:
    """Returns the request for the translation of files, which all workers must share."""
    return {
        "model": identity(models),
        "files": [(str(path), path.stat().st_size) for path in paths],
        "format": format,
        "column": column,
        "n_best": n_best,
        "shards": shards,
    }


def add_up(reports: Iterable[ShardReport], count: int) -> dict[str, int]:
    """Logs the report of each of `count` shards when it is finished, and returns their totals."""
    logging.info("%d shards are missing here.", count)
    totals = {"lines": 0, "cut": 0, "untranslated": 0}
    for number, report in enumerate(reports, start=1):
        totals["lines"] += report.lines
        totals["cut"] += report.cut
        totals["untranslated"] += len(report.errors)
        if report.errors:
            logging.warning("Not translated: %s.", first_of(report.errors, SHOWN))
        progress = (report.number, report.lines, report.seconds, number, count)
        logging.info("Shard %d: %d lines in %.1f s; %d of %d shards are done.", *progress)
    return totals


class Translator:
    """Models on the devices of this process, which translate shards of a corpus."""

    def __init__(self, models: LoadedModels, corpus: ShardedCorpus) -> None:
        self.corpus = corpus
        self.decoder, self.parameters = models.decoder()

    def translate(self, shard: Shard) -> ShardReport:
        """Writes the file of a shard, atomically.

        A line that cannot be translated, for example because it is not UTF-8, has its error in the
        file and the report.
        """
        start_time = time.perf_counter()
        request = self.corpus.request
        first_line = shard.start + 1
        texts, errors, cut = self._read(shard)

        # Lines with errors are translated as empty lines, so that positions do not change.
        sources = ["" if first_line + i in errors else text for i, text in enumerate(texts)]
        translations = []
        for start in range(0, len(texts), CHUNK_LINES):
            chunk = sources[start : start + CHUNK_LINES]
            translations += self.decoder.translate(
                self.parameters, chunk, request["n_best"], first_line + start
            )

        rows = []
        for line, text, n_best in zip(itertools.count(first_line), texts, translations):
            # A failed line has one row, with the error instead of translations.
            if line in errors:
                rows.append((shard.file, line, None, text, None, None, errors[line], False))
                continue
            is_cut = line in cut
            for rank, translation in enumerate(n_best, start=1):
                score = round(translation.score, 4)
                rows.append((shard.file, line, rank, text, translation.text, score, None, is_cut))

        content = FORMATS[request["format"]](rows, request)
        files.write_bytes(self.corpus.path(shard), content)
        # The log of the command shows the first messages.
        messages = [f"{shard.file}, line {line} {error}" for line, error in errors.items()]
        seconds = time.perf_counter() - start_time
        return ShardReport(shard.number, len(texts), len(cut), messages, seconds)

    def _read(self, shard: Shard) -> tuple[list[str], dict[int, str], set[int]]:
        """Reads a shard.

        Returns:
          The texts, "" where a line cannot be decoded; the errors by line number; and the numbers
          of the lines that are too long for the model.
        """
        longest = self.decoder.decoding_config.max_source_length
        texts = []
        errors = {}
        cut = set()
        for line, content in enumerate(self.corpus.read(shard), start=shard.start + 1):
            text = ""
            if content is None:
                errors[line] = "has no text"
            else:
                try:
                    # The decoder cuts long lines, and only logs a warning.
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


def as_text(rows: Rows, request: Json) -> bytes:
    """Returns lines of LINE, SCORE and TRANSLATION, separated by tabs.

    The last two are empty after an error.
    """
    lines = []
    for _, line, _, _, text, score, *_ in rows:
        lines.append(f"{line}\t\t\n" if text is None else f"{line}\t{score:.4f}\t{text}\n")
    return "".join(lines).encode()


def as_parquet(rows: Rows, request: Json) -> bytes:
    """Returns a Parquet file with the columns of SCHEMA.

    Its metadata has the request, which identifies the model.
    """
    schema = SCHEMA.with_metadata({"request": json.dumps(request)})
    records = [dict(zip(schema.names, row, strict=True)) for row in rows]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(records, schema=schema), sink, compression="zstd")
    return sink.getvalue()


FORMATS = {"text": as_text, "parquet": as_parquet}
