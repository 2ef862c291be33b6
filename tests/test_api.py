"""The Python interface: the same results as the commands, any lists, threads, and errors that name
the item.
"""

import functools
import inspect
import io
import json
import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import transformer
from tests.checkpoints.workdirs import SOURCES, make_workdir, run
from transformer import api, translate
from transformer.api import Model
from transformer.decoding import ensemble
from transformer.decoding.control.arguments import check_text
from transformer.support import files
from transformer.support.errors import UserError

TEXTS = [*SOURCES, "", "7 6 5 4 3 2 1"]
N_BEST = 2


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        make_workdir(folder / name, seed, steps=(10, 20))
        for seed, name in enumerate(("first", "second"))
    ]


@pytest.fixture(scope="module")
def model(workdirs):
    return transformer.load(workdirs[0])


def command_output(monkeypatch, capsysbinary, *flags: str) -> list[list[dict]]:
    """Returns the translations that the command prints for TEXTS."""
    stdin = SimpleNamespace(
        buffer=io.BytesIO("".join(f"{text}\n" for text in TEXTS).encode()), isatty=lambda: False
    )
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(translate, f"--n_best={N_BEST}", "--format=jsonl", *flags) == 0
    return [
        json.loads(line)["translations"]
        for line in capsysbinary.readouterr().out.decode().splitlines()
    ]


def test_translations_and_scores_are_those_of_the_command(workdirs, monkeypatch, capsysbinary):
    first, second = map(str, workdirs)
    for folders, flags, settings in (
        (first, ("--checkpoint=10",), {"checkpoint": 10}),
        (
            [first, second],
            ("--average=2", "--decoding.beam_size=3"),
            {"average": 2, "beam_size": 3},
        ),
    ):
        names = folders if isinstance(folders, str) else ",".join(folders)
        expected = command_output(monkeypatch, capsysbinary, f"--workdir={names}", *flags)
        translations = transformer.load(folders, **settings).translate(iter(TEXTS), n_best=N_BEST)
        written = files.six_digits(
            [[vars(translation) for translation in best] for best in translations]
        )
        assert json.loads(json.dumps(written)) == expected


def test_translations_begin_with_their_prefixes(model):
    prefixes = iter(["7 6 7"] + [""] * (len(TEXTS) - 1))
    first, *others = model.translate(TEXTS, prefixes=prefixes)
    assert first[0].text.startswith("7 6 7") and others == model.translate(TEXTS)[1:]
    with pytest.raises(UserError, match="line 1: prefix=3: must be a str"):
        model.translate(["1"], prefixes=[3])


def test_translations_have_their_required_phrases(model):
    required = [["7 7"], [["5", "6"], "4 4 4"], *[[]] * (len(TEXTS) - 2)]
    (first, *_), (second, *_), *others = model.translate(TEXTS, required=required)
    assert "7 7" in first.text and "4 4 4" in second.text and {"5", "6"} & set(second.text.split())
    assert others == model.translate(TEXTS)[2:]
    assert {"7"}.isdisjoint(
        model.translate(["1"], required=[["5"]], banned=[["7"]])[0][0].text.split()
    )
    with pytest.raises(UserError, match=r"line 1: banned\[1\]=None: must be a str"):
        model.translate(["1"], banned=[["1", None]])
    for phrases, message in (
        ("7", "line 1: required='7': must be a list of phrases; put"),
        ([3], r"line 1: required\[0\]=3: must be a list"),
        ([[]], r"line 1: required=\[\[\]\]: has a phrase without alternatives"),
        (
            ["1 1 1 1 1 1"],
            "line 1: prefix and required phrases have 6 tokens, an output may have 4",
        ),
    ):
        with pytest.raises(UserError, match=message):
            model.translate(["1"], required=[phrases])


