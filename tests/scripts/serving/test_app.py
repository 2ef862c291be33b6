"""LibreTranslate's API, the page's routes, limits and errors."""

import asyncio
import contextlib
import copy
import gc
import html
import json
import re
import shutil
import socket
import struct
import threading
import time
import types
import weakref

import httpx2
import pytest
from libretranslatepy import LibreTranslateAPI
from starlette.requests import Request
from starlette.testclient import TestClient

from scripts.serving import app as app_module
from scripts.serving.app import Routes, make_app
from scripts.serving.controlled import ControlledSearches
from scripts.serving.languages import Detector, name
from scripts.serving.middleware import Metrics
from scripts.serving.models import load_models
from scripts.serving.requests import read_controls, read_fields
from tests.scripts.serving.conftest import LIMITS, listening
from transformer.api import Model
from transformer.decoding.control.control import Control
from transformer.decoding.control.glossary import Glossary
from transformer.support import programs
from transformer.support.errors import UserError

QUESTION = {"q": "1 2 3", "source": "in", "target": "out"}
KEY = "a-key-of-20-letters"


@pytest.fixture(scope="module")
def expected(served):
    """Returns the translation of a sentence by the model alone."""
    return lambda text: served[0].model.translate([text])[0][0].text


def post(client, path="/translate", **fields):
    return client.post(path, json={**QUESTION, **fields})


def test_a_text_is_translated_sentence_by_sentence_with_its_white_space(client, expected):
    answer = post(client, q=" 1 2.  3 4\n\n5 ").json()
    assert answer == {
        "translatedText": f" {expected('1 2.')}  {expected('3 4')}\n\n{expected('5')} "
    }


def test_json_and_forms_have_the_same_answer(client, expected):
    answer = {"translatedText": expected("1 2 3")}
    assert client.post("/translate", json=QUESTION).json() == answer
    assert client.post("/translate", data=QUESTION).json() == answer
    assert client.post("/translate", params=QUESTION).json() == answer
    assert (
        client.post(
            "/translate", files={key: (None, value) for key, value in QUESTION.items()}
        ).json()
        == answer
    )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", "q=Müller+schl%C3%A4ft"),
        (
            "multipart/form-data; boundary=b; charset=punycode",
            '--b\r\nContent-Disposition: form-data; name="q"\r\n\r\nMüller schläft\r\n--b--\r\n',
        ),
    ],
    ids=["urlencoded", "multipart"],
)
def test_forms_are_utf8_whatever_they_say(kind, body):
    async def receive():
        return {"type": "http.request", "body": body.encode()}

    scope = {
        "type": "http",
        "headers": [(b"content-type", kind.encode())],
        "query_string": b"source=de",
    }
    fields = asyncio.run(read_fields(Request(scope, receive), LIMITS))
    assert fields == {"q": "Müller schläft", "source": "de"}


def test_a_text_that_comes_twice_in_a_form_is_a_list(client, expected):
    answer = {"translatedText": [expected("1 2"), expected("3 4")]}
    texts, rest = ["1 2", "3 4"], {"source": "in", "target": "out"}
    assert client.post("/translate", data={"q": texts, **rest}).json() == answer
    assert client.post("/translate", params={"q": texts, **rest}).json() == answer
    parts = [("q", (None, text)) for text in texts] + [
        (key, (None, value)) for key, value in rest.items()
    ]
    assert client.post("/translate", files=parts).json() == answer
    prefixed = client.post("/translate", data={"q": texts, "prefix": ["", "7 7"], **rest}).json()[
        "translatedText"
    ]
    assert prefixed[0] == expected("1 2") and prefixed[1].startswith("7 7")
    refused = client.post("/translate", data={**QUESTION, "source": ["in", "out"]})
    assert refused.status_code == 400 and "source must be a text" in refused.json()["error"]


def test_lists_have_lists_of_answers(client, expected):
    answer = post(client, q=["1 2", "", " ", "4"], alternatives=1).json()
    assert answer["translatedText"] == [expected("1 2"), "", " ", expected("4")]
    assert [len(others) for others in answer["alternatives"]] == [1, 0, 0, 1]


def test_alternatives_are_the_next_best(client, served):
    best, second = (
        translation.text for translation in served[0].model.translate(["1 2"], n_best=2)[0]
    )
    assert post(client, q="1 2", alternatives=9).json() == {
        "translatedText": best,
        "alternatives": [second],
    }
    assert post(client, q="1 2", alternatives=1.0).json()["alternatives"] == [second]
    for count in ("1", "1.0"):
        data = {**QUESTION, "q": "1 2", "alternatives": count}
        assert client.post("/translate", data=data).json()["alternatives"] == [second]


