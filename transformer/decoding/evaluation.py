"""Translation of texts and scoring of the translations, as validation and `transformer.evaluate` do
it.
"""

import bisect
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jax

from transformer.config.types import Config
from transformer.decoding import bleu
from transformer.decoding.batches import Replicas
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import Translation
from transformer.distributed import coordination

TEXTS_PER_DEVICE = 512  # between two reports; the processes wait for each other there


@dataclass(frozen=True)
class ScoredTranslations:
    """The best translation of each text, their scores, and the speed without compilation."""

    translations: list[Translation]
    scores: dict[str, float | str]
    speed: dict[str, float]


def translate_and_score(
    decoder: TextDecoder,
    parameters: Replicas,
    texts: Sequence[str],
    references: bleu.References,
    data: Config,
    metrics: Iterable[str],
    report: Callable[[int], None],
) -> ScoredTranslations:
    """Translates and scores the texts, which all processes share.

    `report` gets the number of texts just finished.
    """
    began, compiled = time.perf_counter(), decoder.compile_seconds
    translations = _translate_together(decoder, parameters, texts, data, report)
    compile_seconds = decoder.compile_seconds - compiled
    seconds = time.perf_counter() - began - compile_seconds
    tokens = sum(len(translation.tokens) for translation in translations)
    speed = {
        "seconds": seconds,
        "compile_seconds": compile_seconds,
        "output_tokens_per_second": tokens / seconds,
    }
    # Lines that are blank on all sides are no sentences: they may end documents.
    sides = zip(texts, *references, strict=True)
    scored = [i for i, lines in enumerate(sides) if any(map(str.strip, lines))] or range(len(texts))
    hypotheses = [translations[i].text for i in scored]
    references = [[lines[i] for i in scored] for lines in references]
    scores = bleu.score(hypotheses, references, bleu.bleu_language(data), metrics)
    return ScoredTranslations(translations, scores, speed)


def _translate_together(
    decoder: TextDecoder,
    parameters: Replicas,
    texts: Sequence[str],
    data: Config,
    report: Callable[[int], None],
) -> list[Translation]:
    """Returns the best translation of each text to all processes. Each translates a part on its own
    devices.

    `report` is called equally often in each process, so it may be a collective. `data.wait_seconds`
    limits the time that a process may make no progress while another waits for it. No document is
    divided.
    """
    processes, index = jax.process_count(), jax.process_index()
    if processes == 1:
        return [best for (best,) in decoder.translate(parameters, texts, report=report)]
    translations = []
    size = TEXTS_PER_DEVICE * jax.device_count()
    # The indices at which a part may begin or end.
    cuts = [
        i for i in range(len(texts)) if i == 0 or not (data.context and texts[i - 1].strip())
    ] + [len(texts)]
    for begin in range(0, len(texts), size):
        count = min(size, len(texts) - begin)
        low, high = (
            cuts[bisect.bisect_left(cuts, begin + count * i // processes)]
            for i in (index, index + 1)
        )
        own = decoder.translate(
            parameters, texts[low:high], 1, 1 + low, lambda _: coordination.publish_progress()
        )
        values = [dataclasses.astuple(best) for (best,) in own]
        for part in coordination.gather("translate its part", values, data.wait_seconds):
            for fields in part:  # JSON makes lists of tuples
                translations.append(
                    Translation(*(tuple(x) if isinstance(x, list) else x for x in fields))
                )
        report(count)
    return translations
