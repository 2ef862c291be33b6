"""The rows of the paper's tables and the named variants: what they change, and how many parameters
they have.
"""

import inspect
import itertools
import re

import ml_collections
import pytest

from configs import parsing, table2, table3, variants, verses
from tests.model.test_parameters import closed_formula, count
from transformer.config import loading
from transformer.config.keys import flatten
from transformer.data.sources.mixture import held_out_sets, listed_corpora
from transformer.support.errors import UserError

NAMES = {
    "table2": table2.ROWS,
    "table3": table3.ROWS,
    "variants": variants.VARIANTS,
    "verses": verses.VARIANTS,
    "parsing": parsing.ROWS,
}
ALL = [(config, name) for config, names in NAMES.items() for name in names]


def load(config: str, name: str):
    return loading.load_file(f"configs/{config}.py:{name}", [])


# 12 layers take a second
@pytest.mark.parametrize("layers", [1, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("config", "name"), ALL)
def test_each_has_as_many_parameters_as_the_formula_says(config, name, layers):
    loaded = load(config, name)
    model = ml_collections.ConfigDict(loaded.model)
    model.num_layers = layers or model.num_layers
    sizes = (loaded.tokenizer.vocab_size, loaded.tokenizer.vocab_size)
    assert count(model, *sizes) == closed_formula(model, *sizes)


def test_the_formula_gives_the_counts_that_table_3_prints():
    """Uses vocabulary sizes at which all counts fit, since Table 3 does not state them."""
    printed = {name: row.millions for name, row in table3.ROWS.items() if row.millions is not None}
    assert len(printed) == 11
    for name, millions in printed.items():
        rows = 36_000 if name == "big" else 41_000
        assert closed_formula(load("table3", name).model, rows, rows) / 1e6 == pytest.approx(
            millions, rel=0.02
        ), name


def test_a_row_changes_only_what_differs_from_its_parent():
    rows = table2.ROWS | {name: (table3.base, row.changes) for name, row in table3.ROWS.items()}
    assert len(rows) == len(table2.ROWS) + len(table3.ROWS)
    for name, (parent, changes) in rows.items():
        before = flatten(parent.get_config())
        assert [key for key, value in changes.items() if before[key] == value] == [], name


@pytest.mark.parametrize("variant", variants.VARIANTS)
def test_a_variant_changes_only_what_differs_from_its_parent(variant):
    source = inspect.getsource(variants.VARIANTS[variant])
    (parent,) = re.findall(r"^    config = ([\w.]+)\(", source, re.MULTILINE)
    assigned = re.findall(r"^    config\.(\w+\.\w+) = ", source, re.MULTILINE)
    config, before = flatten(load("variants", variant)), flatten(eval(parent, vars(variants))())
    assert assigned and [key for key in assigned if config[key] == before[key]] == []


def test_the_docstring_of_table_3_has_the_figures_of_its_rows():
    figures = {}
    for line in table3.__doc__.splitlines():
        for name, *numbers in re.findall(r"(\w[\w.]*) +(\d\.\d\d)  (\d\d\.\d)(?: +(\d+))?", line):
            figures[name] = tuple(float(number) for number in numbers if number)
    paper = {name: (row.perplexity, row.bleu, row.millions) for name, row in table3.ROWS.items()}
    assert figures == {
        name: tuple(number for number in row if number is not None) for name, row in paper.items()
    }


def test_the_variants_of_the_verses():
    every, alone, context = (load("verses", name) for name in verses.VARIANTS)
    pairs = [
        (part.data.source_language, part.data.target_language)
        for part in listed_corpora(every.data)
    ]
    assert sorted(pairs) == sorted(itertools.permutations(verses.LANGUAGES, 2))
    assert held_out_sets(every).keys() == {"", "de-en", "fr-ru"}
    difference = loading.difference(alone, context)
    assert difference.keys() == {"data.context", "data.max_length", "batch.packed_length"}
    # Batches have equally many positions: no row of batch.tokens is lost.
    for config in (every, alone, context):
        rows = config.batch.tokens / config.batch.packed_length
        assert rows % config.batch.row_multiple == 0
        assert config.data.max_length <= config.batch.packed_length


def test_the_last_row_of_table_3_is_the_big_model():
    difference = loading.difference(load("table3", "big"), loading.load_file("configs/big.py", []))
    assert difference.keys() == {"checkpoint.keep", "training.eval_beam_size"}


@pytest.mark.parametrize("argument", [":A_h3", ""])
@pytest.mark.parametrize("config", NAMES)
def test_an_unknown_name_is_refused_with_the_names(config, argument):
    with pytest.raises(UserError) as error:
        loading.load_file(f"configs/{config}.py{argument}", [])
    (line,) = str(error.value).splitlines()
    kind = "variant" if config in ("variants", "verses") else "row"
    assert line.startswith(
        f"configs/{config}.py: {kind}={argument.removeprefix(':')}: must be one of "
        f"{', '.join(NAMES[config])}"
    )


def test_the_peak_learning_rates_are_those_of_the_sources():
    for variant, peak in (
        ("fairseq_scaling_nmt_big", 0.001),
        ("flax_wmt", 0.002),
        ("deep_encoder", 0.0005),
    ):
        config = load("variants", variant)
        scale = (config.model.d_model * config.optimizer.warmup_steps) ** -0.5
        assert config.optimizer.learning_rate * scale == pytest.approx(peak)
