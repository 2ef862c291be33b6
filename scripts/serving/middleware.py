"""Measurements for Prometheus, security headers, and limits of connections."""

import asyncio
import functools
import time
import weakref
from collections.abc import Collection
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# upper bounds of the histograms' buckets
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
FILL = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)
HEADER_BYTES = 65536  # limit of a request's first line and headers together


class Metrics:
    """The measurements of one server.

    Histograms give quantiles. Counters give rates: rate(tokens_total[1m]) is in tokens/s.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # All names begin with transformer_.
        counter, gauge, histogram = (
            functools.partial(kind, registry=self.registry, namespace="transformer")
            for kind in (Counter, Gauge, Histogram)
        )
        self.requests = counter("requests", "Requests that were answered", ["route", "status"])
        self.latency = histogram(
            "request_seconds", "From request to answer", ["route"], buckets=SECONDS
        )
        self.tokens = counter(
            "tokens", "Tokens of translations, end-of-sentence included", ["pair"]
        )
        self.queue = gauge("queue", "Sentences and other jobs that wait", ["pair"])
        self._fill = histogram(
            "batch_fill", "Jobs / the most of a batch", ["pair", "kind"], buckets=FILL
        )
        self._seconds = histogram(
            "batch_seconds", "Computation of a batch", ["pair"], buckets=SECONDS
        )

    def report(self, pair: str, kind: str, fill: float, seconds: float) -> None:
        """Records a batch of the queue of a pair."""
        self._fill.labels(pair, kind).observe(fill)
        self._seconds.labels(pair).observe(seconds)


class Measured:
    """An application with security headers, counted requests and measured latency."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = set(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        # Unknown paths share a label, since each label takes memory.
        path = scope["path"] if scope["path"] in self.paths else "other"
        app = self.app
        # Each header has four bytes more: ": " and the line end.
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > HEADER_BYTES:
            error = {"error": f"the headers have more than {HEADER_BYTES} bytes"}
            app = JSONResponse(error, 400, {"connection": "close"})

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
                self.metrics.requests.labels(path, message["status"]).inc()
                self.metrics.latency.labels(path).observe(time.perf_counter() - start)
            await send(message)

        await app(scope, receive, send_measured)


def make_server(app: ASGIApp, seconds: float, **options: Any) -> uvicorn.Server:
    """Returns a server of the application with `Connection`s.

    `options` are those of `uvicorn.Config`.
    """
    config = uvicorn.Config(
        app,
        timeout_keep_alive=seconds,
        http=functools.partial(Connection, seconds=seconds),
        # uvicorn logs a line for each wrong request, and errors that `app` has already logged.
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,  # it names the server
        ws="none",
        **options,
    )
    return uvicorn.Server(config)


class Connection(AutoHTTPProtocol):
    """A connection of uvicorn with limits on slow clients.

    Examples are headers that trickle, and answers that nobody reads. The connection is closed if no
    request begins in `seconds`, if a request takes twice as long, including the time in which the
    client reads its answer, or if the headers are too large.
    """

    def __init__(self, *, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds
        self._header_bytes = 0
        self._cycles = weakref.WeakSet()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._seconds, self._check, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)
        # All pipelined requests that still run learn that their client has left.
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def on_headers_complete(self) -> None:
        """Stores the request, since uvicorn tells only the latest one that its client has left."""
        super().on_headers_complete()
        self._cycles.add(self.cycle)

    def data_received(self, data: bytes) -> None:
        # Data belongs to headers if it completes no headers and continues no body.
        earlier = self.cycle  # of the latest request; None before the first
        is_body = earlier and earlier.more_body
        super().data_received(data)
        is_header = self.cycle is earlier and not is_body
        self._header_bytes = self._header_bytes + len(data) if is_header else 0
        if self._header_bytes > HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers have more than {HEADER_BYTES} bytes.")

    def _check(self, earlier: Any) -> None:
        if self.cycle is earlier:
            # No request has begun since the last check.
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self._seconds, self._check, self.cycle)