def test_the_confidence_is_that_of_each_sentence_of_the_best_translation(client, served):
    model = served[0].model
    texts = ["1 2. 3 4", "5"]

    def expected(*sentences):
        rows = model.confidence(sentences, model.translate(sentences))
        return [
            {
                "confidence": pytest.approx(one.confidence, abs=1e-4),
                "words": one.words,
                "word_confidences": pytest.approx(one.word_confidences, abs=1e-4),
            }
            for (one,) in rows
        ]

    answer = post(client, q=texts, confidence=True).json()
    assert answer["confidence"] == [expected("1 2.", "3 4"), expected("5")]
    assert answer["translatedText"] == post(client, q=texts).json()["translatedText"]
    assert all(0 < one["confidence"] < 1 for one in answer["confidence"][0])
    # One text has no list of texts, in forms too, and alternatives change nothing.
    for data in ({"confidence": "true"}, {"confidence": "true", "alternatives": 1}):
        answer = client.post("/translate", data={**QUESTION, "q": "5", **data}).json()
        assert answer["confidence"] == expected("5")
    assert post(client, q=" ", confidence=True).json()["confidence"] == []
    for value in (False, None, "false", ""):
        assert "confidence" not in post(client, confidence=value).json()


def test_a_model_without_calibration_has_no_confidence(client):
    refused = post(client, source="out", target="in", confidence=True)
    assert refused.status_code == 400
    assert "not supported from out to in; run scripts.calibrate" in refused.json()["error"]
    assert client.get("/frontend/settings").json()["confidence"] is False
    refused = post(client, confidence="yes")
    assert (refused.status_code, "must be true or false" in refused.json()["error"]) == (400, True)


def test_fields_control_the_translations(client, expected, served):
    prefixed = post(client, prefix="7 7", alternatives=1).json()
    assert all(
        text.startswith("7 7") for text in (prefixed["translatedText"], *prefixed["alternatives"])
    )
    plain = expected("1 2 3").split()
    answer = post(client, required=["5 5", ["6 6", "4 4 4"]], banned=[plain[0]]).json()[
        "translatedText"
    ]
    assert (
        "5 5" in answer
        and ("6 6" in answer or "4 4 4" in answer)
        and plain[0] not in answer.split()
    )
    glossary = {"3 4": "4 4", "5": ["7 7 7"]}
    answer = post(client, q="1 2.  3 4. 5", glossary=glossary, prefix="6").json()["translatedText"]
    first, rest = answer.split("  ")
    assert first.startswith("6") and "4 4" not in first and "4 4" in rest and "7 7 7" in rest
    assert not rest.startswith("6")  # the prefix is that of the text
    answers = post(
        client, q=["1 2", "3"], prefix=["", "7 7"], banned=[[], ["1"]], required=[["4 4"], []]
    ).json()
    (direct,), (second,) = served[0].model.translate(
        ["1 2", "3"], prefixes=["", "7 7"], banned=[[], ["1"]], required=[["4 4"], []]
    )
    assert answers["translatedText"] == [direct.text, second.text]
    form = {**QUESTION, "prefix": "7 7"}
    assert (
        client.post("/translate", data=form).json()["translatedText"] == prefixed["translatedText"]
    )
    empty = {"prefix": "", "required": [], "banned": None, "glossary": {}}
    assert post(client, **empty).json() == {"translatedText": expected("1 2 3")}


def test_controlled_and_plain_requests_share_a_server_and_keep_their_translations(expected, served):
    controlled = served[0].model.translate(["1 2 3"], required=[["7 7"]])[0][0].text
    requests = [{}, {"required": ["7 7"]}, {"required": ["x"]}, {"glossary": {"1 2": "7 7"}}] * 4
    answers: list = [None] * len(requests)

    async def ask():
        async def one(i):
            try:
                controls = read_controls(requests[i], ["1 2 3"], False, LIMITS)
                answers[i] = (await served[0].translate(["1 2 3"], "text", 1, *controls))[
                    0
                ].translations[0]
            except UserError as error:
                answers[i] = str(error)

        await asyncio.gather(*(one(i) for i in range(len(requests))))

    asyncio.run(ask())
    refused = "required phrase of line 1: 'x' has characters that the vocabulary lacks; change it"
    assert answers == [expected("1 2 3"), controlled, refused, controlled] * 4


