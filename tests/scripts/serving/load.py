"""Clients of a server in another process, and a measurement with them.

python -m tests.scripts.serving.load WORKDIR < TEXTS prints sentences/s and latencies in ms of
several ways. They take turns, so that other jobs of the machine disturb all of them; the numbers
are medians over the repetitions.
"""

import asyncio
import collections
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import transformer
from transformer.api import Model
from transformer.support.cache import enable_compilation_cache

REPETITIONS = 5
NAMES = ("per_second", "p50", "p99")
LISTENS = re.compile(r"Listens on http://127\.0\.0\.1:(\d+)\.")


@contextlib.contextmanager
def started(*flags: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """Yields a server's process and port, and ends it by SIGTERM."""
    command = [sys.executable, "-m", "scripts.serve", "--port=0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stderr.readline, "")
            port = next(int(match[1]) for line in lines if (match := LISTENS.search(line)))
            yield process, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


async def ask(
    port: int, source: str, target: str, texts: Sequence[str], leaves: float, answers: dict
) -> list[float]:
    """Asks for one text after another and writes the answers. Returns the seconds of each.

    Before a share `leaves` of the answers the client closes its connection, and asks again with a
    new one.
    """
    seconds, connection, generator = [], None, random.Random(texts[0])
    for text in texts:
        body = json.dumps({"q": text, "source": source, "target": target}).encode()
        lines = (
            "POST /translate HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        head = "".join(f"{line}\r\n" for line in (*lines, ""))
        while text not in answers:
            connection = connection or await asyncio.open_connection("127.0.0.1", port)
            reader, writer = connection
            start = time.perf_counter()
            writer.write(head.encode() + body)
            if generator.random() < leaves:
                await asyncio.sleep(generator.random() / 100)
                writer.close()
                connection = None
                continue
            status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            (length,) = (
                int(line.partition(":")[2])
                for line in headers
                if line.startswith("content-length:")
            )
            answer = json.loads(await reader.readexactly(length))
            assert " 200 " in status, answer
            answers[text] = answer["translatedText"]
            seconds.append(time.perf_counter() - start)
    connection[1].close()
    return seconds


def measure(
    port: int, pair: Sequence[str], texts: Sequence[str], clients: int, leaves: float = 0.0
):
    """Returns the answers to distinct texts, shared among clients, the latencies, and the seconds
    of all.
    """
    answers: dict[str, str] = {}

    async def main() -> list[list[float]]:
        return await asyncio.gather(
            *(ask(port, *pair, texts[i::clients], leaves, answers) for i in range(clients))
        )

    start = time.perf_counter()
    latencies = asyncio.run(main())
    return answers, sum(latencies, []), time.perf_counter() - start


def main() -> None:
    workdir, texts, runs = (
        sys.argv[1],
        list(dict.fromkeys(sys.stdin.read().splitlines())),
        collections.defaultdict(list),
    )
    enable_compilation_cache()
    whole, single = transformer.load(workdir), transformer.load(workdir, batch_tokens=1)
    for model in (whole, single):
        model.compile()
    pair = whole.config.data.source_language, whole.config.data.target_language
    with started(f"--workdir={Path(workdir).resolve()}") as (_, port):
        for _ in range(REPETITIONS):
            runs["at once"].append(in_process(whole, [texts]))
            runs["one by one"].append(in_process(single, [[text] for text in texts]))
            for clients in (1, 8, 64):
                runs[f"{clients} clients"].append(measure(port, pair, texts, clients)[1:])
    for way, pairs in runs.items():
        rows = [
            (len(texts) / seconds, *(1000 * np.percentile(latencies, (50, 99))))
            for latencies, seconds in pairs
        ]
        print(
            json.dumps(
                {"way": way}
                | dict(zip(NAMES, np.median(rows, axis=0).round(1).tolist(), strict=True))
            )
        )


def in_process(model: Model, batches: Sequence[Sequence[str]]) -> tuple[list[float], float]:
    """Returns the seconds of the translation of each batch, and of all."""
    latencies = []
    for texts in batches:
        start = time.perf_counter()
        model.translate(texts)
        latencies.append(time.perf_counter() - start)
    return latencies, sum(latencies)


if __name__ == "__main__":
    main()
