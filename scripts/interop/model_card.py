"""The model card of an imported or exported model: README.md with the metadata that hubs read.

A card repeats what records have: the configuration, `environment.json`, evaluations, `parent.json`
and the certificate.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from absl import logging

from scripts import markdown
from scripts.interop import certificate, untrusted
from scripts.results.evaluations import Evaluation, read_evaluations, short_commit
from scripts.results.runs import RecordedRun, read_runs
from transformer.checkpoints.restore import choose_steps
from transformer.config.keys import flatten, format_value
from transformer.config.types import Config
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import Workdir

FILE_NAME = "README.md"
MARK = "---\n"  # around the metadata
# The metadata of another card that also hold for a copy of its model.
KEPT = ("license", "license_name", "license_link", "datasets", "base_model")
LIBRARIES = {"huggingface": "transformers", "ctranslate2": "ctranslate2"}  # hubs know these
MODEL_KEYS = (
    "model.num_layers",
    "model.num_decoder_layers",
    "model.d_model",
    "model.d_ff",
    "model.num_heads",
    "model.activation",
    "model.norm_position",
    "model.positions",
    "model.decoder_self_attention",
    "model.share_embeddings",
    "tokenizer.kind",
    "tokenizer.vocab_size",
)
TRAINING_KEYS = (
    "data.name",
    "data.mixture",
    "data.source_tag",
    "training.objective",
    "training.steps",
    "training.label_smoothing",
    "model.dropout",
    "batch.tokens",
    "optimizer.name",
    "optimizer.schedule",
    "optimizer.learning_rate",
    "seed",
)
SEARCH_KEYS = (
    "decoding.strategy",
    "decoding.beam_size",
    "decoding.length_penalty",
    "decoding.length_penalty_form",
)

Json = dict[str, Any]


def read_metadata(folder: Path) -> Json:
    """Returns the metadata of the card in a folder that also hold for a copy of the model."""
    path = folder / FILE_NAME
    if not untrusted.is_readable(path):
        return {}
    try:
        with untrusted.reading(path):
            lines = untrusted.read_text(path).replace("\r\n", "\n")
            before, begin, rest = lines.partition(MARK)
            text, end, _ = rest.partition(f"\n{MARK}")
            has_metadata = begin and end and not before
            metadata = untrusted.parse_yaml(text, path) if has_metadata else {}
    except UserError as error:
        logging.warning("%s; the new card has no metadata of it.", error)
        return {}
    return {key: metadata[key] for key in KEPT if _is_text(metadata.get(key))}


def _is_text(value: object) -> bool:
    """True for a text or a list of texts. YAML also has dates and numbers."""
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, str) for item in items)


def of_import(config: Config, origin: Json, result: Json) -> str:
    """Returns the card of a model of another toolkit.

    `origin` is the content of parent.json, and `result` the certificate.
    """
    sections = {
        "Model": _settings(config, MODEL_KEYS),
        "Search": _settings(config, SEARCH_KEYS),
        "Origin": f"Imported from files of the format {origin['format']}:\n\n"
        + markdown.table([("file", "sha256"), *origin["files"].items()]),
    }
    return _card(config, _metadata(config, origin), sections, result, origin)


def of_export(arguments: argparse.Namespace, settings: Json, result: Json) -> str:
    """Returns the card of the model that `scripts.export` has written.

    `settings` has the configuration with the search of the command, and `result` is the
    certificate.
    """
    (run,) = read_runs([Path(arguments.workdir)])
    average = arguments.average
    *_, step = choose_steps(run.path, arguments.checkpoint, average, run.config.checkpoint.every)
    origin = _origin(run.workdir)
    sections = {"Model": _settings(run.config, MODEL_KEYS)}
    evaluations = []
    if run.record:
        sections["Training"] = _training(run, step, average, origin)
    if run.record and OBJECTIVES[run.config.training.objective].has_both_sides:
        evaluations = [
            evaluation
            for evaluation in read_evaluations(run.workdir)
            if (evaluation.result["step"], evaluation.average) == (step, average)
        ]
        sections["Scores"] = _scores(evaluations)
    sections["Search"] = _settings(run.config, SEARCH_KEYS, settings)
    given = _import_of(origin)
    metadata = _metadata(run.config, given)
    if arguments.format in LIBRARIES:
        metadata["library_name"] = LIBRARIES[arguments.format]
    if evaluations:
        metadata["model-index"] = [_index(run.config, evaluations)]
    return _card(run.config, metadata, sections, result, given)


def write(folder: Path, card: str) -> None:
    files.write_text(folder / FILE_NAME, card)


def _origin(workdir: Workdir) -> Json:
    """Returns the content of parent.json, or {}."""
    path = workdir.parent
    return files.read_json(path, dict, "restore it") if path.exists() else {}


def _import_of(origin: Json) -> Json:
    """Returns the record of the import from which a run descends, if its workdirs still exist."""
    # A folder that took the name of an ancestor may make a cycle.
    visited = set()
    while origin.get("workdir") not in {None, *visited}:
        visited.add(origin["workdir"])
        origin = _origin(Workdir(Path(origin["workdir"])))
    return {} if "workdir" in origin else origin


def _metadata(config: Config, origin: Json) -> Json:
    languages = [config.data.source_language, config.data.target_language]
    metadata: Json = {"language": list(dict.fromkeys(filter(None, languages)))}
    metadata |= origin.get("metadata", {})
    if all(languages):
        metadata["pipeline_tag"] = "translation"
    return metadata


def _card(
    config: Config,
    metadata: Json,
    sections: dict[str, str],
    result: Json,
    origin: Json,
) -> str:
    sections |= {"Certificate": f"{certificate.summary(result)}.\n"}
    if origin.get("licence"):
        sections["Licence"] = f"```text\n{origin['licence'].rstrip()}\n```\n"
    header = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    source, target = config.data.source_language, config.data.target_language
    title = f"Translation from {source} to {target}" if source and target else "Language model"
    body = "".join(f"\n## {name}\n\n{text}" for name, text in sections.items())
    return f"{MARK}{header}{MARK}\n# {title}\n{body}"


def _settings(config: Config, keys: Iterable[str], changes: Json | None = None) -> str:
    values = flatten(config) | dict(changes or {})
    # An empty value turns a setting off.
    rows = [(key, format_value(values[key])) for key in keys if values[key] not in (None, "", ())]
    return markdown.table([("setting", "value"), *rows])


def _training(run: RecordedRun, step: int, average: int, origin: Json) -> str:
    environment = run.environment
    facts = [
        f"Step {step}, the mean of {average} checkpoints." if average > 1 else f"Step {step}.",
        f"Trained by commit {short_commit(environment)} in {run.training_seconds:,.0f} seconds "
        f"on {', '.join(map(str, environment['devices']))}.",
    ]
    if origin:
        name = Path(origin["workdir"]).name
        facts.append(f"The initial parameters are those of step {origin['step']} of {name}.")
    return f"{' '.join(facts)}\n\n{_settings(run.config, TRAINING_KEYS)}"


def _scores(evaluations: Sequence[Evaluation]) -> str:
    if not evaluations:
        return "No evaluation of this checkpoint is on record.\n"
    rows = [
        (evaluation.text, name, f"{evaluation.result[name]:.2f}", signature)
        for evaluation in evaluations
        for name, signature in evaluation.signatures.items()
    ]
    return markdown.table([("text", "metric", "score", "signature"), *rows])


def _index(config: Config, evaluations: Sequence[Evaluation]) -> Json:
    """Returns the scores as hubs read them."""
    results = []
    for evaluation in evaluations:
        metrics = [
            {"type": name, "name": name, "value": evaluation.result[name]}
            for name in evaluation.signatures
        ]
        results.append(
            {
                "task": {"type": "translation"},
                "dataset": {"name": f"{config.data.name}, {evaluation.text}", "type": "text"},
                "metrics": metrics,
            }
        )
    return {"name": config.data.name, "results": results}
