"""Measurements of a server for Prometheus."""

from collections.abc import Callable, Sized

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
FILL = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)


class Metrics:
    """The measurements of one server. Histograms give quantiles, counters rates: rate(tokens_total[1m]) is tokens/s."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        known = {"registry": self.registry, "namespace": "transformer"}
        self.requests = Counter("requests", "Requests that were answered", ["route", "status"], **known)
        self.latency = Histogram("request_seconds", "From request to answer", ["route"], buckets=SECONDS, **known)
        self.tokens = Counter("tokens", "Tokens of translations, end-of-sentence included", ["pair"], **known)
        self._queue = Gauge("queue", "Sentences and other jobs that wait", ["pair"], **known)
        self._fill = Histogram("batch_fill", "Jobs / the most of a batch", ["pair", "kind"], buckets=FILL, **known)
        self._seconds = Histogram("batch_seconds", "Computation of a batch", ["pair"], buckets=SECONDS, **known)

    def watch_queue(self, pair: str, queue: Sized) -> None:
        self._queue.labels(pair).set_function(lambda: len(queue))

    def batches_of(self, pair: str, capacity: int) -> Callable[[str, int, float], None]:
        """Returns the `report` of the queue of a pair."""

        def report(kind: str, jobs: int, seconds: float) -> None:
            self._fill.labels(pair, kind).observe(jobs / (1 if kind == "explore" else capacity))
            self._seconds.labels(pair).observe(seconds)

        return report