def test_requests_do_not_wait_for_the_programs_of_another_one_s_controls(
    client, expected, monkeypatch
):
    known = post(client, prefix="7 7").json()
    compile_program, compiling, free = (
        programs.compile_program,
        threading.Event(),
        threading.Event(),
    )

    def compile_slowly(*arguments, **options):
        compiling.set()
        free.wait(20)
        return compile_program(*arguments, **options)

    monkeypatch.setattr(programs, "compile_program", compile_slowly)
    fields = {"prefix": "7", "required": ["5 5"]}  # both together come in no other test
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(client, **fields).json()))
    thread.start()
    try:
        assert compiling.wait(20)
        began = time.monotonic()
        assert post(client).json() == {"translatedText": expected("1 2 3")}
        assert post(client, prefix="7 7").json() == known
        assert post(client, "/explore/beam").status_code == 200
        assert time.monotonic() - began < 10 and not answers
    finally:
        free.set()
        thread.join()
    assert answers[0]["translatedText"].startswith("7") and "5 5" in answers[0]["translatedText"]


@pytest.mark.slow
def test_the_programs_of_few_shapes_of_controls_are_kept(served, monkeypatch):
    monkeypatch.setattr(Model, "compile", lambda *arguments: None)
    searches = ControlledSearches(served[0].explorer, served[0].compiling_queue, 2)
    found = [weakref.ref(searches._compile((n,), "1", Control("7"))) for n in range(4)]
    gc.collect()
    assert list(searches._models) == [(2,), (3,)]
    assert [reference() is None for reference in found] == [True, True, False, False]
    assert searches._compile((3,), "1", Control("7")) is found[3]()


def test_a_server_may_refuse_controls(make_client, expected):
    client = make_client(LIMITS._replace(shapes=0))
    assert post(client, glossary={}, prefix="").json() == {"translatedText": expected("1 2 3")}
    for field, value in (
        ("prefix", "7"),
        ("required", ["7"]),
        ("banned", ["7"]),
        ("glossary", {"1": "7"}),
    ):
        answer = post(client, **{field: value})
        assert (
            answer.status_code == 400
            and f"{field} is not supported by this server" in answer.json()["error"]
        )
    assert post(client, "/explore/alternatives", prefix="3").status_code == 400


def test_html_keeps_its_tags(client, expected):
    answer = post(client, q="<p id='1'>1 2<br>&#51; 4</p><!-- 5 -->", format="html").json()[
        "translatedText"
    ]
    first, second = (html.escape(expected(text), quote=False) for text in ("1 2", "3 4"))
    assert answer == f"<p id='1'>{first}<br>{second}</p><!-- 5 -->"


def test_inline_tags_and_emoji_do_not_divide_a_sentence(client, served, expected):
    text = "<b id=1>1 2</b> <i>3</i> \U0001f642 4"
    (best, *others) = served[0].explorer.translate(["1 2 3 4"], 2)[0]
    answer = post(client, q=[text, text], format="html", alternatives=1).json()
    for found in (
        *answer["translatedText"],
        post(client, q=text, format="html").json()["translatedText"],
    ):
        assert [
            found.count(mark) for mark in ("<b id=1>", "</b>", "<i>", "</i>", " \U0001f642")
        ] == [1] * 5
        assert (
            html.unescape(re.sub("<.*?>| \U0001f642", "", found))
            == best.text
            == expected("1 2 3 4")
        )
    found = [
        html.unescape(re.sub("<.*?>| \U0001f642", "", text)) for text in answer["alternatives"][1]
    ]
    assert found == [other.text for other in others]
    answer = post(client, q="1 2 \U0001f642").json()["translatedText"]
    assert answer == f"{expected('1 2')} \U0001f642"


def test_a_sentence_that_is_too_long_is_not_cut_off(client, expected):
    words = " ".join("1234567890")
    answer = post(client, q=f"{words} {words} {words} {words}").json()["translatedText"]
    assert answer == " ".join([expected(words)] * 4)


def test_the_language_is_detected_among_the_sources(client):
    answer = post(client, source="auto", target="out", q="1").json()
    assert answer["detectedLanguage"]["language"] in ("in", "out")
    detector = Detector(["en", "de_AT"])
    assert [found["language"] for found in detector("Das ist ein kleines Haus.")] == ["de_AT", "en"]
    assert detector("The house is small.")[0]["language"] == "en"
    assert detector("The house is small.")[0]["confidence"] > 90
    assert Detector(["fr", "de"])("The house is small.")[0]["language"] in ("fr", "de")
    assert (name("de_AT"), name("out")) == ("German", "out")


def test_the_language_of_a_text_is_that_of_a_source_or_the_target():
    english, german = "The house of the dog is small.", "Das Haus des Hundes ist klein."
    routes = Routes(
        [types.SimpleNamespace(source="en", target=target) for target in ("de", "fr")], LIMITS, []
    )
    found = {text: routes._detect([text], "text", "de")[0] for text in (english, german)}
    assert [found[text]["language"] for text in (english, german)] == ["en", "de"]
    assert found[german]["confidence"] > 90
    assert routes._detect([german], "text", "fr")[0]["language"] in ("en", "fr")
    markup = f'<p class="the main text of this page" title="{english} {english}">{german}</p>'
    assert routes._detect([markup], "html", "de")[0]["language"] == "de"
    # A source that the detector does not know is not taken for the target.
    routes = Routes([types.SimpleNamespace(source="xx", target="de")], LIMITS, [])
    assert routes._detect([german], "text", "de")[0]["language"] == "xx"


