"""Records of runs: small JSON files behind published numbers, which outlive the workdirs."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.rules import HOST, PATH
from scripts.results.evaluation_files import Json
from scripts.results.evaluations import (
    Evaluation,
    evaluate_command,
    external_names,
    read_evaluations,
    run_settings,
    training_data,
)
from scripts.results.runs import RecordedRun
from scripts.results.systems import group_by_settings
from transformer.config.keys import flatten, format_value, keys_of, recorded_config
from transformer.config.loading import FILE_NAME
from transformer.config.types import Config
from transformer.data.sources.source import open_source
from transformer.decoding.metrics import METRICS
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.progress import Record
from transformer.workdir import open_existing

SCHEMA_VERSION = 1
# The keys of `environment.json` in a record. Others, such as the command line, name paths.
ENVIRONMENT = (
    "started",
    "commit",
    "uncommitted_changes",
    "python",
    "packages",
    "processor",
    "cpu_count",
    "devices",
    "auto_dtype",
    "processes",
)
RESUMED = ("started", "commit", "uncommitted_changes", "step")  # of each later start
# The keys that tell the evaluations of a run apart, in addition to decoding.
EVALUATION_SETTINGS = (
    "split",
    "data",
    "source_language",
    "target_language",
    "step",
    "averaged",
    "shortlist",
)
# The keys of an evaluation in a record, in addition to scores, signatures and decoding.
EVALUATION = (
    *EVALUATION_SETTINGS,
    "sentences",
    "seconds",
    "output_tokens_per_second",
)
# Keys of validations that no table shows begin with these.
DIAGNOSTICS = ("gradient_norm/", "weight_norm/", "train_tokens/")
# The folders of an absolute path in a list of words. Within quotation marks they may have spaces
# and commas; the group is what precedes them there.
FOLDERS = re.compile(r"""(['"](?:\w+=)?)[/~][^'"]*/|(?<![^\s,=])[/~][^\s,]*/""")
MAX_NAME = 100  # characters of the settings in a record's name


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A `scripts.results.runs.Run` that is read from its record.

    `content` is the JSON object without its digest. `make_record` describes it.
    """

    path: Path
    config: Config
    content: Json
    is_averaged = False

    @property
    def record(self) -> list[Record]:
        return self.content["validations"]

    @property
    def environment(self) -> Json:
        return self.content["environment"]

    @property
    def contents(self) -> dict[str, str]:
        return self.content["contents"]

    @property
    def training_seconds(self) -> float:
        return self.content["seconds"]

    @property
    def evaluations(self) -> list[Evaluation]:
        # Ensembles have no record, so each evaluation has one model.
        return [
            Evaluation(self.path, self, result | {"models": [{}]})
            for result in self.content["evaluations"]
        ]


def make_record(run: RecordedRun, name: str, evaluations: Sequence[Evaluation]) -> Json:
    """Returns the record of a complete run, without its digest.

    It has no path or name of the machine. Floats have six significant digits.

    Returns:
      name, seed: of the run, unique among the records of a folder.
      config: the resolved configuration by key, with the last part of each path.
      environment: commit, packages and devices; later starts are under `resumed`.
      data: for the splits train and valid, the sha256 of their texts (`digest_texts`).
      contents: the digests of the vocabulary and of the encoded corpora.
      seconds, validation_seconds: the time of the training loop without compilation, and the part
        that validations took, or None if an older version trained the run.
      validations: their lines of `metrics.jsonl`.
      evaluations: scores with signatures, the decoding keys that differ from the configuration, and
        the digest of the texts.

    Raises:
      UserError: the run is not complete, or its data cannot be read.
    """
    run.check_complete()
    config = run.config
    environment = run.environment
    resumed = [_select(start, RESUMED) for start in environment.get("resumed", [])]
    validation_seconds = [
        line["validation_seconds"] for line in run.record if "validation_seconds" in line
    ]
    record = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "seed": config.seed,
        "config": published_config(config),
        "environment": _select(environment, ENVIRONMENT) | {"resumed": resumed},
        "data": {
            split: digest_texts(open_source(config.data, split)) for split in ("train", "valid")
        },
        "contents": run.contents,
        "seconds": run.training_seconds,
        "validation_seconds": max(validation_seconds, default=None),
        "validations": [
            {key: value for key, value in line.items() if not key.startswith(DIAGNOSTICS)}
            for line in run.record
            if line["split"] == "valid"
        ],
        "evaluations": [_describe_evaluation(evaluation) for evaluation in evaluations],
    }
    return _as_read(record)


def _as_read(record: Json) -> Json:
    """Returns the values as they are read from a file: numbers are rounded, tuples are lists."""
    return json.loads(json.dumps(files.six_digits(record)))


def _select(values: Json, keys: Iterable[str]) -> Json:
    return {key: values[key] for key in keys if key in values}


def published_config(config: Config) -> Json:
    """Returns the flat configuration without the folders of this machine."""
    # Paths may have spaces and commas; other keys list paths among other words.
    paths = keys_of(PATH, HOST)
    values = {}
    for key, value in flatten(config).items():
        if isinstance(value, str):
            value = Path(value).name if key in paths else FOLDERS.sub(r"\1", value)
        elif key in ("data.mixture", "data.valid_sets"):
            value = [FOLDERS.sub(r"\1", text) for text in value]
        values[key] = value
    return values


def _describe_evaluation(evaluation: Evaluation) -> Json:
    result = evaluation.result
    defaults = evaluation.config.decoding.to_dict()
    names = [*METRICS, *external_names(result)]
    scores = [f"{name}{suffix}" for name in names for suffix in ("", "_signature", "_interval")]
    description = _select(result, (*EVALUATION, *scores))
    if description.get("data"):
        split, _, workdir = description["data"].partition(" of ")
        description["data"] = f"{split} of {Path(workdir).name}"
    pairs = zip(evaluation.sources, evaluation.references, strict=True)
    return description | {
        "decoding": {
            key: FOLDERS.sub(r"\1", value) if isinstance(value, str) else value
            for key, value in evaluation.decoding.items()
            if value != defaults[key]
        },
        "texts": digest_texts((source.encode(), target.encode()) for source, target in pairs),
    }


def digest_texts(pairs: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the sha256 of the lines "SOURCE TAB TARGET" of sentence pairs, in hexadecimal."""
    total = hashlib.sha256()
    for source, target in pairs:
        total.update(b"%b\t%b\n" % (source, target))
    return total.hexdigest()


def name_runs(runs: Sequence[RecordedRun]) -> dict[str, RecordedRun]:
    """Returns the runs by their names, such as "seed0" or "num_heads=1-seed0".

    A name has the settings that differ from the first run, and the seed. Raises UserError if two
    runs have the same name.
    """
    settings = [run_settings(run.config) | training_data(run.contents) for run in runs]
    groups = group_by_settings(runs, settings)
    first, _ = groups[0]
    names = {}
    for differences, members in groups:
        parts = [
            f"{key.rpartition('.')[2]}=" + FOLDERS.sub(r"\1", format_value(value))
            for key, value in differences.items()
            if value != first[key]
        ]
        # Values may have characters that names of files should not have.
        system = re.sub(r"[^\w=.,+-]+", "_", "-".join(parts))
        if len(system) > MAX_NAME:
            system = f"{system[:MAX_NAME]}-{_digest(differences)[:8]}"
        for run in members:
            name = f"{system}-seed{run.config.seed}".lstrip("-")
            if name in names:
                raise UserError(
                    f"{run.path}: has the settings and the seed of {names[name].path}; "
                    "leave one of them out"
                )
            names[name] = run
    return names


def write_record(folder: Path, record: Json) -> Path:
    """Writes `folder/NAME.json` and returns its path.

    Repeating it changes nothing. It may add evaluations to the record of the same run. Raises
    UserError if the folder has the record of another run under this name, or one with evaluations
    that `record` lacks.
    """
    path = folder / f"{record['name']}.json"
    if path.exists():
        previous = read_record_file(path)
        # The keys that the project has got since then have their defaults.
        config = published_config(previous.config)
        previous = previous.content | {"config": _as_read(config)}
        changes = [key for key in record if record[key] != previous.get(key)]
        if set(changes) - {"evaluations"}:
            raise UserError(
                f"{path}: is the record of another run ({', '.join(changes)} differ); "
                "name another folder"
            )
        present = [_settings(evaluation) for evaluation in record["evaluations"]]
        lost = [each for each in previous["evaluations"] if _settings(each) not in present]
        if lost:
            raise UserError(
                f"{path}: has {len(lost)} evaluations that the workdir lacks; make them again, "
                "or name another folder"
            )
    content = {**record, "digest": _digest(record)}
    files.write_text(path, json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return path


def _settings(evaluation: Json) -> Json:
    return _select(evaluation, (*EVALUATION_SETTINGS, "decoding"))


def read_record_file(path: Path) -> RunRecord:
    """Reads a record. Raises UserError if it is damaged, edited by hand, or of a newer schema."""

    def check(content: Json) -> RunRecord:
        version = content["schema_version"]
        if version > SCHEMA_VERSION:
            raise UserError(
                f"schema_version={version}: must be at most {SCHEMA_VERSION}; use a newer commit"
            )
        if content.pop("digest") != _digest(content):
            raise UserError(
                "edited by hand: its digest differs; restore it, "
                "or write it again with scripts.record"
            )
        if content["name"] != path.stem:
            raise UserError(f"has the name {content['name']}; rename the file")
        return RunRecord(path, recorded_config(content["config"]), content)

    return files.read_json(path, check, "restore it, or write it again with scripts.record")


def _digest(content: Json) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def find_records(path: Path) -> list[Path]:
    """Returns the record at `path`, or those in a folder; none for a workdir or a sweep."""
    if path.suffix == ".json":
        return [path]
    is_run = any((path / name).exists() for name in (FILE_NAME, "sweep.json"))
    return [] if is_run else sorted(path.glob("*.json"))


def read_results(path: Path) -> list[Evaluation]:
    """Returns the evaluations on splits of a workdir, a record, or a folder of records.

    Raises UserError if the run is not complete or has no evaluation.
    """
    records = [read_record_file(record) for record in find_records(path)]
    evaluations = [evaluation for record in records for evaluation in record.evaluations]
    if not records:
        workdir, config = open_existing(path, "WORKDIR")
        RecordedRun(path.name, workdir, config).check_complete()
        evaluations = read_evaluations(workdir)
    if not evaluations:
        raise UserError(f"{path}: has no evaluation; run {evaluate_command(path)}")
    return evaluations
