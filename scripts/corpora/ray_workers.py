"""Ray Data: actors, each with the models in its memory, that share the shards of a plan."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.corpora import plan, translator
from scripts.corpora.plan import Plan, Shard
from scripts.corpora.translator import Report
from transformer.cache import enable_compilation_cache
from transformer.environment import REPOSITORY
from transformer.errors import UserError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported


class Worker:
    """A translator in a process of Ray. It maps a batch of shard numbers to the fields of their reports."""

    def __init__(self, flags: Sequence[Any], output: str, request: dict[str, Any]) -> None:
        enable_compilation_cache()
        models = translator.load(*flags)
        # Another machine may have another workdir, or a run may have saved a better checkpoint since.
        opened = plan.open_plan(Path(output), request | {"model": translator.identity(models)})
        self.translator = translator.Translator(models, opened)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        shards = [self.translator.plan.shards[number - 1] for number in batch["number"]]
        reports = [dataclasses.asdict(self.translator.translate(shard)) for shard in shards]
        return {field: [report[field] for report in reports] for field in reports[0]}


def translate(
    flags: Sequence[Any], opened: Plan, missing: Sequence[Shard], address: str | None, count: int, cpus: int, gpus: int
) -> Iterator[Report]:
    """Yields the report of each shard when it is finished, by `count` actors with so many CPU cores and GPUs each.

    Ray starts on this machine unless there is an `address`. It starts killed actors again, and repeats their shards.
    Raises UserError if Ray is not installed or an actor raises it.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UserError(
            f"Ray is not installed ({error}); pip install -r requirements-ray.txt, or use --shard=1/1 without it"
        ) from error
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        address=address or "local",
        include_dashboard=False if address is None else None,
        logging_level="warning",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    shards = ray.data.from_items([{"number": shard.number} for shard in missing], override_num_blocks=len(missing))
    reports = shards.map_batches(
        Worker,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(count, len(missing)), max_tasks_in_flight_per_actor=1),
        num_cpus=cpus,
        num_gpus=gpus,
        fn_constructor_args=(flags, str(opened.output), opened.request),
    )
    try:
        for row in reports.iter_rows():
            yield Report(**row)
    finally:
        ray.shutdown()
