"""Models that translate numbers, from "in" to "out" and back, and clients of their server."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from starlette.testclient import TestClient

from scripts.serve import bind
from scripts.serving.app import make_app
from scripts.serving.middleware import Metrics, make_server
from scripts.serving.models import ServedModel, load_models
from scripts.serving.requests import Limits
from tests.checkpoints.workdirs import make_workdir
from tests.scripts.calibrated import write_calibration

LIMITS = Limits(body_bytes=2000, characters=400, items=5, requests=3, seconds=60, shapes=16)
WORDS = {
    **{"data.source": "text", "tokenizer.kind": "word", "tokenizer.vocab_size": "16"},
    **{"decoding.max_source_length": "16", "decoding.batch_tokens": "1024"},
}

WEIGHTS = {"intercept": 2.0, "mean": 0.5, "lowest": 0.1}
WEIGHTS |= {"mean_of_passes": 0.5, "deviation_of_passes": -1.0}


@pytest.fixture(scope="session")
def workdirs(tmp_path_factory) -> list:
    folder, back = (
        tmp_path_factory.mktemp("served"),
        {"data.source_language": "out", "data.target_language": "in"},
    )
    there, back = (
        make_workdir(folder / "there", 0, (10,), **WORDS),
        make_workdir(folder / "back", 1, (10,), **WORDS, **back),
    )
    # Only the first one has a confidence, which needs passes of the model.
    write_calibration(there, WEIGHTS, dropout_passes=2)
    return [there, back]


@pytest.fixture(scope="session")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="session")
def served(workdirs, metrics) -> Iterator[list[ServedModel]]:
    models = load_models(list(map(str, workdirs)), "best", 1, {}, 0.02, 40, metrics, LIMITS.shapes)
    yield models
    for model in models:
        model.queue.close()


@contextlib.contextmanager
def listening(
    served: Sequence[ServedModel],
    keys: tuple[str, ...] = (),
    seconds: float = 60,
    limits: Limits = LIMITS,
) -> Iterator[str]:
    """Yields the address of a server of the models in another thread."""
    with bind("127.0.0.1", 0) as listener:
        server = make_server(make_app(served, limits, keys, Metrics()), seconds, lifespan="off")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def make_client(served, metrics) -> Callable[..., TestClient]:
    def make(limits: Limits = LIMITS, keys: tuple[str, ...] = (), **options) -> TestClient:
        return TestClient(make_app(served, limits, keys, metrics), **options)

    return make


@pytest.fixture(scope="session")
def client(make_client) -> TestClient:
    return make_client()