def test_short_texts_are_not_taken_for_the_target_without_evidence():
    words = ["A", "Font", "Open", "OK", "Password", "Pause", "Skip", "Stop", "Comment"]
    routes = Routes([types.SimpleNamespace(source="en", target="de")], LIMITS, [])
    for word in words:
        (found,) = routes._detect([word], "text", "de")
        assert found["language"] == "en" and found["confidence"] <= 50
    english, german = "The house of the dog is small.", "Das Haus des Hundes ist klein."
    for text, language in ((english, "en"), (german, "de")):
        found = routes._detect([*words, text], "text", "de")
        assert [one["language"] for one in found] == [language] * (1 + len(words))
    assert [one["language"] for one in routes._detect([english, german], "text", "de")] == [
        "en",
        "de",
    ]
    # The first source that is served in this direction, although others come before it in the
    # alphabet.
    pairs = (("nl", "de"), ("en", "fr"), ("da", "de"), ("de", "nl"))
    routes = Routes(
        [types.SimpleNamespace(source=source, target=target) for source, target in pairs],
        LIMITS,
        [],
    )
    assert routes._detect(["1"], "text", "de")[0]["language"] == "nl"


def test_languages_that_langid_knows_by_another_code_are_detected():
    detector = Detector(["en", "nb", "pt-BR", "pt-PT"])
    found = [
        detector(text)[0]["language"]
        for text in ("Dette er et lite hus ved sjøen.", "Este é o meu carro.")
    ]
    assert found == ["nb", "pt-BR"]
    assert name("nb") == "Norwegian"
    simplified, traditional = "他们在这里学习汉语", "他們在這裡學習漢語"
    for codes in (["en", "zh-Hans", "zh-Hant"], ["zh_TW", "zh_CN", "en"]):
        detector = Detector(codes)
        found = [detector(text)[0]["language"] for text in (simplified, traditional)]
        assert (
            found == sorted(found, key=lambda code: code in ("zh-Hant", "zh_TW"))
            and len(set(found)) == 2
        )
    routes = Routes([types.SimpleNamespace(source="zh-Hans", target="zh-Hant")], LIMITS, [])
    assert [routes._served_code(code) for code in ("zh", "zh-TW", "zh-CN")] == [
        "zh-Hans",
        "zh-Hant",
        "zh-Hans",
    ]


def test_codes_of_regions_and_capitals_mean_a_served_language():
    routes = Routes([types.SimpleNamespace(source="en", target="pt_BR")], LIMITS, [])
    codes = ("en", "EN", "en-US", "pt", "pt-BR", "fr", "auto")
    assert [routes._served_code(code) for code in codes] == [
        "en",
        "en",
        "en",
        "pt_BR",
        "pt_BR",
        "fr",
        "auto",
    ]


def test_texts_in_the_target_language_do_not_change(client, expected, monkeypatch):
    assert post(client, target="in", alternatives=1).json() == {
        "translatedText": "1 2 3",
        "alternatives": [],
    }
    found = {"1 2": "in", "3 4": "out"}
    monkeypatch.setattr(
        Detector,
        "__call__",
        lambda self, text, among: [{"language": found.get(text), "confidence": 99.0}],
    )
    assert post(client, source="auto", q=["1 2", "3 4"]).json()["translatedText"] == [
        expected("1 2"),
        "3 4",
    ]


def test_what_is_served_is_listed(client):
    assert client.get("/languages").json() == [
        {"code": "in", "name": "in", "targets": ["out"]},
        {"code": "out", "name": "out", "targets": ["in"]},
    ]
    assert client.get("/health").json() == {"status": "ok"}
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == LIMITS.characters and settings["keyRequired"] is False


