"""Fields of requests: how they are read, and the limits that they must keep."""

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
from transformer.support.errors import UserError

Fields = dict[str, Any]  # of a request

CLIENT_CLOSED = 499  # nginx's status for a client that went away; nobody receives it


class Limits(NamedTuple):
    """The largest sizes that a request may have.

    Attributes:
      body_bytes: bytes of the body.
      characters, items: characters and number of all texts together.
      requests: number of requests at a time.
      seconds: from the first byte of a request to its answer.
      shapes: shapes of controls whose programs stay compiled. With 0, controls are refused.
    """

    body_bytes: int
    characters: int
    items: int
    requests: int
    seconds: float
    shapes: int


async def read_fields(request: Request, limits: Limits) -> Fields:
    """Returns the fields of a JSON object or of a form.

    Raises HTTPException or UserError if the body is neither, or too large.
    """
    # The limit holds while the body arrives, so that a large one never fills the memory.
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limits.body_bytes:
            raise HTTPException(413, f"the body has more than {limits.body_bytes} bytes")
    header = request.headers.get("content-type", "")
    kind = header.partition(";")[0].strip().lower()
    if kind == "application/json":
        return _read_json(bytes(body))
    if kind in ("", "application/x-www-form-urlencoded"):
        # Clients such as curl -d send UTF-8 without escapes.
        form = urllib.parse.parse_qsl(body.decode(errors="replace"), keep_blank_values=True)
    elif kind == "multipart/form-data":
        form = await _read_multipart(request, header, bytes(body))
    else:
        raise HTTPException(415, "content-type must be application/json or that of a form")
    # As in LibreTranslate, the address may have fields too.
    return {**_gather(request.query_params.multi_items()), **_gather(form)}


def _read_json(body: bytes) -> Fields:
    try:
        fields = json.loads(body, object_pairs_hook=_distinct)
        json.dumps(fields, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except (ValueError, RecursionError):
        raise UserError("Invalid JSON format") from None
    if not isinstance(fields, dict):
        raise UserError("Invalid JSON format: must be an object")
    return fields


def _distinct(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        # Not UserError, which is a ValueError, as are the errors of json.
        raise HTTPException(400, "Invalid JSON format: an object has a name twice")
    return fields


async def _read_multipart(request: Request, header: str, body: bytes) -> list[tuple[str, str]]:
    """Returns the fields of a form in UTF-8. Other codecs may fail or take quadratic time."""

    async def receive() -> Fields:
        return {"type": "http.request", "body": body}

    # Without this parameter, Starlette decodes UTF-8.
    header = re.sub("charset", "_", header, flags=re.IGNORECASE)
    scope = {**request.scope, "headers": [(b"content-type", header.encode("latin-1"))]}
    async with Request(scope, receive).form(max_files=0) as form:
        return form.multi_items()


def _gather(pairs: Sequence[tuple[str, str]]) -> Fields:
    """Returns the fields of a form. A field that comes more than once is a list."""
    fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def check_key(fields: Fields, keys: Sequence[str]) -> None:
    """Raises HTTPException unless there are no keys, or the field `api_key` is one of them.

    The comparison takes the same time for all keys, so that the time does not reveal a key.
    """
    key = str(fields.get("api_key") or "").encode("utf-8", "surrogatepass")
    matches = [hmac.compare_digest(key, valid_key.encode()) for valid_key in keys]
    if keys and not any(matches):
        message = "Invalid API key" if key else "Please contact the server operator for an API key"
        raise HTTPException(403, message)


def read_texts(fields: Fields, name: str, limits: Limits) -> tuple[list[str], bool]:
    """Returns the texts of a field, and whether the field is a list.

    Raises UserError if it is missing or too large.
    """
    value = fields.get(name)
    texts = value if isinstance(value, list) else [value]
    if not value and value != "":
        raise UserError(f"Invalid request: missing {name} parameter")
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"Invalid request: {name} must be a text or a list of texts")
    _check_size(texts, limits)
    return texts, isinstance(value, list)


def read_switch(fields: Fields, name: str) -> bool:
    """Returns a field that is true or false, in JSON or as text. False if it is missing.

    Raises UserError for another value.
    """
    value = str(fields.get(name) or False).lower()
    if value not in ("true", "false"):
        raise UserError(f"Invalid request: {name} must be true or false")
    return value == "true"


def read_controls(
    fields: Fields, texts: Sequence[str], is_list: bool, limits: Limits
) -> tuple[list[Control], Glossary]:
    """Returns the control of each text, and the glossary of all texts.

    The required phrases of the controls do not include the terms of the glossary. If the texts are
    a list, `prefix`, `required` and `banned` are lists with an item for each text. Raises
    UserError if a field is wrong or too large.
    """
    names = [name for name in (*CHECKS, "glossary") if fields.get(name)]
    check_controls_allowed(names, limits)
    glossary = check_glossary(fields.get("glossary") or {})
    columns = {name: fields[name] if is_list else [fields[name]] for name in names}
    columns.pop("glossary", None)
    controls = check_controls(texts, columns)

    # The limits of texts hold for the phrases too.
    phrases = []
    for control in controls:
        phrases += [control.prefix, *control.banned, *itertools.chain(*control.required)]
    for term, translations in glossary.terms:
        phrases += [term, *translations]
    _check_size(list(filter(None, phrases)), limits)
    return controls, glossary


def split_control(control: Control, sentences: Sequence[str], glossary: Glossary) -> list[Control]:
    """Returns the control of each sentence of a text. Only the first one has the prefix.

    Raises UserError if phrases are required of several sentences.
    """
    if control.required and len(sentences) != 1:
        raise UserError(
            "required: the text must be one sentence; send each sentence as a text, or a glossary"
        )
    prefixes = [control.prefix, *[""] * len(sentences)]
    required = [glossary.required(sentence, control.required) for sentence in sentences]
    pairs = zip(prefixes, required, strict=False)
    return [Control(*pair, control.banned) for pair in pairs]


def check_controls_allowed(names: Sequence[str], limits: Limits) -> None:
    """Raises UserError if there are names of fields and the server refuses controls."""
    if names and not limits.shapes:
        raise UserError(f"Invalid request: {names[0]} is not supported by this server")


def _check_size(texts: Sequence[str], limits: Limits) -> None:
    characters = sum(map(len, texts))
    for size, limit in ((len(texts), limits.items), (characters, limits.characters)):
        if size > limit:
            raise UserError(f"Invalid request: request ({size}) exceeds text limit ({limit})")


def read_name(fields: Fields, name: str) -> str:
    """Returns a field that is one text. Raises UserError if it is missing or a list."""
    value = fields.get(name)
    if not value:
        raise UserError(f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise UserError(f"Invalid request: {name} must be a text")
    return value


async def unless_gone(request: Request, work: Coroutine) -> Any:
    """Returns the result of `work`. Cancels it and raises ClientDisconnect if the client leaves."""
    # Whichever ends first decides: the work, or the connection.
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
