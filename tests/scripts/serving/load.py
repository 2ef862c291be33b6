"""Clients of a server in another process, and a measurement with them.

python -m tests.scripts.serving.load WORKDIR < TEXTS prints a table: clients, sentences/s, and latencies in ms.
"""

import asyncio
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
from transformer.cache import enable_compilation_cache

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


async def ask(port: int, source: str, target: str, texts: Sequence[str], leaves: float, answers: dict) -> list[float]:
    """Asks for one text after another and writes the answers. Returns the seconds of each.

    Before a share `leaves` of the answers the client closes its connection, and asks again with a new one.
    """
    seconds, connection, generator = [], None, random.Random(texts[0])
    for text in texts:
        body = json.dumps({"q": text, "source": source, "target": target}).encode()
        lines = "POST /translate HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"
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
            (length,) = (int(line.partition(":")[2]) for line in headers if line.startswith("content-length:"))
            answer = json.loads(await reader.readexactly(length))
            assert " 200 " in status, answer
            answers[text] = answer["translatedText"]
            seconds.append(time.perf_counter() - start)
    connection[1].close()
    return seconds


def measure(port: int, pair: Sequence[str], texts: Sequence[str], clients: int, leaves: float = 0.0):
    """Returns the answers to distinct texts, shared among clients, the latencies, and the seconds of all."""
    answers: dict[str, str] = {}

    async def main() -> list[list[float]]:
        return await asyncio.gather(*(ask(port, *pair, texts[i::clients], leaves, answers) for i in range(clients)))

    start = time.perf_counter()
    latencies = asyncio.run(main())
    return answers, sum(latencies, []), time.perf_counter() - start


def main() -> None:
    texts = list(dict.fromkeys(sys.stdin.read().splitlines()))
    enable_compilation_cache()
    print(json.dumps({"texts": len(texts)} | in_process(sys.argv[1], texts)))
    config = transformer.load(sys.argv[1]).config.data
    with started(f"--workdir={Path(sys.argv[1]).resolve()}") as (_, port):
        for clients in (1, 8, 64):
            _, latencies, seconds = measure(port, (config.source_language, config.target_language), texts, clients)
            p50, p99 = (1000 * np.percentile(latencies, (50, 99))).round(1)
            print(
                json.dumps({"clients": clients, "per_second": round(len(texts) / seconds, 1), "p50": p50, "p99": p99})
            )


def in_process(workdir: str, texts: Sequence[str]) -> dict[str, float]:
    """Returns the sentences/s of all texts in one call, of one call each, and the latencies of these."""
    model, single = transformer.load(workdir), transformer.load(workdir, batch_tokens=1)
    model.compile()
    single.compile()
    start = time.perf_counter()
    model.translate(texts)
    whole, latencies = time.perf_counter() - start, []
    for text in texts:
        start = time.perf_counter()
        single.translate([text])
        latencies.append(time.perf_counter() - start)
    p50, p99 = (1000 * np.percentile(latencies, (50, 99))).round(1)
    rates = {"per_second_at_once": len(texts) / whole, "per_second_one_by_one": len(texts) / sum(latencies)}
    return {name: round(rate, 1) for name, rate in rates.items()} | {"p50": p50, "p99": p99}


if __name__ == "__main__":
    main()
