"""Requests: their fields, within limits, and the errors that they are answered with."""

import asyncio
import hmac
import itertools
import json
import re
import urllib.parse
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from transformer.decoding.control.arguments import CHECKS, check_controls, check_glossary
from transformer.decoding.control.control import Control
from transformer.decoding.control.glossary import Glossary

CLIENT_CLOSED = 499  # nginx's status for a client that went away; nobody receives it


Fields = dict[str, Any]  # of a request


class Limits(NamedTuple):
    """The most that clients may ask for.

    body_bytes: of a request. characters, items: of all texts of a request. requests: at a time.
    seconds: of a request, from its first byte to the answer. shapes: of controls; with 0, controls
    are refused.
    """

    body_bytes: int
    characters: int
    items: int
    requests: int
    seconds: float
    shapes: int


async def read_fields(request: Request, limits: Limits) -> Fields:
    """Returns the fields of a JSON object or of a form.

    Raises HTTPException if the body is neither, or too large.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limits.body_bytes:
            raise HTTPException(413, f"the body has more than {limits.body_bytes} bytes")
    header = request.headers.get("content-type", "")
    kind = header.partition(";")[0].strip().lower()
    if kind == "application/json":
        try:
            fields = json.loads(bytes(body), object_pairs_hook=_distinct)
            json.dumps(fields, ensure_ascii=False).encode()  # fails for half a surrogate pair
        except (ValueError, RecursionError):
            raise HTTPException(400, "Invalid JSON format") from None
        if not isinstance(fields, dict):
            raise HTTPException(400, "Invalid JSON format: must be an object")
        return fields
    # in UTF-8 even if not escaped, as by curl -d
    if kind in ("", "application/x-www-form-urlencoded"):
        form = urllib.parse.parse_qsl(body.decode(errors="replace"), keep_blank_values=True)
    elif kind == "multipart/form-data":
        form = await _read_multipart(request, header, bytes(body))
    else:
        raise HTTPException(415, "content-type must be application/json or that of a form")
    return {**_gather(request.query_params.multi_items()), **_gather(form)}  # as LibreTranslate


def _gather(pairs: Sequence[tuple[str, str]]) -> Fields:
    """Returns the fields of a form, as lists if they come more than once."""
    fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


async def _read_multipart(request: Request, header: str, body: bytes) -> list[tuple[str, str]]:
    """Returns the fields of a form in UTF-8. Other codecs may fail or take quadratic time."""

    async def receive() -> Fields:
        return {"type": "http.request", "body": body}

    headers = [
        (b"content-type", re.sub("charset", "_", header, flags=re.IGNORECASE).encode("latin-1"))
    ]
    async with Request({**request.scope, "headers": headers}, receive).form(max_files=0) as form:
        return form.multi_items()


def _distinct(pairs: list[tuple[str, Any]]) -> Fields:
    if len(fields := dict(pairs)) < len(pairs):
        raise HTTPException(400, "Invalid JSON format: an object has a name twice")
    return fields


def check_key(fields: Fields, keys: Sequence[str]) -> None:
    """Raises HTTPException unless there are no keys or the field `api_key` is one.

    Takes the same time for all keys.
    """
    given = str(fields.get("api_key") or "").encode("utf-8", "surrogatepass")
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if keys and not any(matches):
        raise HTTPException(
            403, "Invalid API key" if given else "Please contact the server operator for an API key"
        )


def read_texts(fields: Fields, name: str, limits: Limits) -> tuple[list[str], bool]:
    """Returns the texts of a field, and whether it is a list.

    Raises HTTPException if it is missing or too large.
    """
    value = fields.get(name)
    texts = value if isinstance(value, list) else [value]
    if not value and value != "":
        raise HTTPException(400, f"Invalid request: missing {name} parameter")
    if not all(isinstance(text, str) for text in texts):
        raise HTTPException(400, f"Invalid request: {name} must be a text or a list of texts")
    _check_size(texts, limits)
    return texts, isinstance(value, list)


def read_controls(
    fields: Fields, texts: Sequence[str], is_list: bool, limits: Limits
) -> tuple[list[Control], Glossary]:
    """Returns the control of each text, and the glossary of all, whose terms are not among the
    required phrases yet.

    If the texts are a list, `prefix`, `required` and `banned` are lists with an item for each.
    Raises HTTPException or UserError if a field is wrong or too large.
    """
    given = {name: fields[name] for name in CHECKS if fields.get(name)}
    check_controls_allowed([*given, *(["glossary"] if fields.get("glossary") else [])], limits)
    glossary = check_glossary(fields.get("glossary") or {})
    controls = check_controls(
        texts, given if is_list else {name: [value] for name, value in given.items()}
    )
    phrases = [
        [control.prefix, *control.banned, *itertools.chain(*control.required)]
        for control in controls
    ]
    phrases += [[term, *translations] for term, translations in glossary.terms]
    _check_size([*filter(None, itertools.chain(*phrases))], limits)
    return controls, glossary


def check_controls_allowed(names: Sequence[str], limits: Limits) -> None:
    if names and not limits.shapes:
        raise HTTPException(400, f"Invalid request: {names[0]} is not supported by this server")


def _check_size(texts: Sequence[str], limits: Limits) -> None:
    for size, limit in ((len(texts), limits.items), (sum(map(len, texts)), limits.characters)):
        if size > limit:
            raise HTTPException(
                400, f"Invalid request: request ({size}) exceeds text limit ({limit})"
            )


def read_name(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not value:
        raise HTTPException(400, f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise HTTPException(400, f"Invalid request: {name} must be a text")
    return value


async def unless_gone(request: Request, work: Coroutine) -> Any:
    """Returns the result of `work`. Cancels it and raises ClientDisconnect if the client leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