def test_a_name_that_comes_twice_in_an_object_is_refused(client):
    body = '{"q": "1", "q": "2", "source": "in", "target": "out"}'
    response = client.post("/translate", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json() == {"error": "Invalid JSON format: an object has a name twice"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": None}, "missing q"),
        ({"q": []}, "missing q"),
        ({"q": 3}, "q must be a text"),
        ({"q": ["1", {}]}, "q must be a text"),
        ({"q": "1" * 401}, "request (401) exceeds text limit (400)"),
        ({"q": ["1"] * 6}, "request (6) exceeds text limit (5)"),
        ({"q": "1 \ud800"}, "Invalid JSON format"),
        ({"source": ""}, "missing source"),
        ({"source": ["in"]}, "source must be a text"),
        ({"source": "xx"}, "xx is not supported"),
        ({"target": "xx"}, "xx is not supported"),
        ({"source": "xx", "target": "xx"}, "xx is not supported"),
        ({"format": "pdf"}, "pdf format is not supported"),
        ({"format": ["html"]}, "format is not supported"),
        ({"alternatives": -1}, "alternatives must be a whole number"),
        ({"alternatives": 1.5}, "alternatives must be a whole number"),
        ({"alternatives": "²"}, "alternatives must be a whole number"),
        ({"alternatives": "inf"}, "alternatives must be a whole number"),
        ({"alternatives": [1]}, "alternatives must be a whole number"),
        ({"prefix": ["7"]}, "prefix=['7']: must be a str"),
        ({"prefix": "x"}, "prefix of line 1: 'x' has characters that the vocabulary lacks"),
        (
            {"q": ["1", "2"], "prefix": ["", "x"]},
            "prefix of line 2: 'x' has characters that the vocabulary lacks",
        ),
        (
            {"required": "7"},
            "required='7': must be a list of phrases; put a single one in brackets",
        ),
        ({"required": [[]]}, "has a phrase without alternatives"),
        (
            {"required": ["7 " * 30]},
            "line 1: prefix and required phrases have 30 tokens, an output may have",
        ),
        ({"required": ["7"] * 6}, "request (6) exceeds text limit (5)"),
        ({"banned": ["7" * 401]}, "request (401) exceeds text limit (400)"),
        ({"banned": [3]}, "banned[0]=3: must be a str"),
        ({"q": "1. 2.", "required": ["7"]}, "required: the text must be one sentence"),
        ({"q": ["1", "2"], "required": ["7"]}, "required: has 1 items, must have 2"),
        (
            {"required": ["5 6 7"], "banned": ["6 7"]},
            "line 1: '5 6 7' is required, but '6 7' is banned; remove",
        ),
        (
            {"glossary": {"1": "7"}, "banned": ["7"]},
            "line 1: '7' is required, but '7' is banned; remove",
        ),
        (
            {"glossary": {"1 2": "7", "1  2": "8"}},
            "glossary['1  2']: '1 2' has other translations already, '7'",
        ),
        ({"glossary": ["1"]}, "glossary=['1']: must be a dict"),
        ({"glossary": {"1": ""}}, "glossary['1']: must be a term with its translation"),
    ],
)
def test_wrong_fields_have_one_line_of_explanation(client, fields, message):
    body = json.dumps({**QUESTION, **fields})
    answer = client.post("/translate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[" * 1500, "application/json", 400),
        (b'"text"', "application/json", 400),
        (b'{"q": "\xff"}', "application/json", 400),
        (
            b'{"q": "1", "source": "in", "target": "out", "glossary": {"1": "7", "1": "8"}}',
            "application/json",
            400,
        ),
        (b"x" * 2001, "application/json", 413),
        (b"<q/>", "application/xml", 415),
        (b"q=1", "multipart/form-data", 400),
        (b"q=%ff%00&source=in&target=out", "application/x-www-form-urlencoded", 200),
    ],
)
def test_bodies_that_cannot_be_read_are_refused(client, content, kind, status):
    answer = client.post("/translate", content=content, headers={"content-type": kind})
    assert answer.status_code == status
    assert ("error" in answer.json()) == (status != 200)


@pytest.mark.parametrize(
    "text", ["\x00\x01\x1b[2J", "\u202e1 2\u2066", "\ufeff", "\U0001f600" * 9, "\u0301" * 200]
)
def test_strange_characters_are_translated(client, text):
    assert isinstance(post(client, q=text).json()["translatedText"], str)


def test_markup_within_markup_is_translated_once(client):
    bomb = "<b>" * 90 + "1" + "</b>" * 30
    assert post(client, q=bomb, format="html").json()["translatedText"].startswith("<b>" * 90)


def test_keys_are_needed_for_all_that_computes(make_client):
    client = make_client(keys=("another-key-of-letters", KEY))
    explored = [f"/explore/{name}" for name in ("attention", "score", "beam", "alternatives")]
    for path in ("/translate", "/detect", *explored):
        for key in (None, "wrong", "é", KEY[:-1]):
            assert post(client, path, api_key=key).status_code == 403
    assert post(client, api_key=KEY).status_code == 200
    assert client.get("/frontend/settings").json()["keyRequired"] is True
    assert KEY not in client.get("/frontend/settings").text


