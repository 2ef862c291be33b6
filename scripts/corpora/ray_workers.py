"""Ray Data: actors, each with the models in its memory, that share the shards of a plan."""

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

from scripts.corpora.plan import Plan, Request, Shard, open_plan
from scripts.corpora.translator import Report, Translator, identity, load
from transformer.support.cache import enable_compilation_cache
from transformer.support.environment import REPOSITORY
from transformer.support.errors import UserError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported


@dataclasses.dataclass
class Worker:
    """A translator in a process of Ray.

    It maps the number of a shard to a report or the message of a UserError.
    """

    flags: Sequence[Any]
    output: Path
    request: Request

    @functools.cached_property
    def translator(self) -> Translator:
        """The models, loaded for the first shard: an error of a constructor would reach the driver
        as a traceback.
        """
        enable_compilation_cache()
        models = load(*self.flags)
        # Another machine may have another workdir, or a run may have saved a better checkpoint
        # since.
        return Translator(
            models, open_plan(self.output, self.request | {"model": identity(models)})
        )

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        try:
            (number,) = batch["number"]
            outcome = self.translator.translate(self.translator.plan.shards[number - 1])._asdict()
        except UserError as error:
            outcome = {"failure": str(error)}
        return {"outcome": [json.dumps(outcome)]}


def start(address: str | None) -> None:
    """Starts Ray on this machine, or connects to the cluster at the address. Must precede JAX, as
    Ray forks.

    Raises UserError if Ray is not installed, or there is no cluster.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UserError(
            f"Ray cannot be imported ({error}); pip install -r requirements-ray.txt, or use --shard=1/1 without it"
        ) from error
    if located := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or ""):
        try:  # Ray itself tries for many minutes
            socket.create_connection((located[1], int(located[2])), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"--ray={address}: cannot be reached ({error}); give the address of a cluster"
            ) from error
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
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


def translate(
    flags: Sequence[Any], opened: Plan, missing: Sequence[Shard], count: int, gpus: int
) -> Iterator[Report]:
    """Yields the report of each shard when it is finished, by `count` actors with a CPU core and so
    many GPUs each.

    Ray starts killed actors again and repeats their shards. Raises UserError if an actor does.
    """
    import ray

    if not missing:
        return
    shards = ray.data.from_items(
        [{"number": shard.number} for shard in missing], override_num_blocks=len(missing)
    )
    reports = shards.map_batches(
        Worker,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(
            size=min(count, len(missing)), max_tasks_in_flight_per_actor=1
        ),
        num_cpus=1,
        num_gpus=gpus,
        fn_constructor_args=(flags, opened.output, opened.request),
    )
    try:
        for row in reports.iter_rows():
            outcome = json.loads(row["outcome"])
            if "failure" in outcome:
                raise UserError(outcome["failure"])
            yield Report(**outcome)
    finally:
        ray.shutdown()
