"""LibreTranslate's API and the routes of the page, as an application of Starlette."""

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
from scripts.serving.models import ServedModel
from scripts.serving.requests import Fields, Limits
from scripts.serving.texts import split_html
from transformer.data.languages import base_code
from transformer.support.errors import UserError

PAGE = Path(__file__).parent / "page"
CERTAIN = 90.0  # percent; 0.3 % of the English words of Multi30k are German with this confidence


def make_app(
    models: Sequence[ServedModel], limits: Limits, keys: Sequence[str], metrics: Metrics
) -> ASGIApp:
    """Returns the application.

    With `keys`, those who ask for translations must give one of them.
    """
    routes = Routes(models, limits, keys)
    post = {"methods": ["POST"]}

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for model in models:
            for queue in (model.queue, model.beside):
                await asyncio.to_thread(queue.close)

    app = Starlette(
        lifespan=lifespan,
        routes=[
            Route("/translate", routes.limited(routes.translate), **post),
            Route("/detect", routes.limited(routes.detect), **post),
            *(
                Route(f"/explore/{f.__name__}", routes.limited(routes.explored(f)), **post)
                for f in explore.FUNCTIONS
            ),
            Route("/languages", routes.languages),
            Route("/frontend/settings", routes.settings),
            Route("/health", routes.health),
            Route(
                "/metrics",
                lambda _: Response(
                    generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST
                ),
            ),
            Route("/", lambda _: FileResponse(PAGE / "index.html")),
            Mount("/static", StaticFiles(directory=PAGE)),
        ],
        exception_handlers={HTTPException: _error, Exception: _error},
    )
    return Measured(app, metrics, [route.path for route in app.routes])