def test_every_answer_has_security_headers_and_no_path_of_the_machine(
    make_client, workdirs, monkeypatch
):
    def fail(*arguments):
        raise OSError(f"{workdirs[0]}: 1 2 3 cannot be read")

    client = make_client(raise_server_exceptions=False)
    answers = [
        client.get(path)
        for path in ("/", "/languages", "/metrics", "/nowhere", "/static/x", "/translate")
    ]
    answers += [
        client.get("/static/..%2fapp.py"),
        client.get("/static/%2e%2e/app.py"),
        post(client),
        post(client, q=3),
    ]
    monkeypatch.setattr(app_module, "_alternatives", fail)
    answers.append(post(client))
    assert [answer.status_code for answer in answers] == [
        200,
        200,
        200,
        404,
        404,
        405,
        404,
        404,
        200,
        400,
        500,
    ]
    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert str(workdirs[0].parent) not in answer.text and "Traceback" not in answer.text


def test_errors_are_logged_without_texts(make_client, monkeypatch, caplog):
    def fail(*arguments):
        raise ValueError("SECRET")

    monkeypatch.setattr(app_module, "_alternatives", fail)
    logged = []
    monkeypatch.setattr(
        app_module.logging, "error", lambda message, *arguments: logged.append(message % arguments)
    )
    assert post(make_client(raise_server_exceptions=False), q="SECRET").status_code == 500
    (message,) = logged
    assert "/translate failed with ValueError" in message and "SECRET" not in message.replace(
        'ValueError("SECRET")', ""
    )


def test_the_page_s_routes_have_the_model_s_numbers(client, served):
    model = served[0].model
    pair = {"q": "1 2", "source": "in", "target": "out"}
    attention = client.post("/explore/attention", json=pair | {"translation": "3 4"}).json()
    known = model.attention("1 2", "3 4")
    assert (
        tuple(attention["source"]) == known.source_pieces
        and tuple(attention["target"]) == known.target_output_pieces
    )
    for row, weights in zip(attention["weights"], known.cross[-1].mean(axis=0), strict=True):
        assert row == pytest.approx(weights.tolist(), abs=1e-4)
    scores = client.post("/explore/score", json=pair | {"translations": ["3 4", "5"]}).json()[
        "scores"
    ]
    for found, scored in zip(scores, model.score([("1 2", "3 4"), ("1 2", "5")]), strict=True):
        assert found["text"] == scored.text and found["pieces"] == list(scored.pieces)
        assert found["score"] == pytest.approx(scored.score, abs=1e-4)
        assert sum(found["token_log_probabilities"]) == pytest.approx(found["log_probability"])
    others = client.post("/explore/alternatives", json=pair | {"prefix": "3"}).json()[
        "alternatives"
    ]
    assert [other["text"] for other in others] == [
        best.text for best in model.alternatives("1 2", "3", 4)
    ]
    chart = client.post("/explore/beam", json=pair).json()
    (records,) = chart["datasets"].values()
    assert len(records) == len(model.beam_tree("1 2").nodes)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/explore/attention", {"translation": ["1"]}),
        ("/explore/attention", {}),
        ("/explore/attention", {"translation": "1 " * 60}),
        ("/explore/score", {"translations": ["1 " * 60]}),
        ("/explore/score", {"translations": ["1"] * 6}),
        ("/explore/beam", {"q": "1 " * 60}),
        ("/explore/beam", {"q": ["1"]}),
        ("/explore/beam", {"source": "xx"}),
        ("/explore/alternatives", {"prefix": "1 " * 60}),
        ("/explore/alternatives", {"prefix": ["1"]}),
    ],
)
def test_what_cannot_be_explored_is_refused(client, path, fields):
    answer = post(client, path, **fields)
    assert answer.status_code == 400 and answer.json()["error"]


def hold(model):
    """Occupies the model's queue. Returns a function that frees it."""
    held, free = threading.Event(), threading.Event()

    def wait():
        held.set()
        free.wait(30)

    thread = threading.Thread(target=lambda: asyncio.run(model.queue.compute("explore", [wait])))
    thread.start()
    held.wait(30)
    return lambda: (free.set(), thread.join())


def test_requests_beyond_the_limits_are_refused_and_others_are_answered(
    make_client, served, expected
):
    free = hold(served[0])
    clients = [make_client(LIMITS._replace(characters=10**6, body_bytes=10**6)) for _ in range(2)]
    assert "at most 40" in post(clients[0], q="1\n" * 41).json()["error"]
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(post(clients[0])))
        for _ in range(LIMITS.requests)
    ]
    for thread in threads:
        thread.start()
    while len(served[0].queue) < LIMITS.requests:
        time.sleep(0.01)
    refused = post(clients[0])
    assert refused.status_code == 429 and "too many requests" in refused.json()["error"]
    assert post(clients[1], q="1\n" * 38).json() == {"error": "Slow down: the queue is full"}
    assert clients[0].get("/health").status_code == 200
    free()
    for thread in threads:
        thread.join()
    assert [answer.json()["translatedText"] for answer in answers] == [
        expected("1 2 3")
    ] * LIMITS.requests


