"""The folder of a plan: a workdir, or a folder or file of text, for each stage, and the record of what made it."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from configs.rules import HOST, LOG, MESH, PATH
from scripts.datasets.folder import SPLITS
from scripts.distillation import plan
from transformer import files, locks
from transformer.config import loading
from transformer.config.keys import flatten, keys_of
from transformer.config_types import Config
from transformer.errors import MALFORMED, UserError

NEUTRAL = (LOG, PATH, MESH, HOST)  # scopes of keys that do not change what a run computes


class Folder:
    """The paths of a plan's stages. `overrides` replace keys of all its configs."""

    def __init__(self, path: Path, overrides: loading.Overrides = ()) -> None:
        self.path, self.overrides = path, list(overrides)
        self.record = path / "distill.json"

    def of(self, stage: plan.Stage) -> Path:
        """Returns the workdir, folder or file of a stage's result."""
        if isinstance(stage, plan.Training) and stage.workdir:
            return Path(stage.workdir)
        return self.path / (f"{stage.name}.json" if isinstance(stage, plan.Measurement) else stage.name)

    def log(self, stage: plan.Stage) -> Path:
        return self.path / "logs" / f"{stage.name}.txt"

    def load_config(self, name: str, values: Sequence[tuple[str, Any]] = ()) -> Config:
        """Returns a config with the values of a stage and the overrides of the command, which come last."""
        return loading.load_file(name, [*((key, str(value)) for key, value in values), *self.overrides])

    def config(self, model: plan.Training) -> Config:
        """Returns the configuration of a model. Raises UserError if it is not allowed, or the workdir is no run's."""
        if model.workdir:
            return loading.load(Path(model.workdir))
        config = self.load_config(model.config, list(model.values.items()))
        if model.data is None:
            return config
        splits = dict(zip(("data.train_split", "data.valid_split", "data.test_split"), SPLITS, strict=True))
        replaced = {"data.source": "text", "data.path": str(self.of(model.data).resolve()), "data.downloads": ()}
        return loading.with_values(config, splits | replaced)

    def languages(self, model: plan.Training) -> tuple[str, str]:
        data = self.config(model).data
        return data.source_language, data.target_language

    def identity(self, stage: plan.Stage) -> dict[str, Any]:
        """Returns all that a stage's result depends on, but for its inputs, as JSON types."""
        fields = {
            field.name: getattr(stage, field.name)
            for field in dataclasses.fields(stage)
            if field.name not in ("name", "values", "data", "models", "model", "translations")
        }
        if isinstance(stage, plan.Training):
            neutral = keys_of(*NEUTRAL)
            fields = {"workdir": stage.workdir}
            fields |= {key: value for key, value in flatten(self.config(stage)).items() if key not in neutral}
        for name in ("text", "config"):
            if (path := fields.get(name, "")).endswith(plan.TEXTS):
                fields[name] = {key: value for key, value in self.load_config(path).data.items() if key != "cache_dir"}
            elif name in fields:
                if not Path(path).is_file():
                    raise UserError(f"{stage.name}: {path} is no file; name a text, or a config with its ending")
                fields[name] = [str(Path(path).resolve()), Path(path).stat().st_size]
        if isinstance(fields.get("choose"), plan.Training):
            fields["choose"] = "model"
        return json.loads(json.dumps({"kind": type(stage).__name__} | fields))

    def describe(self, stages: Sequence[plan.Stage]) -> dict[str, dict[str, Any]]:
        """Returns the identity of each stage by name, and the digest of it and of its inputs."""
        described: dict[str, dict[str, Any]] = {}
        for stage in stages:
            facts = {
                "is": self.identity(stage),
                "from": {x.name: described[x.name]["digest"] for x in plan.inputs(stage)},
            }
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
            described[stage.name] = {"digest": digest} | facts
        return described

    def read(self) -> dict[str, dict[str, Any]]:
        """Returns the record of the stages that have begun. Raises UserError if it is damaged."""
        if not self.record.exists():
            return {}
        try:
            return {name: {**entry} for name, entry in json.loads(self.record.read_bytes())["stages"].items()}
        except MALFORMED as error:
            raise UserError(f"{self.record}: damaged ({type(error).__name__}); name another --workdir") from error

    def check(self, stages: Sequence[plan.Stage]) -> dict[str, dict[str, Any]]:
        """Returns the record of the stages that have begun, and that of the plan for all others.

        Raises UserError if a stage has another meaning now, or its place in the folder is taken.
        """
        recorded, planned = self.read(), self.describe(stages)
        for stage in stages:
            entry, new = recorded.get(stage.name), planned[stage.name]
            if entry is None and self.of(stage).exists() and not getattr(stage, "workdir", ""):
                raise UserError(f"{self.of(stage)}: exists, but is not of this plan; name another --workdir")
            if entry is not None and entry["digest"] != new["digest"]:
                raise UserError(
                    f"--workdir={self.path}: {stage.name} was made with {_difference(entry, new)}; give the stage "
                    "another name, or name another --workdir"
                )
        return planned | recorded

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other processes of the plan during the block. Raises UserError if there is one."""
        files.make_folder(self.path, "--workdir")
        self.log_folder.mkdir(exist_ok=True)
        with (self.path / ".distill.lock").open("a") as file:
            if not locks.try_lock(file):
                raise UserError(f"--workdir={self.path}: is in use by another scripts.distill; wait for it")
            yield

    @property
    def log_folder(self) -> Path:
        return self.path / "logs"


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Returns the first setting or input in which two records of a stage differ."""
    for facts in ("is", "from"):
        for key in {**old[facts], **new[facts]}:
            before, after = old[facts].get(key), new[facts].get(key)
            if before != after:
                return f"another {key}" if facts == "from" else f"{key}={before!s:.100}, not {after!s:.100}"
    return "other settings"