class Routes:
    """The routes. Errors are {"error": text}, as LibreTranslate's."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str]) -> None:
        self.models = {(model.source, model.target): model for model in models}
        self.limits = limits
        self.keys = keys
        self._places = asyncio.Semaphore(limits.requests)
        self.codes = list(dict.fromkeys(code for pair in self.models for code in pair))
        self.sources = list(dict.fromkeys(source for source, _ in self.models))
        self.detector = languages.Detector(self.codes)

    def limited(
        self, route: Callable[[Fields], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns an endpoint that answers with the route's JSON for the fields of a request,
        within the limits.
        """

        async def endpoint(request: Request) -> Response:
            try:
                # a client may send its body slowly
                async with asyncio.timeout(self.limits.seconds):
                    fields = await requests.read_fields(request, self.limits)
                    requests.check_key(fields, self.keys)
                    if self._places.locked():  # those whose body comes slowly do not count
                        raise HTTPException(429, "Slow down: too many requests at a time")
                    async with self._places:
                        return JSONResponse(await requests.unless_gone(request, route(fields)))
            except QueueFull:
                raise HTTPException(429, "Slow down: the queue is full") from None
            except UserError as error:
                raise HTTPException(400, str(error)) from None
            except TimeoutError:
                raise HTTPException(
                    503, f"the request took more than {self.limits.seconds:g} seconds"
                ) from None
            except ClientDisconnect:
                return Response(status_code=requests.CLIENT_CLOSED)

        return endpoint

    async def translate(self, fields: Fields) -> dict[str, Any]:
        texts, is_list = requests.read_texts(fields, "q", self.limits)
        source, target = self._direction(fields)
        form = fields.get("format") or "text"
        if form not in ("text", "html"):
            raise HTTPException(400, f"{form!s:.20} format is not supported")
        detected = self._detect(texts, form, target) if source == "auto" else []
        sources = [found["language"] for found in detected] or [source] * len(texts)
        models = [self._model_or_none(code, target) for code in sources]
        alternatives = _alternatives(fields)
        controls, glossary = requests.read_controls(fields, texts, is_list, self.limits)
        found = {i: [text] for i, text in enumerate(texts)}
        for model in dict.fromkeys(filter(None, models)):
            chosen = [i for i, other in enumerate(models) if other is model]
            n_best = min(1 + alternatives, model.max_n_best)
            known = (
                [texts[i] for i in chosen],
                form,
                n_best,
                [controls[i] for i in chosen],
                glossary,
            )
            found |= zip(chosen, await model.translate(*known), strict=True)
        answer = {"translatedText": [best for best, *_ in found.values()]}
        if detected:
            answer["detectedLanguage"] = detected
        if alternatives:
            answer["alternatives"] = [others for _, *others in found.values()]
        return answer if is_list else {key: value for key, (value,) in answer.items()}

    async def detect(self, fields: Fields) -> list[dict[str, Any]]:
        texts, _ = requests.read_texts(fields, "q", self.limits)
        return self.detector("\n".join(texts))

    def explored(self, function: Callable[..., Any]) -> Callable[[Fields], Awaitable[Any]]:
        """Returns the route of a function of a model and the fields, which the model's queue calls."""

        async def route(fields: Fields) -> Any:
            served = self._model(*self._direction(fields))
            model = served.explorer
            queue = served.queue
            if function is explore.alternatives:  # its programs are not compiled ahead
                requests.check_controls_allowed(["prefix"], self.limits)
                model = served.aside
                queue = served.beside
            call = functools.partial(function, model, fields, self.limits)
            return (await queue.compute("explore", [call]))[0]

        return route

    async def languages(self, request: Request) -> Response:
        targets = {
            code: [target for source, target in self.models if source == code]
            for code in self.codes
        }
        return JSONResponse(
            [
                {"code": code, "name": languages.name(code), "targets": targets[code]}
                for code in self.codes
            ]
        )

    async def settings(self, request: Request) -> Response:
        source, target = (
            {"code": code, "name": languages.name(code)} for code in next(iter(self.models))
        )
        return JSONResponse(
            {
                "apiKeys": bool(self.keys),
                "charLimit": self.limits.characters,
                "filesTranslation": False,
                "frontendTimeout": 500,  # milliseconds between the last key and the request
                "keyRequired": bool(self.keys),
                "language": {"source": source, "target": target},
                "suggestions": False,
                "supportedFilesFormat": [],
            }
        )

    async def health(self, request: Request) -> Response:
        is_ok = all(model.queue.is_alive for model in self.models.values())
        return JSONResponse({"status": "ok" if is_ok else "failed"}, 200 if is_ok else 503)

    def _direction(self, fields: Fields) -> tuple[str, str]:
        """Returns the codes of source and target that a request names."""
        return tuple(
            self._served(requests.read_name(fields, name)) for name in ("source", "target")
        )

    def _served(self, code: str) -> str:
        """Returns the served language that a code such as EN or en-US means, or else the code."""
        alike = [known for known in self.codes if base_code(known) == base_code(code)]
        if code in self.codes or not alike:
            return code
        codec = languages.chinese_codec
        return min(alike, key=lambda known: codec(known) != codec(code))

    def _detect(self, texts: Sequence[str], form: str, target: str) -> list[dict[str, Any]]:
        """Returns the language of each text: a source, or the target, whose texts do not change.

        A text whose language is not certain has the language of all texts together.
        """
        if form == "html":
            split = [split_html(text, target) for text in texts]
            sentences = [[piece.text for piece in pieces if piece.is_sentence] for pieces in split]
            texts = list(map("\n".join, sentences))
        codes = [*self.sources, target] if self.detector.knows(self.sources) else self.sources
        together, *others = self.detector("\n".join(texts), codes)
        if together["language"] == target and together["confidence"] < CERTAIN:
            # A text to translate is probably not in the target language.
            known = [other for other in others if (other["language"], target) in self.models]
            together = (known or others or [together])[0]
        found = [self.detector(text, codes)[0] for text in texts]
        return [one if one["confidence"] >= CERTAIN else together for one in found]

    def _model(self, source: str, target: str) -> ServedModel:
        """Returns the model of a pair. Raises HTTPException if a language is not served."""
        if (source, target) in self.models:
            return self.models[source, target]
        if unknown := [code for code in (source, target) if code not in self.codes]:
            raise HTTPException(400, f"{unknown[0]:.20} is not supported")
        raise HTTPException(400, f"{target} is not available as a target language from {source}")

    def _model_or_none(self, source: str, target: str) -> ServedModel | None:
        """Returns the model of a pair; None for one language twice: as in LibreTranslate, its texts
        do not change.
        """
        is_same = source == target and source in self.codes and (source, target) not in self.models
        return None if is_same else self._model(source, target)


def _alternatives(fields: Fields) -> int:
    try:
        value = float(str(fields.get("alternatives") or 0))
    except ValueError:
        value = math.nan
    if not value.is_integer() or not 0 <= value < 1e6:
        raise HTTPException(400, "Invalid request: alternatives must be a whole number, such as 2")
    return int(value)


async def _error(request: Request, error: Exception) -> Response:
    """Returns the answer to a request that failed.

    The log has the place of an error in the code, without texts.
    """
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    frames = "".join(traceback.format_tb(error.__traceback__))
    logging.error("%s failed with %s.\n%s", request.url.path, type(error).__name__, frames)
    return JSONResponse({"error": "the server failed; its log has the reason"}, 500)
