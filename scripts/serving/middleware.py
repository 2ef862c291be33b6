"""Measurements for Prometheus, security headers of all answers, and the end of connections that
stand still.
"""

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
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
FILL = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)
HEADER_BYTES = 65536  # the most of a request, its first line included
_TOO_LARGE = {"error": f"the headers have more than {HEADER_BYTES} bytes"}


class Metrics:
    """The measurements of one server.

    Histograms give quantiles, counters rates: rate(tokens_total[1m]) is tokens/s.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        known = {"registry": self.registry, "namespace": "transformer"}
        self.requests = Counter(
            "requests", "Requests that were answered", ["route", "status"], **known
        )
        self.latency = Histogram(
            "request_seconds", "From request to answer", ["route"], buckets=SECONDS, **known
        )
        self.tokens = Counter(
            "tokens", "Tokens of translations, end-of-sentence included", ["pair"], **known
        )
        self.queue = Gauge("queue", "Sentences and other jobs that wait", ["pair"], **known)
        self._fill = Histogram(
            "batch_fill", "Jobs / the most of a batch", ["pair", "kind"], buckets=FILL, **known
        )
        self._seconds = Histogram(
            "batch_seconds", "Computation of a batch", ["pair"], buckets=SECONDS, **known
        )

    def report(self, pair: str, kind: str, fill: float, seconds: float) -> None:
        """Records a batch of the queue of a pair."""
        self._fill.labels(pair, kind).observe(fill)
        self._seconds.labels(pair).observe(seconds)


class Measured:
    """Adds the security headers, counts requests and measures their latency."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self.app = app
        self.measurements = metrics
        self.paths = set(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        path = scope["path"] if scope["path"] in self.paths else "other"
        app = self.app
        # A header has four bytes more: ": " and the line end.
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > HEADER_BYTES:
            app = JSONResponse(_TOO_LARGE, 400, {"connection": "close"})

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in HEADERS.items()),
                ]
                self.measurements.requests.labels(path, message["status"]).inc()
                self.measurements.latency.labels(path).observe(time.perf_counter() - start)
            await send(message)

        await app(scope, receive, send_measured)


def make_server(app: ASGIApp, seconds: float, **options: Any) -> uvicorn.Server:
    """Returns a server of the application with `Connection`s, and other options of
    `uvicorn.Config`.
    """
    # Without uvicorn's access log, which would have one line a request, and its headers, which name
    # the server. Its log has a line for each wrong request, and what `app` has logged already.
    known = {
        "log_config": None,
        "log_level": "critical",
        "access_log": False,
        "server_header": False,
        "ws": "none",
    }
    limits = {"timeout_keep_alive": seconds, "http": functools.partial(Connection, seconds=seconds)}
    return uvicorn.Server(uvicorn.Config(app, **limits, **known, **options))


class Connection(AutoHTTPProtocol):
    """A connection of uvicorn that does not outlast its limits: headers that trickle, answers that
    nobody reads.

    It is closed if no request begins in `seconds`, if one takes two times as long, the reading of
    its answer included, or if its headers are too large.
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
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def on_headers_complete(self) -> None:
        """Remembers a request of httptools. uvicorn tells only the latest that its client left."""
        super().on_headers_complete()
        self._cycles.add(self.cycle)

    def data_received(self, data: bytes) -> None:
        earlier = self.cycle  # of the latest request; None before the first
        is_body = earlier and earlier.more_body
        super().data_received(data)
        is_header = self.cycle is earlier and not is_body
        self._header_bytes = self._header_bytes + len(data) if is_header else 0
        if self._header_bytes > HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers have more than {HEADER_BYTES} bytes.")

    def _check(self, earlier: Any) -> None:
        if self.cycle is earlier:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self._seconds, self._check, self.cycle)
