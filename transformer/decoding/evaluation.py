"""Translation of texts and scoring of the translations.

Validation and `transformer.evaluate` call it.
"""

import bisect
import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax

from transformer.config.types import Config
from transformer.decoding.batches import Replicas
from transformer.decoding.bleu import References, bleu_language
from transformer.decoding.metrics import compute_metrics
from transformer.decoding.text_decoder import Report, TextDecoder
from transformer.decoding.translation import Translation
from transformer.distributed import coordination

# texts between two reports, at which the processes wait for each other
TEXTS_PER_DEVICE = 512


class ScoredTranslations(NamedTuple):
    """The best translation of each text, their scores, and the speed without compilation."""

    translations: list[Translation]
    scores: dict[str, float | str]
    speed: dict[str, float]


def translate_and_score(
    decoder: TextDecoder,
    parameters: Replicas,
    texts: Sequence[str],
    references: References,
    data_config: Config,
    metrics: Iterable[str],
    report: Report,
) -> ScoredTranslations:
    """Translates and scores the texts, which all processes share."""
    # Speed does not count compilation.
    start_time = time.perf_counter()
    compile_seconds_before = decoder.compile_seconds
    translations = _translate_together(decoder, parameters, texts, data_config, report)
    compile_seconds = decoder.compile_seconds - compile_seconds_before
    seconds = time.perf_counter() - start_time - compile_seconds
    tokens = sum(len(translation.tokens) for translation in translations)
    speed = {
        "seconds": seconds,
        "compile_seconds": compile_seconds,
        "output_tokens_per_second": tokens / seconds,
    }

    # A line that is blank on all sides is not a sentence, but may end a document.
    rows = zip(texts, *references, strict=True)
    sentences = [i for i, lines in enumerate(rows) if any(map(str.strip, lines))]
    sentences = sentences or list(range(len(texts)))
    hypotheses = [translations[i].text for i in sentences]
    references = [[lines[i] for i in sentences] for lines in references]
    scores = compute_metrics(hypotheses, references, bleu_language(data_config), metrics)
    return ScoredTranslations(translations, scores, speed)


def _translate_together(
    decoder: TextDecoder,
    parameters: Replicas,
    texts: Sequence[str],
    data_config: Config,
    report: Report,
) -> list[Translation]:
    """Returns the best translation of each text to all processes.

    Each process translates a part of the texts on its own devices. `report` is called equally often
    in each process, so it may be a collective. `data.wait_seconds` limits the time that a process
    may make no progress while another waits for it. No document is divided.
    """
    num_processes = jax.process_count()
    index = jax.process_index()
    if num_processes == 1:
        return [best for (best,) in decoder.translate(parameters, texts, report=report)]

    # The indices at which a part may begin or end.
    cuts = [
        i for i in range(len(texts)) if not (i and data_config.context and texts[i - 1].strip())
    ]
    cuts.append(len(texts))

    # Each part of `size` texts is divided among the processes, at cuts near equal fractions.
    translations = []
    size = TEXTS_PER_DEVICE * jax.device_count()
    for begin in range(0, len(texts), size):
        count = min(size, len(texts) - begin)
        low, high = (
            cuts[bisect.bisect_left(cuts, begin + count * i // num_processes)]
            for i in (index, index + 1)
        )
        part = decoder.translate(
            parameters, texts[low:high], 1, 1 + low, lambda _: coordination.publish_progress()
        )
        values = [dataclasses.astuple(best) for (best,) in part]
        parts = coordination.gather("translate its part", values, data_config.wait_seconds)
        for part in parts:
            for fields in part:
                fields = (tuple(x) if isinstance(x, list) else x for x in fields)  # from JSON
                translations.append(Translation(*fields))
        report(count)
    return translations
