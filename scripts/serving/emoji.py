"""Emoji that a vocabulary lacks: a text is translated without them, and its translation gets them as marks."""

import re
from collections.abc import Callable, Iterable

from scripts.serving.inline_tags import Mark
from transformer.decoding.phrases import WORD

_SPACES = " \t\xa0"
# Without letters and digits in frames, which may be words.
_PICTOGRAPH = "[\u2300-\u23ff\u2600-\u2775\u2794-\u27bf\u2b00-\u2bff\U0001f000-\U0001f0ff\U0001f1e6-\U0001faff]"
_VARIANT = "[\u20e3\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
_EMOJI = re.compile(rf"(?P<emoji>{_PICTOGRAPH}{_VARIANT}*(?:\u200d{_PICTOGRAPH}{_VARIANT}*)*)(?P<space>[{_SPACES}]*)")


def take_out(text: str, marks: Iterable[Mark], knows: Callable[[str], bool]) -> tuple[str, list[Mark]]:
    """Returns the text without the emoji that `knows` rejects, and the marks with these.

    An emoji takes the space before it along, and at the start of a line also the space after it.
    """
    if not _EMOJI.search(text):
        return text, list(marks)
    kept, end, offset = "", 0, 0  # offset: of positions in `kept` from those in the text
    remaining = list(marks)
    moved: list[Mark] = []

    def move(limit: int) -> None:
        while remaining and remaining[0].position <= limit:
            mark = remaining.pop(0)
            moved.append(mark._replace(position=min(mark.position + offset, len(kept))))

    for emoji in _EMOJI.finditer(text):
        if knows(emoji["emoji"]):
            continue
        before, after = text[end : emoji.start()], text[emoji.end() : emoji.end() + 1]
        words, between = before.rstrip(_SPACES), emoji["space"]
        kept += words
        move(emoji.start())
        mark = before[len(words) :] + emoji["emoji"]
        if not kept or kept[-1].isspace():
            mark += between
            between = ""
        elif not between and after.isalnum() and (words != before or WORD.match(kept[-1]) and WORD.match(after)):
            between = " "
        moved.append(Mark(len(kept), mark))
        end = emoji.end()
        move(end - 1)
        kept += between
        offset = len(kept) - end
    kept += text[end:]
    move(len(text))
    return kept, moved
