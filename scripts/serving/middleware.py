"""Security headers and measurements of all answers."""

import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scripts.serving.metrics import Metrics

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Measured:
    """Adds the security headers, counts requests and measures their latency."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self.app, self.measurements, self.paths = app, metrics, set(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, path = time.perf_counter(), scope["path"] if scope["path"] in self.paths else "other"

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
                self.measurements.requests.labels(path, message["status"]).inc()
                self.measurements.latency.labels(path).observe(time.perf_counter() - start)
            await send(message)

        await self.app(scope, receive, send_measured)