def test_a_request_that_takes_too_long_ends_and_leaves_the_queue(make_client, served):
    free = hold(served[0])
    try:
        answer = post(make_client(LIMITS._replace(seconds=0.2)))
    finally:
        free()
    assert answer.status_code == 503 and "0.2 seconds" in answer.json()["error"]


def test_a_client_that_goes_away_leaves_the_queue(served, metrics):
    body, sent = json.dumps(QUESTION).encode(), []
    events = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
    headers = [(b"content-type", b"application/json")]
    path = {"path": "/translate", "raw_path": b"/translate"}
    scope = {"type": "http", "method": "POST", **path, "query_string": b"", "headers": headers}

    async def receive():
        await asyncio.sleep(0.05)
        return next(events)

    async def send(message):
        sent.append(message)

    def translated() -> float:
        return (
            metrics.registry.get_sample_value("transformer_tokens_total", {"pair": "in-out"}) or 0.0
        )

    before, free = translated(), hold(served[0])
    try:
        asyncio.run(make_app(served, LIMITS, [], Metrics())(scope, receive, send))
    finally:
        free()
    assert sent[0]["status"] == 499
    asyncio.run(served[0].queue.compute("explore", [int]))  # comes after what was in the queue
    assert len(served[0].queue) == 0 and translated() == before


def test_a_translation_does_not_depend_on_its_neighbours(make_client, expected):
    client = make_client(LIMITS._replace(requests=99))
    texts = [" ".join(map(str, range(n % 7, n % 7 + n % 5 + 1))) for n in range(40)]
    answers = {}

    def ask(n):
        answers[n] = post(client, q=texts[n]).json()["translatedText"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: expected(text) for n, text in enumerate(texts)}


def test_prometheus_reads_what_happened(client, served):
    def read() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        return {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        }

    before = read()
    translations = served[0].model.translate(["1", "2 3"])
    post(client, q=["1", "2 3"])
    post(client, q=3)
    after = read()
    for series, increase in (
        ('transformer_requests_total{route="/translate",status="200"}', 1),
        ('transformer_requests_total{route="/translate",status="400"}', 1),
        (
            'transformer_tokens_total{pair="in-out"}',
            sum(len(best.tokens) for best, *_ in translations),
        ),
        ('transformer_queue{pair="in-out"}', 0),
        ('transformer_batch_fill_count{kind="translate",pair="in-out"}', 1),
        ('transformer_request_seconds_bucket{le="30.0",route="/translate"}', 2),
    ):
        assert after[series] - before.get(series, 0) == increase, series