def test_a_glossary_is_applied_where_a_text_has_its_terms(model):
    texts = ["1 2 3", "4 5", "1 2"]
    plain, found = (
        model.translate(texts),
        model.translate(texts, glossary={"1 2": ["7 7", "6 6"], "2 3": "5"}),
    )
    assert found[1] == plain[1]
    for (before,), (after,) in zip(plain[::2], found[::2], strict=True):
        assert {"7 7", "6 6"}.isdisjoint({before.text[i : i + 3] for i in range(len(before.text))})
        assert "7 7" in after.text or "6 6" in after.text
    both = model.translate(texts[2:], glossary={"1 2": "7 7"}, required=[["5"]])[0][0].text
    assert "7 7" in both and "5" in both.split()
    for glossary, message in (
        (
            {"1  2": "7", "1 2": "6"},
            "glossary['1 2']: '1 2' has other translations already, '7'; list all",
        ),
        ({"1": 7}, "glossary['1']=7: must be a list of translations"),
        ({3: "7"}, "glossary[3]=3: must be a str"),
        (["1"], "glossary=['1']: must be a dict from terms to their translations"),
        ({"1": []}, "glossary['1']: must be a term with its translation"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            inspect.unwrap(Model.translate)(model, texts, glossary=glossary)
    for required in ([[]], [[]] * 4):
        with pytest.raises(UserError, match=f"required: has {len(required)} items, must have 3"):
            model.translate(texts, required=required, glossary={"1": "7"})


def test_a_translation_has_the_score_that_is_given_to_it(model):
    n_best = zip(TEXTS, model.translate(TEXTS, N_BEST), strict=True)
    pairs = [
        (text, translation) for text, translations in n_best for translation in translations if text
    ]
    scores = model.score((text, translation.text) for text, translation in pairs)
    for (_, made), score in zip(pairs, scores, strict=True):
        assert (score.text, score.tokens, score.pieces) == (made.text, made.tokens, made.pieces)
        np.testing.assert_allclose(
            score.token_log_probabilities, made.token_log_probabilities, atol=1e-4
        )
        np.testing.assert_allclose(
            [score.log_probability, score.score], [made.log_probability, made.score], rtol=1e-5
        )


def test_empty_lists_and_texts_give_empty_results(model):
    assert model.translate([]) == model.score([]) == model.encode([]) == []
    assert [best[0].text for best in model.translate(["", " "])] == ["", ""]
    assert model.score([("", "")])[0].pieces == model.encode([""])[0].pieces == ("</s>",)


def test_threads_may_share_a_model_and_compile_each_shape_once(workdirs, model, monkeypatch):
    shared, traced = transformer.load(workdirs[0]), []
    build_models = ensemble.build_models
    monkeypatch.setattr(
        ensemble, "build_models", lambda *models: traced.append(1) or build_models(*models)
    )
    calls = [
        functools.partial(method, shared)
        for method in (Model.translate, Model.encode)
        for _ in range(4)
    ]
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call, TEXTS[i % 4 :]) for i, call in enumerate(calls)]
    assert len(traced) == 2  # one search and one encoder
    for i, future in enumerate(futures[:4]):
        assert future.result() == model.translate(TEXTS[i:])
    for i, future in enumerate(futures[4:]):
        for mine, its in zip(future.result(), model.encode(TEXTS[i:]), strict=True):
            np.testing.assert_array_equal(mine.states, its.states)


LONG = "1 " * 30


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        (Model.translate, ("1 2",), "texts='1 2': must be a list of strings"),
        (Model.translate, (None,), "texts=None: must be a list of strings"),
        (Model.translate, (["1", b"2"],), "texts[1]=b'2': must be a str; decode it"),
        (
            Model.translate,
            (["1", "\ud800"],),
            "texts[1]: is not UTF-8, as it has half a surrogate pair at 0",
        ),
        (Model.translate, (["1", "x"],), "line 2: 'x': tokenizer.kind=ids reads"),
        (Model.translate, (["1"], 0), "n_best=0: must be an integer of at least 1"),
        (Model.translate, (["1"], 9), "n_best=9: must be at most decoding.beam_size=2"),
        (
            Model.score,
            ([("1", "2"), "12"],),
            "pairs[1]='12': must be a pair of texts, (source, target)",
        ),
        (Model.score, ([("1", None)],), "pairs[0][1]=None: must be a str"),
        (
            Model.score,
            ([("1", "2"), ("1", LONG)],),
            "pairs[1][1]: has 31 tokens including end-of-sentence",
        ),
        (
            Model.encode,
            (["1", LONG],),
            "texts[1]: has 31 tokens including end-of-sentence, must have at most 19",
        ),
        (Model.attention, ("1", ["2"]), "target=['2']: must be a str"),
        (Model.beam_tree, (["1"],), "text=['1']: must be a str"),
        (Model.attention, (LONG, "2"), "source: has 31 tokens including end-of-sentence"),
    ],
)
def test_an_error_names_the_item_and_the_remedy(model, method, arguments, message):
    with pytest.raises(ValueError) as caught:
        inspect.unwrap(method)(model, *arguments)  # without the type checks of the test suite
    assert str(caught.value).startswith(message)


def test_a_forked_child_is_refused_instead_of_hanging(model, workdirs, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 1)  # as in a child
    texts = (model.translate, model.encode)
    calls = [
        *(functools.partial(method, ["1"]) for method in texts),
        functools.partial(model.score, [("1", "1")]),
    ]
    calls += [
        lambda: model.attention("1", "1"),
        lambda: model.beam_tree("1"),
        lambda: transformer.load(workdirs[0]),
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"forked .* multiprocessing.get_context\(\"spawn\"\)"):
            call()


def test_a_line_break_counts_as_a_space_whatever_the_tokenizer():
    assert check_text("a\nb\r\n", "text").rstrip() == "a b"


