"""Ray Data actors that share the shards of a corpus. Each actor has the models in its memory."""

import dataclasses
import functools
import json
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.corpora.shards import Shard, ShardedCorpus, open_shards
from scripts.corpora.translator import ShardReport, Translator, identity, load
from transformer.support.cache import enable_compilation_cache
from transformer.support.environment import REPOSITORY
from transformer.support.errors import UserError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported


@dataclasses.dataclass
class ShardActor:
    """A translator in a process of Ray.

    It maps the number of a shard to a report or the message of a UserError.
    """

    flags: Sequence[Any]
    output: Path
    request: dict[str, Any]

    @functools.cached_property
    def translator(self) -> Translator:
        """The models, loaded with the first shard.

        An error in the constructor would reach the driver as a traceback.
        """
        enable_compilation_cache()
        models = load(*self.flags)
        # Another machine may have another workdir, or the run may have saved a better checkpoint
        # since the driver loaded its models.
        request = self.request | {"model": identity(models)}
        return Translator(models, open_shards(self.output, request))

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        (number,) = batch["number"]
        try:
            shard = self.translator.corpus.shards[number - 1]
            outcome = self.translator.translate(shard)._asdict()
        except UserError as error:
            outcome = {"failure": str(error)}
        # JSON, because Ray's batches are columns of simple types.
        return {"outcome": [json.dumps(outcome)]}


def start(address: str | None) -> None:
    """Starts Ray on this machine, or connects to the cluster at the address.

    Must be called before JAX starts, because Ray forks. Raises UserError if Ray is not installed,
    or there is no cluster.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UserError(
            f"Ray cannot be imported ({error}); pip install -r requirements/ray.txt, "
            "or use --shard=1/1 without it"
        ) from error
    host_and_port = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or "")
    if host_and_port:
        host, port = host_and_port.groups()
        try:  # Ray itself tries for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"--ray={address}: cannot be reached ({error}); give the address of a cluster"
            ) from error

    # Workers import the project from its folder.
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            logging_level="warning",
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"--ray={address}: {error}; give the address of a running cluster"
        ) from error
    signal.signal(signal.SIGTERM, handler)  # Ray's own prints a stack and ends the process
    # The reports of shards show the progress.
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


def translate(
    flags: Sequence[Any], corpus: ShardedCorpus, missing: Sequence[Shard], count: int, gpus: int
) -> Iterator[ShardReport]:
    """Yields the report of each shard when it is finished.

    `count` actors translate the missing shards, with a CPU core and `gpus` GPUs each. Ray restarts
    killed actors and repeats their shards. Raises UserError if an actor does.
    """
    import ray

    if not missing:
        return

    # A block for each shard, so that actors take the next shard as soon as they are free.
    numbers = [{"number": shard.number} for shard in missing]
    actors = ray.data.ActorPoolStrategy(
        size=min(count, len(missing)), max_tasks_in_flight_per_actor=1
    )
    outcomes = ray.data.from_items(numbers, override_num_blocks=len(missing)).map_batches(
        ShardActor,
        batch_size=1,
        compute=actors,
        num_cpus=1,
        num_gpus=gpus,
        fn_constructor_args=(flags, corpus.output, corpus.request),
    )

    # Ray Data runs the actors while these rows are read.
    try:
        for row in outcomes.iter_rows():
            outcome = json.loads(row["outcome"])
            if "failure" in outcome:
                raise UserError(outcome["failure"])
            yield ShardReport(**outcome)
    finally:
        ray.shutdown()