@pytest.mark.slow
def test_a_server_outlives_its_workdir_and_every_program_is_compiled_ahead(workdirs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(workdirs[0], copy)
    (model,) = load_models([str(copy)], "best", 1, {}, 0.0, 99, Metrics(), LIMITS.shapes)
    shutil.rmtree(copy)
    programs = [tier.decoder.programs.compiled for tier in model._models.values()]
    ahead = [set(known) for known in programs]
    for count in (1, 5, 30):
        texts = [" ".join("12345678"[: n % 8 + 1]) for n in range(count)]
        asyncio.run(model.translate(texts, "text", 1, [Control()] * count, Glossary([])))
    asyncio.run(model.translate(["1 2 3", "4"], "text", 2, [Control()] * 2, Glossary([])))
    confidence = model.translate(["1 2 3"], "text", 1, [Control()], Glossary([]), True)
    assert asyncio.run(confidence)[0].confidences
    model.explorer.score([("1 2", "3")])
    model.explorer.attention("1 2", "3 4")
    model.explorer.beam_tree("1 2")
    with TestClient(make_app([model], LIMITS, [], Metrics())):
        assert model.queue.is_alive
    assert not model.queue.is_alive  # the application has ended
    assert len(programs) > 1 and ahead == [set(known) for known in programs]


def test_rows_are_chosen_by_the_sentences_of_a_padded_length(served):
    model = copy.copy(served[0])
    model._models = {1: None, 8: None, 64: None}
    decoding = types.SimpleNamespace(max_source_length=40)
    model.model = types.SimpleNamespace(config=types.SimpleNamespace(decoding=decoding))
    assert model._choose_rows([3, 16, 16, 17, 16]) == [8, 8, 8, 1, 8]
    assert set(model._choose_rows([40] * 32 + [1] * 3)) == {64, 1}


def test_models_that_cannot_be_served_are_refused(workdirs):
    for folders, decoding, message in (
        ([workdirs[0], workdirs[0]], {}, "translates in to out, as an earlier one does"),
        ([workdirs[0]], {"strategy": "sample"}, "strategy=sample is not served"),
    ):
        with pytest.raises(UserError, match=message):
            load_models(
                list(map(str, folders)), "best", 1, decoding, 0.0, 9, Metrics(), LIMITS.shapes
            )


def test_a_client_of_libretranslate_works_over_loopback(served, expected):
    with listening(served, (KEY,)) as address:
        library = LibreTranslateAPI(address, KEY)
        assert library.translate("1 2 3", "in", "out") == expected("1 2 3")
        assert [language["code"] for language in library.languages()] == ["in", "out"]
        assert library.detect("1 2")[0]["language"] in ("in", "out")


def pipelined(count: int) -> bytes:
    """Returns requests for translations, one after another."""
    body = json.dumps(QUESTION).encode()
    lines = (
        "POST /translate HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return ("\r\n".join([*lines, "", ""]).encode() + body) * count


def test_clients_that_reset_pipelined_requests_leave_the_queue_and_no_log(
    served, monkeypatch, caplog
):
    monkeypatch.setattr(
        app_module.logging, "error", lambda *arguments: caplog.records.append(arguments)
    )
    with listening(served) as address:
        target = "127.0.0.1", int(address.rstrip("/").rpartition(":")[2])
        for count in (1, 2, 9):
            free = hold(served[0])
            with socket.create_connection(target) as client:
                # close resets
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(pipelined(count))
                while not len(served[0].queue):
                    time.sleep(0.01)
                (job,) = served[0].queue._jobs
            for _ in range(500):
                if job.future.cancelled():
                    break
                time.sleep(0.01)
            free()
            assert job.future.cancelled()
        assert httpx2.get(f"{address}health").status_code == 200
    assert not caplog.records


def test_wrong_request_lines_leave_no_log(served, caplog):
    with listening(served) as address:
        target = "127.0.0.1", int(address.rstrip("/").rpartition(":")[2])
        upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        for request, status in (
            (b"GARBAGE\r\n\r\n", b" 400 "),
            (upgrade, b" 200 "),
            (b"\x16\x03\x01\r\n\r\n", b" 400 "),
        ):
            with socket.create_connection(target, timeout=30) as client:
                client.sendall(request)
                assert status in client.recv(100)
    assert not caplog.records


@pytest.mark.parametrize(
    ("first", "header"),
    [
        ("GET /health HTTP/1.1", "a: "),
        ("GET /health HTTP/1.1", "\r\na: b"),
        ("GET /health?q={} HTTP/1.1", ""),
    ],
    ids=["header", "headers", "query"],
)
def test_headers_have_a_limit_also_if_they_arrive_at_once(served, first, header):
    with listening(served) as address:
        target = "127.0.0.1", int(address.rstrip("/").rpartition(":")[2])
        for size, status in ((60_000, b" 200 "), (70_000, b" 400 ")):
            headers = (
                header * (size // 6) if ":" in header[3:] else header + "x" * size * bool(header)
            )
            lines = [first.format("x" * size), "Host: x", *filter(None, [headers.strip()]), "", ""]
            with socket.create_connection(target, timeout=30) as client:
                client.sendall("\r\n".join(lines).encode())
                assert status in client.recv(100)


def test_large_bodies_are_not_taken_for_headers(served):
    with listening(served, limits=LIMITS._replace(body_bytes=10**6)) as address:
        answers = [
            httpx2.post(f"{address}translate", json=QUESTION | {"q": "1" * 200_000})
            for _ in range(10)
        ]
        assert all("exceeds text limit" in answer.json()["error"] for answer in answers)


@pytest.mark.slow
def test_connections_that_stand_still_end_and_others_are_answered(served):
    with listening(served, seconds=0.5) as address, contextlib.ExitStack() as stack:
        target = "127.0.0.1", int(address.rstrip("/").rpartition(":")[2])
        connections = (
            stack.enter_context(socket.create_connection(target, timeout=30)) for _ in range(7)
        )
        silent, slow, large, deaf, *bodies = connections
        began = time.monotonic()
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nA")
        for _ in range(16):
            with contextlib.suppress(OSError):
                large.sendall(b"GET / HTTP/1.1\r\nA: " + b"x" * 8192)
        answers = 500
        deaf.sendall(b"GET /static/page.js HTTP/1.1\r\nHost: x\r\n\r\n" * answers)
        for body in bodies:  # as many as `LIMITS.requests`
            body.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        time.sleep(0.1)
        assert httpx2.post(f"{address}translate", json=QUESTION).status_code == 200
        with contextlib.suppress(OSError):
            assert b" 400 " in large.recv(100)
        assert silent.recv(9) == slow.recv(9) == b"" and time.monotonic() - began < 20
        time.sleep(1.5)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := deaf.recv(1 << 20):
                received += data
        assert 0 < received.count(b"HTTP/1.1 200") < answers
