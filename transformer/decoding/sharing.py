"""Translation by all processes of a run: each translates a part of the texts on its own devices."""

import dataclasses
from collections.abc import Callable, Sequence

import jax

from transformer.decoding.replicas import Replicas
from transformer.decoding.translation import Translation
from transformer.decoding.translator import Translator
from transformer.distributed import coordination

TEXTS_PER_DEVICE = 512  # between two reports; the processes wait for each other there


class SharedTranslator:
    """A translator whose `translate` all processes call with the same texts, and which gives all of them the result."""

    def __init__(self, translator: Translator, wait_seconds: int):
        """`wait_seconds` limits the time that a process may make no progress while another waits for it."""
        self.translator, self.wait_seconds = translator, wait_seconds

    @property
    def compile_seconds(self) -> float:
        """The seconds that this process has compiled."""
        return self.translator.compile_seconds

    def translate(
        self, replicas: Replicas, texts: Sequence[str], first_line: int, report: Callable[[int], None]
    ) -> list[list[Translation]]:
        """Returns the translations of all texts, as `Translator.translate` does.

        All processes call `report` equally often, so it may be a collective.
        """
        processes, index = jax.process_count(), jax.process_index()
        if processes == 1:
            return self.translator.translate(replicas, texts, first_line, report)

        def report_progress(_: int) -> None:
            coordination.publish_progress()

        translations: list[list[Translation]] = []
        size = TEXTS_PER_DEVICE * jax.device_count()
        for begin in range(0, len(texts), size):
            count = len(texts[begin : begin + size])
            low, high = (begin + count * i // processes for i in (index, index + 1))
            own = self.translator.translate(replicas, texts[low:high], first_line + low, report_progress)
            values = [[dataclasses.astuple(each) for each in found] for found in own]
            for share in coordination.gather("translate its part", values, self.wait_seconds):
                translations += [[_translation(each) for each in found] for found in share]
            report(count)
        return translations


def _translation(values: Sequence) -> Translation:
    """Returns the translation with these fields, whose tuples JSON has made lists."""
    return Translation(*(tuple(value) if isinstance(value, list) else value for value in values))
