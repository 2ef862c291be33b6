"""The table of `data.target_form`: what the target texts of a run are, and how people see them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformer.decoding.translation import Translations
from transformer.decoding.trees.output import read_sentence, show_trees
from transformer.decoding.trees.well_formed import make_rule


class TargetForm(NamedTuple):
    """The form of target texts. `Metric.target_form` names the form of a metric.

    read_source: a function of a line that a person types. It returns the text to translate.
    show: a function of the sources of some lines, their translations and the number of the first
      line. It returns the translations with texts for people, and warns about damaged ones.
    output_rule: a function of the tokenizer. It returns a function from source tokens (B, S) to the
      value of the constraint `decoding.well_formed`. None: any text is well formed.
    is_longer: whether most outputs are much longer than their sources.
    """

    read_source: Callable[[str], str] = lambda text: text
    show: Callable[[Sequence[str], Translations, int], Translations] = (
        lambda sources, translations, first_line: translations
    )
    output_rule: Any = None
    is_longer: bool = False


TARGET_FORMS = {
    "text": TargetForm(),
    "tree": TargetForm(read_sentence, show_trees, make_rule, is_longer=True),
}
