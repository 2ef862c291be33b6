"""LibreTranslate's API and the routes of the page, as a Starlette application."""

import asyncio
import contextlib
import functools
import math
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from absl import logging
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from scripts.serving import explore, languages, requests
from scripts.serving.batching import QueueFull
from scripts.serving.middleware import Measured, Metrics
from scripts.serving.models import Answer, ServedModel
from scripts.serving.requests import Fields, Limits
from scripts.serving.texts import split_html
from transformer.data.languages import base_code
from transformer.support import files
from transformer.support.errors import UserError

Handler = Callable[[Fields], Awaitable[Any]]  # computes the JSON value of an answer

PAGE = Path(__file__).parent / "page"
# In percent. 0.3 % of the English words of Multi30k are German with this confidence.
MIN_CONFIDENCE = 90.0


def make_app(
    models: Sequence[ServedModel], limits: Limits, keys: Sequence[str], metrics: Metrics
) -> ASGIApp:
    """Returns the application.

    If there are `keys`, requests for translations must have one of them.
    """
    routes = Routes(models, limits, keys)

    # Routes that compute are for POST, all other routes for GET.
    handlers = {"/translate": routes.translate, "/detect": routes.detect}
    for function in explore.FUNCTIONS:
        handlers[f"/explore/{function.__name__}"] = routes.explored(function)
    posts = [
        Route(path, routes.limited(handler), methods=["POST"]) for path, handler in handlers.items()
    ]

    def measurements(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for model in models:
            await asyncio.to_thread(model.queue.close)
            await asyncio.to_thread(model.compiling_queue.close)

    app = Starlette(
        lifespan=lifespan,
        routes=[
            *posts,
            Route("/languages", routes.languages),
            Route("/frontend/settings", routes.settings),
            Route("/health", routes.health),
            Route("/metrics", measurements),
            Route("/", lambda _: FileResponse(PAGE / "index.html")),
            Mount("/static", StaticFiles(directory=PAGE)),
        ],
        exception_handlers={HTTPException: _error, Exception: _error},
    )
    return Measured(app, metrics, [route.path for route in app.routes])


class Routes:
    """The routes. An error is {"error": text}, as in LibreTranslate."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str]) -> None:
        self.models = {(model.source, model.target): model for model in models}
        self.limits = limits
        self.keys = keys
        self._places = asyncio.Semaphore(limits.requests)
        self.codes = list(dict.fromkeys(code for pair in self.models for code in pair))
        self.sources = list(dict.fromkeys(source for source, _ in self.models))
        self.detector = languages.Detector(self.codes)

    def limited(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Returns an endpoint that reads a request and answers with JSON, within the limits."""

        async def endpoint(request: Request) -> Response:
            try:
                # The limit includes the body, because a client may send it slowly.
                async with asyncio.timeout(self.limits.seconds):
                    fields = await requests.read_fields(request, self.limits)
                    requests.check_key(fields, self.keys)

                    # A request takes a place only once its body has arrived.
                    if self._places.locked():
                        raise HTTPException(429, "Slow down: too many requests at a time")
                    async with self._places:
                        return JSONResponse(await requests.unless_gone(request, handler(fields)))
            except QueueFull:
                raise HTTPException(429, "Slow down: the queue is full") from None
            except UserError as error:
                raise HTTPException(400, str(error)) from None
            except TimeoutError:
                message = f"the request took more than {self.limits.seconds:g} seconds"
                raise HTTPException(503, message) from None
            except ClientDisconnect:
                return Response(status_code=requests.CLIENT_CLOSED)

        return endpoint

    async def translate(self, fields: Fields) -> dict[str, Any]:
        texts, is_list = requests.read_texts(fields, "q", self.limits)
        source, target = self._direction(fields)
        text_format = fields.get("format") or "text"
        if text_format not in ("text", "html"):
            raise UserError(f"{text_format!s:.20} format is not supported")

        # With the source "auto", each text may have another language.
        detected = []
        sources = [source] * len(texts)
        if source == "auto":
            detected = self._detect(texts, text_format, target)
            sources = [language["language"] for language in detected]
        models = [self._model_or_none(code, target) for code in sources]
        alternatives = _alternatives(fields)
        controls, glossary = requests.read_controls(fields, texts, is_list, self.limits)
        with_confidence = requests.read_switch(fields, "confidence")

        # Each model translates all of its texts together.
        answers = [Answer([text], []) for text in texts]
        for model in dict.fromkeys(filter(None, models)):
            if with_confidence and not model.is_calibrated:
                raise UserError(
                    f"Invalid request: confidence is not supported from {model.source} to "
                    f"{model.target}; run scripts.calibrate and start the server again"
                )
            numbers = [i for i, other in enumerate(models) if other is model]
            of_model = await model.translate(
                [texts[i] for i in numbers],
                text_format,
                min(1 + alternatives, model.max_n_best),
                [controls[i] for i in numbers],
                glossary,
                with_confidence,
            )
            for i, answer in zip(numbers, of_model, strict=True):
                answers[i] = answer

        # As in LibreTranslate, a request with one text has an answer without lists.
        translations = [answer.translations for answer in answers]
        answer = {"translatedText": [best for best, *_ in translations]}
        if detected:
            answer["detectedLanguage"] = detected
        if alternatives:
            answer["alternatives"] = [next_best for _, *next_best in translations]
        if with_confidence:
            answer["confidence"] = [
                [files.six_digits(sentence._asdict()) for sentence in of_text.confidences]
                for of_text in answers
            ]
        return answer if is_list else {key: value for key, (value,) in answer.items()}

    async def detect(self, fields: Fields) -> list[dict[str, Any]]:
        texts, _ = requests.read_texts(fields, "q", self.limits)
        return self.detector("\n".join(texts))

    def explored(self, function: Callable[..., Any]) -> Handler:
        """Returns a handler that calls a function of `explore` in the queue of the model."""

        async def handler(fields: Fields) -> Any:
            served = self._model(*self._direction(fields))
            model = served.explorer
            queue = served.queue

            # The programs of this function are compiled when they are needed.
            if function is explore.alternatives:
                requests.check_controls_allowed(["prefix"], self.limits)
                model = served.compiling_explorer
                queue = served.compiling_queue
            call = functools.partial(function, model, fields, self.limits)
            return (await queue.compute("explore", [call]))[0]

        return handler

    async def languages(self, request: Request) -> Response:
        answer = []
        for code in self.codes:
            targets = [target for source, target in self.models if source == code]
            answer.append({**_language(code), "targets": targets})
        return JSONResponse(answer)

    async def settings(self, request: Request) -> Response:
        source, target = map(_language, next(iter(self.models)))
        return JSONResponse(
            {
                "apiKeys": bool(self.keys),
                "charLimit": self.limits.characters,
                "confidence": all(model.is_calibrated for model in self.models.values()),
                "filesTranslation": False,
                "frontendTimeout": 500,  # milliseconds between the last key and the request
                "keyRequired": bool(self.keys),
                "language": {"source": source, "target": target},
                "suggestions": False,
                "supportedFilesFormat": [],
            }
        )

    async def health(self, request: Request) -> Response:
        # A thread that has died never answers.
        is_ok = all(model.queue.is_alive for model in self.models.values())
        return JSONResponse({"status": "ok" if is_ok else "failed"}, 200 if is_ok else 503)

    def _direction(self, fields: Fields) -> tuple[str, str]:
        """Returns the language codes of source and target that a request names."""
        names = ("source", "target")
        return tuple(self._served_code(requests.read_name(fields, name)) for name in names)

    def _served_code(self, code: str) -> str:
        """Returns the served language that a code such as EN or en-US means, or else the code."""
        variants = [served for served in self.codes if base_code(served) == base_code(code)]
        if code in self.codes or not variants:
            return code

        # Among variants of Chinese, the one with the same characters; else the first variant.
        codec = languages.chinese_codec(code)
        return min(variants, key=lambda variant: languages.chinese_codec(variant) != codec)

    def _detect(self, texts: Sequence[str], text_format: str, target: str) -> list[dict[str, Any]]:
        """Returns the language of each text: one of the source languages, or the target language.

        A text whose language is not certain has the language of all texts together.
        """
        # Markup is English, whatever the language of the text.
        if text_format == "html":
            split = [split_html(text, target) for text in texts]
            sentences = [[piece.text for piece in pieces if piece.is_sentence] for pieces in split]
            texts = list(map("\n".join, sentences))

        # A source that the detector does not know would be taken for the target.
        codes = [*self.sources, target] if self.detector.knows(self.sources) else self.sources
        together, *less_probable = self.detector("\n".join(texts), codes)
        if together["language"] == target and together["confidence"] < MIN_CONFIDENCE:
            # A text to translate is probably not in the target language.
            translatable = [
                language
                for language in less_probable
                if (language["language"], target) in self.models
            ]
            together = (translatable or less_probable or [together])[0]
        detected = [self.detector(text, codes)[0] for text in texts]
        return [
            language if language["confidence"] >= MIN_CONFIDENCE else together
            for language in detected
        ]

    def _model(self, source: str, target: str) -> ServedModel:
        """Returns the model of a pair. Raises UserError if a language is not served."""
        if (source, target) in self.models:
            return self.models[source, target]
        for code in (source, target):
            if code not in self.codes:
                raise UserError(f"{code:.20} is not supported")
        raise UserError(f"{target} is not available as a target language from {source}")

    def _model_or_none(self, source: str, target: str) -> ServedModel | None:
        """Returns the model of a pair, or None if both languages are the same.

        As in LibreTranslate, a text in the target language does not change.
        """
        is_same = source == target and source in self.codes and (source, target) not in self.models
        return None if is_same else self._model(source, target)


def _language(code: str) -> dict[str, str]:
    return {"code": code, "name": languages.name(code)}


def _alternatives(fields: Fields) -> int:
    try:
        value = float(str(fields.get("alternatives") or 0))
    except ValueError:
        value = math.nan
    if not value.is_integer() or not 0 <= value < 1e6:
        raise UserError("Invalid request: alternatives must be a whole number, such as 2")
    return int(value)


async def _error(request: Request, error: Exception) -> Response:
    """Returns the answer to a request that failed.

    The log shows where in the code an unexpected error occurred, without texts of the request.
    """
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    # The message of an exception may contain a text, so only its type is logged.
    frames = "".join(traceback.format_tb(error.__traceback__))
    logging.error("%s failed with %s.\n%s", request.url.path, type(error).__name__, frames)
    return JSONResponse({"error": "the server failed; its log has the reason"}, 500)