def test_loading_errors_name_the_argument(workdirs):
    for arguments, settings, message in (
        (
            (None, "best", 1),
            {},
            "workdir=None: must be the folder of a run, or a list of such folders",
        ),
        (([], "best", 1), {}, "workdir=[]: must be the folder of a run"),
        ((5, "best", 1), {}, "workdir=5: must be the folder of a run"),
        ((["runs/a", None], "best", 1), {}, "workdir=['runs/a', None]: must be the folder of"),
        ((workdirs, "best", "5"), {}, "average='5': must be an integer"),
        ((workdirs, "best", 2.5), {}, "average=2.5: must be an integer"),
        (("runs/absent", "best", 1), {}, "workdir=runs/absent: no such folder"),
        ((workdirs, 25, 1), {}, "checkpoint=25: must be best, last or one of the steps 10, 20"),
        ((workdirs, "best", 0), {}, "average=0: must be an integer of at least 1"),
        (
            (workdirs, "best", 1),
            {"beam": 3},
            "decoding.beam=3: there is no key decoding.beam; did you mean",
        ),
        ((workdirs, "best", 1), {"beam_size": None}, "decoding.beam_size=None: must be an integer"),
    ):
        with pytest.raises(UserError) as caught:
            api.load(*arguments, settings)
        assert str(caught.value).startswith(message)


def test_alternatives_begin_with_the_prefix_and_another_token(model):
    found = model.alternatives("1 2 3", "7 6", count=3)
    assert len({translation.tokens[2] for translation in found}) == 3
    assert all(f"{translation.text} ".startswith("7 6 ") for translation in found)
    for arguments, message in (
        (("1", "2", 0), "count=0: must be an integer of at least 1"),
        (("1", 2, 1), "prefix=2: must be a str"),
    ):
        with pytest.raises(UserError, match=message):
            inspect.unwrap(Model.alternatives)(model, *arguments)
    with pytest.raises(
        UserError, match="alternatives: is not defined for decoding.strategy=sample"
    ):
        model.with_decoding(strategy="sample").alternatives("1", "", 1)


def test_a_beam_tree_is_that_of_a_beam_search(workdirs):
    with pytest.raises(UserError, match="beam_tree: is not defined for decoding.strategy=sample"):
        transformer.load(workdirs[0], strategy="sample").beam_tree("1")


def test_an_ensemble_has_no_single_encoder(workdirs):
    models = transformer.load(workdirs)
    for call in (lambda: models.encode(["1"]), lambda: models.attention("1", "2")):
        with pytest.raises(UserError, match="not defined for an ensemble of 2; load one workdir"):
            call()


def test_a_ctc_model_has_no_states_of_tokens(tmp_path):
    settings = {
        "training.objective": "ctc",
        "training.label_smoothing": "0.0",
        "decoding.strategy": "ctc",
    }
    model = transformer.load(make_workdir(tmp_path / "run", steps=(10,), **settings))
    with pytest.raises(
        UserError, match=r"encode: is not defined for a model of training\.objective=ctc"
    ):
        model.encode(["1"])


def test_too_long_texts_are_cut_with_a_warning_and_loading_logs_nothing(workdirs, caplog):
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("absl")
    settings = logger.level, logger.filters[:], logger.handlers[:]
    model = transformer.load(workdirs[0])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (logger.level, logger.filters, logger.handlers) == settings
    assert model.translate(["1", LONG])[1] == model.translate(["1 " * 15])[0]
    assert (
        "Line 2 has 31 tokens including end-of-sentence; only the first 15 are translated"
        in caplog.text
    )


def test_importing_the_package_does_not_import_jax():
    subprocess.run(
        [sys.executable, "-c", "import sys, transformer; assert 'jax' not in sys.modules"],
        check=True,
    )


def test_compiled_shapes_are_all_that_translate_needs(workdirs):
    model = transformer.load(workdirs[0], max_source_length=20)
    for n_best in (1, N_BEST):
        model.compile(n_best)
    programs = model.decoder.programs.compiled
    ahead = set(programs)
    for n_best in (1, N_BEST):
        model.translate([" ".join("1" * length) for length in range(1, 20)], n_best)
    assert set(programs) == ahead
    with pytest.raises(UserError, match="n_best=0"):
        model.compile(0)


def test_other_decoding_keys_share_the_parameters(model):
    other = model.with_decoding(batch_tokens=1, beam_size=1)
    assert other.parameters is model.parameters and model.config.decoding.batch_tokens == 128
    greedy = transformer.load(model.checkpoints[0].workdir, beam_size=1)
    assert [best[0].text for best in other.translate(TEXTS)] == [
        best[0].text for best in greedy.translate(TEXTS)
    ]
    with pytest.raises(UserError, match="decoding.beam_size=0: "):
        model.with_decoding(beam_size=0)
    for changed in ({"shortlist": 8}, {"dtype": "int8"}):
        with pytest.raises(
            UserError, match=f"^{[*changed][0]}: cannot be changed in a loaded model"
        ):
            model.with_decoding(**changed)


def test_tokens_are_counted_with_the_end_of_sentence(model):
    assert [model.num_tokens(text) for text in ("", "1 2 3")] == [1, 4]
    assert [model.knows(text) for text in ("", "1 2 3", "1 99999")] == [True, True, False]
