"""The folder of a distillation pipeline: the result of each stage, and the record of its inputs."""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.datasets.folder import SPLITS
from scripts.distillation.pipeline import (
    DecodingStage,
    MeasurementStage,
    MixtureStage,
    Stage,
    TrainingStage,
    TranslationStage,
    input_stages,
    is_config,
)
from scripts.results.evaluations import differing_keys, run_settings
from transformer.config import loading
from transformer.config.types import Config
from transformer.data.sources import source
from transformer.support import files, locks
from transformer.support.errors import UserError

SHOWN = 100  # characters of a value in an error
ENDING_SECONDS = 600  # the longest wait for a command to save and end


class PipelineFolder:
    """The paths of a pipeline's stages. `overrides` replace keys of all its configs."""

    def __init__(self, path: Path, overrides: loading.Overrides = ()) -> None:
        self.path = path
        self.overrides = list(overrides)
        self.record = path / "distill.json"
        self.logs = path / "logs"
        self.inherited = ()  # file descriptors that commands keep open
        self._load = functools.cache(loading.load_file)  # its warnings appear once

    def result_path(self, stage: Stage) -> Path:
        """Returns the workdir, folder or file of a stage's result."""
        if isinstance(stage, TrainingStage) and stage.workdir:
            return Path(stage.workdir)
        if isinstance(stage, MeasurementStage):
            return self.path / f"{stage.name}.json"
        return self.path / stage.name

    def log_path(self, stage: Stage) -> Path:
        return self.logs / f"{stage.name}.txt"

    def load_config(self, name: str, values: Iterable[tuple[str, Any]] = ()) -> Config:
        """Returns a config with the values of a stage, and then with the command's overrides."""
        overrides = [(key, str(value)) for key, value in values]
        return self._load(name, (*overrides, *self.overrides))

    def config(self, model: TrainingStage) -> Config:
        """Returns the configuration of a model.

        Raises UserError if it is not allowed, or if there is no run in the workdir.
        """
        if model.workdir:
            return loading.load(Path(model.workdir))
        config = self.load_config(model.config, model.values.items())
        if model.data is None:
            return config

        # `texts.mix` writes the mixture as parallel text, which is also the form of ids.
        values = {
            "data.source": "ids" if config.data.source == "ids" else "text",
            "data.path": str(self.result_path(model.data).resolve()),
            "data.train_split": SPLITS[0],
            "data.valid_split": SPLITS[1],
            "data.test_split": SPLITS[2],
            "data.downloads": (),
            # These keys have selected the pairs of the mixture already.
            "data.train_pairs": 0,
            "data.exclude": "",
            "data.deduplicate": False,
            "data.mixture": (),
        }
        return loading.with_values(config, values)

    def languages(self, model: TrainingStage) -> tuple[str, str]:
        data_config = self.config(model).data
        return data_config.source_language, data_config.target_language

    def identity(self, stage: Stage) -> dict[str, Any]:
        """Returns all that a stage's result depends on except its inputs, as JSON types.

        Raises UserError for a key, a file or a language with which the stage would fail.
        """
        if isinstance(stage, TrainingStage):
            config = self.config(stage)
            # Unlike runs of one system, models of a pipeline differ in their seeds.
            facts = run_settings(config) | {"seed": config.seed, "workdir": stage.workdir}
            if not stage.workdir and stage.data is None:
                facts["data"] = source.open_source(config.data, "train").identity
        else:
            # `check` adds the inputs, and a name has no influence on the result.
            facts = dict(vars(stage))
            for key in ("name", "models", "translations"):
                facts.pop(key, None)
        if isinstance(stage, TranslationStage):
            facts["text"] = self._identify_text(stage, stage.text)
            if isinstance(stage.choose, TrainingStage):
                facts["choose"] = f"the loss of {stage.choose.name}"
        if isinstance(stage, MixtureStage):
            facts["config"] = self._identify_text(stage, stage.config)
            if self.load_config(stage.config).data.deduplicate:
                facts["deduplicate"] = True
        self._check(stage)
        kind = type(stage).__name__.removesuffix("Stage")
        # As JSON, tuples become lists, so that the identity equals the one in the record.
        return json.loads(json.dumps({"kind": kind} | facts))

    def _identify_text(self, stage: Stage, text: str) -> Any:
        """Returns the paths, sizes and modification times of a config's data or a file of text.

        Raises UserError if it is missing.
        """
        if is_config(text):
            return source.open_source(self.load_config(text).data, "train").identity
        path = Path(text)
        if not path.is_file():
            raise UserError(
                f"{stage.name}: {text} is not a file; name a text, or a config with its ending"
            )

        # The size and the time tell whether the file has changed.
        stats = path.stat()
        return [str(path.resolve()), stats.st_size, stats.st_mtime_ns]

    def _check(self, stage: Stage) -> None:
        """Raises UserError for mistakes that would otherwise appear when the stage begins."""
        if isinstance(stage, DecodingStage):
            # Raises for unknown keys and values of a wrong type.
            overrides = [(f"decoding.{key}", str(value)) for key, value in stage.decoding.items()]
            loading.parse_overrides(overrides, f"{stage.name}: ")
        if isinstance(stage, MeasurementStage):
            if stage.split not in source.SPLITS:
                raise UserError(
                    f"{stage.name}: split={stage.split} must be one of {', '.join(source.SPLITS)}"
                )
            for model in stage.models:
                if model.data is not None:
                    # The mixture has a split if its config has it.
                    data_config = self.load_config(model.data.config).data
                    source.open_source(data_config, stage.split)

        if isinstance(stage, MixtureStage):
            self._check_languages(stage.config, stage.translations)

        if isinstance(stage, TranslationStage):
            # A model that chooses by its loss translates in the other direction.
            languages = self.languages(stage.models[0])
            directions = [self.languages(model) for model in stage.models]
            if isinstance(stage.choose, TrainingStage):
                directions.append(self.languages(stage.choose)[::-1])
            if any(direction != languages for direction in directions):
                raise UserError(
                    f"{stage.name}: all models must translate {' to '.join(languages)}, "
                    "and one that chooses the reverse"
                )
            if is_config(stage.text):
                self._check_languages(stage.text, [stage])

    def _check_languages(self, config: str, translations: Sequence[TranslationStage]) -> None:
        """Raises UserError unless a config has one corpus with the translations' languages."""
        data_config = self.load_config(config).data
        if data_config.mixture or data_config.valid_sets:
            raise UserError(
                f"{config}: has data.mixture or data.valid_sets; "
                "a plan mixes single corpora, so remove it"
            )

        # The translations may be in either direction.
        pair = {data_config.source_language, data_config.target_language}
        for translation in translations:
            languages = self.languages(translation.models[0])
            if set(languages) != pair:
                raise UserError(
                    f"{translation.name}: is {' to '.join(languages)}, "
                    f"which is not the pair of {config}"
                )

    def read_record(self) -> dict[str, dict[str, Any]]:
        """Returns the record of the stages that have begun, by name.

        Raises UserError if it is damaged.
        """
        if not self.record.exists():
            return {}
        return files.read_json(
            self.record,
            lambda record: {name: {**entry} for name, entry in record["stages"].items()},
            "name another --workdir",
        )

    def check(self, stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
        """Returns the description of each stage by name, as the record has it once it begins.

        A description is the identity of the stage, the digests of its inputs, and a digest of both.
        Raises UserError if a stage was made with other settings or inputs, or if another file has
        the path of its result.
        """
        record = self.read_record()
        descriptions = {}
        for stage in stages:
            # A digest covers the digests of the inputs, and so all stages before this one.
            digests = {item.name: descriptions[item.name]["digest"] for item in input_stages(stage)}
            facts = {"is": self.identity(stage), "from": digests}
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
            descriptions[stage.name] = {"digest": digest} | facts

        for stage in stages:
            path = self.result_path(stage)
            if not path.exists():
                continue
            entry = record.get(stage.name)
            description = descriptions[stage.name]
            if entry is None:
                # The workdir of an existing run has no entry before its stage has run.
                if not getattr(stage, "workdir", ""):
                    raise UserError(
                        f"{path}: exists, but is not of this plan; name another --workdir"
                    )
            elif entry["digest"] != description["digest"]:
                raise UserError(
                    f"--workdir={self.path}: {stage.name} was made with "
                    f"{_difference(entry, description)}; give the stage another name, "
                    "or name another --workdir"
                )
        return descriptions

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other processes of the pipeline during the block.

        Waits for the command of a process that was killed: commands inherit a lock, and hold it
        until they end. Raises UserError if another process is running.
        """
        files.make_folder(self.path, "--workdir")
        self.logs.mkdir(exist_ok=True)
        with (self.path / ".distill.lock").open("a") as file:
            if not locks.try_lock(file):
                raise UserError(
                    f"--workdir={self.path}: is in use by another scripts.distill; wait for it"
                )

            # A command of a killed process still holds this lock while it saves its checkpoint.
            holder = "the command of a scripts.distill that was killed"
            lock = self.path / ".command.lock"
            with locks.exclusive(lock, holder, "see if it still runs", ENDING_SECONDS) as inherited:
                self.inherited = (inherited.fileno(),)
                yield


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Returns the first setting or input in which two descriptions of a stage differ."""
    # A short value is shown. Inputs are digests, which say nothing.
    settings = differing_keys([old["is"], new["is"]])
    inputs = differing_keys([old["from"], new["from"]])
    if settings:
        key = settings[0]
        before = str(old["is"].get(key))
        after = str(new["is"].get(key))
        if max(len(before), len(after)) <= SHOWN:
            return f"{key}={before}, not {after}"
    differences = [*settings, *inputs]
    return f"another {differences[0]}" if differences else "other settings"
