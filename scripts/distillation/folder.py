"""The folder of a plan: a workdir, or a folder or file of text, for each stage, and the record of
what made it.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.datasets.folder import SPLITS
from scripts.distillation import plan
from scripts.results.evaluations import run_settings
from transformer.config import loading
from transformer.config.types import Config
from transformer.data.sources import source
from transformer.data.sources.source import open_source
from transformer.support import files, locks
from transformer.support.errors import UserError

SHOWN = 100  # characters of a value in an error
ENDING_SECONDS = 600  # the longest wait for a command to save and end


Facts = dict[str, Any]  # about a stage, as JSON
Record = dict[str, Facts]  # by the name of the stage


class Folder:
    """The paths of a plan's stages. `overrides` replace keys of all its configs."""

    def __init__(self, path: Path, overrides: loading.Overrides = ()) -> None:
        self.path = path
        self.overrides = list(overrides)
        self.record = path / "distill.json"
        self.logs = path / "logs"
        self.inherited = ()  # file descriptors that commands keep open
        self._load = functools.cache(loading.load_file)  # its warnings appear once

    def of(self, stage: plan.Stage) -> Path:
        """Returns the workdir, folder or file of a stage's result."""
        if isinstance(stage, plan.Training) and stage.workdir:
            return Path(stage.workdir)
        return self.path / (
            f"{stage.name}.json" if isinstance(stage, plan.Measurement) else stage.name
        )

    def log(self, stage: plan.Stage) -> Path:
        return self.logs / f"{stage.name}.txt"

    def load_config(self, name: str, values: Iterable[tuple[str, Any]] = ()) -> Config:
        """Returns a config with the values of a stage and the overrides of the command, which come
        last.
        """
        return self._load(name, (*((key, str(value)) for key, value in values), *self.overrides))

    def config(self, model: plan.Training) -> Config:
        """Returns the configuration of a model.

        Raises UserError if it is not allowed, or the workdir is no run's.
        """
        if model.workdir:
            return loading.load(Path(model.workdir))
        config = self.load_config(model.config, model.values.items())
        if model.data is None:
            return config
        values = {
            "data.source": "ids" if config.data.source == "ids" else "text",
            "data.path": str(self.of(model.data).resolve()),
            "data.train_split": SPLITS[0],
            "data.valid_split": SPLITS[1],
            "data.test_split": SPLITS[2],
            "data.downloads": (),
            # The mixture has been made of what these keys select.
            "data.train_pairs": 0,
            "data.exclude": "",
            "data.deduplicate": False,
            "data.mixture": (),
        }
        return loading.with_values(config, values)

    def languages(self, model: plan.Training) -> tuple[str, str]:
        data = self.config(model).data
        return data.source_language, data.target_language

    def identity(self, stage: plan.Stage) -> Facts:
        """Returns all that a stage's result depends on, but for its inputs, as JSON types.

        Raises UserError for a key, a file or a language with which the stage would fail.
        """
        if isinstance(stage, plan.Training):
            config = self.config(stage)
            fields = run_settings(config) | {"seed": config.seed, "workdir": stage.workdir}
            if not stage.workdir and stage.data is None:
                fields["data"] = open_source(config.data, "train").identity
        else:
            fields = {
                key: value
                for key, value in vars(stage).items()
                if key not in ("name", "models", "translations")
            }
            fields |= {
                name: self._text(stage, fields[name])
                for name in ("text", "config")
                if name in fields
            }
        if isinstance(stage, plan.Mixture) and self.load_config(stage.config).data.deduplicate:
            fields["deduplicate"] = True
        if isinstance(fields.get("choose"), plan.Training):
            fields["choose"] = f"the loss of {fields['choose'].name}"
        self._check(stage)
        return json.loads(json.dumps({"kind": type(stage).__name__} | fields))

    def _text(self, stage: plan.Stage, text: str) -> Any:
        """Returns what identifies a text: paths, sizes and times of change.

        Raises UserError if it is missing.
        """
        if plan.is_config(text):
            return open_source(self.load_config(text).data, "train").identity
        if not Path(text).is_file():
            raise UserError(
                f"{stage.name}: {text} is no file; name a text, or a config with its ending"
            )
        stats = Path(text).stat()
        return [str(Path(text).resolve()), stats.st_size, stats.st_mtime_ns]

    def _check(self, stage: plan.Stage) -> None:
        """Raises UserError for what would fail only once the stage begins."""
        decoding = getattr(stage, "decoding", {})
        loading.parse_overrides(
            [(f"decoding.{key}", str(value)) for key, value in decoding.items()], f"{stage.name}: "
        )
        if isinstance(stage, plan.Measurement):
            if stage.split not in source.SPLITS:
                raise UserError(
                    f"{stage.name}: split={stage.split} must be one of {', '.join(source.SPLITS)}"
                )
            for mixture in filter(None, (model.data for model in stage.models)):
                # which `mix` copies if there is one
                open_source(self.load_config(mixture.config).data, stage.split)
        if isinstance(stage, plan.Mixture):
            self._check_languages(stage.config, stage.translations)
        if isinstance(stage, plan.Translation):
            first, *others = map(self.languages, stage.models)
            if isinstance(stage.choose, plan.Training):
                others.append(self.languages(stage.choose)[::-1])
            if any(other != first for other in others):
                direction = " to ".join(first)
                raise UserError(
                    f"{stage.name}: all models must translate {direction}, and one that chooses the reverse"
                )
            if plan.is_config(stage.text):
                self._check_languages(stage.text, [stage])

    def _check_languages(self, config: str, translations: Sequence[plan.Translation]) -> None:
        data = self.load_config(config).data
        if data.mixture or data.valid_sets:
            raise UserError(
                f"{config}: has data.mixture or data.valid_sets; a plan mixes single corpora, so remove it"
            )
        for translation in translations:
            languages = self.languages(translation.models[0])
            if sorted(languages) != sorted((data.source_language, data.target_language)):
                raise UserError(
                    f"{translation.name}: is {' to '.join(languages)}, which is not the pair of {config}"
                )

    def describe(self, stages: Sequence[plan.Stage]) -> Record:
        """Returns the identity of each stage by name, and the digest of it and of its inputs."""
        described = {}
        for stage in stages:
            inputs = {
                needed.name: described[needed.name]["digest"] for needed in plan.inputs(stage)
            }
            facts = {"is": self.identity(stage), "from": inputs}
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
            described[stage.name] = {"digest": digest} | facts
        return described

    def read(self) -> Record:
        """Returns the record of the stages that have begun. Raises UserError if it is damaged."""
        if not self.record.exists():
            return {}
        return files.read_json(
            self.record,
            lambda record: {name: {**entry} for name, entry in record["stages"].items()},
            "name another --workdir",
        )

    def check(self, stages: Sequence[plan.Stage]) -> Record:
        """Returns the description of the stages.

        Raises UserError if one has another meaning than when it was made, or its place in the
        folder is taken.
        """
        recorded = self.read()
        planned = self.describe(stages)
        for stage in stages:
            entry = recorded.get(stage.name)
            new = planned[stage.name]
            if entry is None and self.of(stage).exists() and not getattr(stage, "workdir", ""):
                raise UserError(
                    f"{self.of(stage)}: exists, but is not of this plan; name another --workdir"
                )
            if entry is not None and self.of(stage).exists() and entry["digest"] != new["digest"]:
                raise UserError(
                    f"--workdir={self.path}: {stage.name} was made with {_difference(entry, new)}; give the stage "
                    "another name, or name another --workdir"
                )
        return planned

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other processes of the plan during the block. Raises UserError if there is one.

        Waits for the command of a process that was killed: commands inherit a lock, and hold it
        until they end.
        """
        files.make_folder(self.path, "--workdir")
        self.logs.mkdir(exist_ok=True)
        with (self.path / ".distill.lock").open("a") as file:
            if not locks.try_lock(file):
                raise UserError(
                    f"--workdir={self.path}: is in use by another scripts.distill; wait for it"
                )
            holder = "the command of a scripts.distill that was killed"
            lock = self.path / ".command.lock"
            with locks.exclusive(lock, holder, "see if it still runs", ENDING_SECONDS) as inherited:
                self.inherited = (inherited.fileno(),)
                yield


def _difference(old: Facts, new: Facts) -> str:
    """Returns the first setting or input in which two records of a stage differ."""
    for facts in ("is", "from"):
        for key in {**old[facts], **new[facts]}:
            before = old[facts].get(key)
            after = new[facts].get(key)
            if before != after:
                is_short = facts == "is" and max(len(str(before)), len(str(after))) <= SHOWN
                return f"{key}={before}, not {after}" if is_short else f"another {key}"
    return "other settings"
