"""Translation of documents: contexts, given translations, ends of documents, and the translation
without its context.
"""

import dataclasses

import jax
import ml_collections
import pytest

from scripts.corpora import translator
from scripts.serving.models import load_models
from tests.checkpoints.workdirs import make_workdir
from transformer.checkpoints import loaded_models
from transformer.config.types import output_limit, with_changes
from transformer.decoding import documents, evaluation
from transformer.decoding.batches import DeviceModels
from transformer.decoding.control.control import Control
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.decoders import make_decoder
from transformer.decoding.translation import EMPTY
from transformer.distributed import coordination
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS

SETTINGS = {
    "data.source": "text",
    "tokenizer.kind": "char",
    "tokenizer.vocab_size": "40",
    "data.context": "1",
    "decoding.max_extra_length": "8",
    "decoding.max_source_length": "24",
    "training.eval_bleu": "false",
    "checkpoint.best_metric": "loss",
}
TEXTS = ["1 2", "3", "4 5", "", "", "6 7", " ", "2 2", "5"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    workdir = make_workdir(tmp_path_factory.mktemp("runs") / "documents", **SETTINGS)
    return loaded_models.load([str(workdir)], "best", 1, [])


@pytest.mark.parametrize("context", [0, 1])
def test_processes_divide_the_texts_between_documents(loaded, monkeypatch, context):
    texts, given = ["a", "b", "c", "", "d", "e", "", "f"], {}

    def translate(parameters, texts, n_best, first_line, report):
        given[jax.process_index()].append((first_line, list(texts)))
        return [[EMPTY]] * len(texts)

    decoder, parameters = loaded.decoder()
    decoder.translate = translate
    monkeypatch.setattr(evaluation, "TEXTS_PER_DEVICE", 6)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(coordination, "gather", lambda what, values, seconds: [values])
    for index in range(2):
        given[index] = []
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        data = with_changes(loaded.config.data, context=context)
        evaluation._translate_together(decoder, parameters, texts, data, lambda count: None)
    parts = sorted(part for parts in given.values() for part in parts)
    assert [text for _, part in parts for text in part] == texts
    assert all(texts[line - 1 : line - 1 + len(part)] == part for line, part in parts)
    if context:
        assert all(not part or line == 1 or texts[line - 2] == "" for line, part in parts)
    assert len([part for _, part in parts if part]) >= 2


def test_a_sentence_is_searched_after_the_translation_of_the_one_before_it(loaded):
    decoder, parameters = loaded.decoder()
    found = [translations[0] for translations in decoder.translate(parameters, TEXTS)]
    assert all(not found[line].tokens for line in (3, 4, 6))
    sentences = super(type(decoder), decoder)
    (alone,) = sentences.translate(parameters, ["5"])
    separator = decoder.tokenizer.target.encode(["<sep>"])[0]
    for line, before in ((0, None), (1, 0), (2, 1), (5, None), (7, None), (8, 7)):
        prefix = [] if before is None else [*found[before].tokens[:-1], *separator]
        source = TEXTS[line] if before is None else f"{TEXTS[before]} <sep> {TEXTS[line]}"
        ((whole,),) = sentences.translate(parameters, [source], controls=[Control(prefix=prefix)])
        assert whole.tokens[: len(prefix)] == tuple(prefix)
        assert found[line].tokens == whole.tokens[len(prefix) :]
        assert found[line].log_probability == pytest.approx(
            sum(whole.token_log_probabilities[len(prefix) :]), abs=1e-4
        )
        assert len(found[line].pieces) == len(found[line].tokens)
    assert alone[0].tokens != found[8].tokens


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_the_context_ends_as_the_targets_of_training_do(tmp_path, kind):
    workdir = make_workdir(
        tmp_path / "run", **SETTINGS | {"tokenizer.kind": kind, "tokenizer.vocab_size": "300"}
    )
    decoder, _ = loaded_models.load([str(workdir)], "best", 1, []).decoder()
    (whole,) = decoder.tokenizer.target.encode(["1 2 <sep> 3"])
    (before,) = decoder.tokenizer.target.encode(["1 2"])
    context = dataclasses.replace(EMPTY, tokens=(*before, EOS))
    _, prefix = decoder._in_context(["1", "2"], [[context], [EMPTY]], [0, 1])
    assert prefix == whole[: len(prefix)] and len(prefix) > len(before)


def test_a_language_model_continues_each_sentence_by_itself(loaded):
    decoder, _ = loaded.decoder()
    known = {field.name: getattr(decoder, field.name) for field in dataclasses.fields(DeviceModels)}
    config = ml_collections.ConfigDict(loaded.config)
    config.data.source_language = ""
    assert type(make_decoder(config, **known)) is ControlledDecoder
    assert type(make_decoder(loaded.config, **known)) is documents.DocumentDecoder


def test_documents_do_not_depend_on_their_neighbours(loaded):
    decoder, parameters = loaded.decoder()
    together = decoder.translate(parameters, TEXTS, n_best=2)
    apart = decoder.translate(parameters, TEXTS[:3], n_best=2) + decoder.translate(
        parameters, TEXTS[5:], n_best=2
    )
    assert [[x.text for x in best] for best in together[:3] + together[5:]] == [
        [x.text for x in best] for best in apart
    ]


def test_a_context_that_does_not_fit_is_left_out(loaded):
    decoder, _ = loaded.decoder()
    separator = decoder.tokenizer.target.encode(["<sep>"])[0]

    def given(texts, length):
        found = dataclasses.replace(EMPTY, tokens=(*[7] * (length - 1), EOS))
        return decoder._in_context(texts, [[found], [EMPTY]], [0, 1])

    assert given(["1", "4"], 3) == ("1 <sep> 4", [7, 7, *separator])
    assert given(["1 2 3 4 5 6 7 1 2 3", "4"], 3) == ("4", [])  # the longest source
    source = "1 <sep> 4"
    own, whole = (len(tokens) for tokens in decoder.tokenizer.source.encode(["4", source]))
    # EOS is not given.
    longest = output_limit(whole, decoder.decoding_config) - len(separator) - own + 1
    assert given(["1", "4"], longest)[0] == source
    # a translation before it that repeats itself
    assert given(["1", "4"], longest + 1) == ("4", [])


@pytest.mark.slow
def test_random_numbers_and_warnings_are_those_of_the_line(loaded, caplog):
    models = loaded_models.load(
        [str(loaded.workdir.path)], "best", 1, [("decoding.strategy", "sample")]
    )
    decoder, parameters = models.decoder()
    together = decoder.translate(parameters, ["1", "2", "", "3 4 5"])
    assert (
        decoder.translate(parameters, ["3 4 5"], first_line=4)[0][0].tokens == together[3][0].tokens
    )
    assert (
        decoder.translate(parameters, ["3 4 5"], first_line=1)[0][0].tokens != together[3][0].tokens
    )
    decoder.translate(parameters, ["1", "", "2", "3 " * 20], first_line=11)
    assert [message[:12] for message in caplog.messages if "are translated" in message] == [
        "Line 14 has "
    ]


def test_controls_are_refused(loaded):
    decoder, parameters = loaded.decoder()
    with pytest.raises(UserError, match=r"are for single sentences; this model has data.context"):
        decoder.translate(parameters, ["1"], controls=[Control(prefix="2")])
    assert decoder.translate(parameters, ["1"], controls=[Control()])[0][0].tokens


def test_what_translates_single_sentences_refuses_the_run(loaded):
    workdir = str(loaded.workdir.path)
    for load in (
        lambda: load_models([workdir], "best", 1, {}),
        lambda: translator.load(workdir, "best", 1, []),
    ):
        with pytest.raises(
            UserError, match=r"--workdir=.*: its data.context needs whole documents"
        ):
            load()
