"""Translation with required phrases: a search without them, and a second one for the sentences that need it."""

from collections.abc import Callable, Sequence

from transformer.decoding.control.control import Control, OutputControl
from transformer.decoding.translation import EMPTY, Translation, different_texts

# A function of sources, their controls and a report, which receives the number of finished sources. It returns the
# translations of each source.
Search = Callable[[list[list[int]], Sequence[Control], Callable[[int], None]], list[list[Translation]]]


def search_twice(
    search: Search,
    output_control: OutputControl,
    sources: Sequence[list[int]],
    controls: Sequence[Control],
    report: Callable[[int], None],
) -> list[list[Translation]]:
    """Returns translations that have their required phrases, as many of each source as one of the searches returns.

    A source is searched with its phrases only if an output of the search without them lacks one. So an output that has
    them without being forced to is never lost.
    """
    relaxed = [output_control.searches(control)[0] for control in controls]
    translations = search(list(sources), relaxed, lambda count: None)
    pending = [[] for _ in sources]
    limited = list(controls)
    for i, (control, outputs) in enumerate(zip(controls, translations, strict=True)):
        if sources[i] and any(output_control.lacks(output, control.required) for output in outputs):
            pending[i] = sources[i]
            limited[i] = output_control.with_limit(control, outputs[0])
    forced = search(pending, limited, report)
    for i, control in enumerate(controls):
        if pending[i]:
            count = max(len(translations[i]), len(forced[i]))
            free = [output for output in translations[i] if not output_control.lacks(output, control.required)]
            outputs = [output for output in [*free, *forced[i]] if output.tokens]
            outputs.sort(key=lambda output: -output.score)
            translations[i] = different_texts(outputs)[:count] or [EMPTY]
    return translations
