"""The paper's Table 4, constituency parsing (section 6.3): training, silver trees, and the table.

Runs of several seeds are trained on gold trees, and evaluated on validation with and without the
constraint `decoding.well_formed`, and on test with it. The first run then parses other text under
the constraint. These silver trees and the gold trees are the mixture on which runs of the same
seeds are trained again. In the paper, other parsers made the silver trees.
"""

import argparse
import contextlib
import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from scripts import get_data, markdown, translate_corpus
from scripts.datasets.folder import write_record
from scripts.datasets.treebank import find_files, word_links
from scripts.reproduction.training import train_trials
from scripts.results.evaluations import Evaluation, read_evaluations
from scripts.results.records import read_results
from scripts.results.runs import RecordedRun, best_of
from scripts.results.systems import mean_and_spread
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.results import SEED
from transformer import evaluate
from transformer.config import loading
from transformer.config.types import Config
from transformer.data.sources.lines import read_text_file
from transformer.data.sources.source import ORIGIN
from transformer.decoding.metrics import METRICS, applicable
from transformer.decoding.trees.linearized import fits
from transformer.decoding.trees.output import read_sentence
from transformer.support import files
from transformer.support.errors import UserError
from transformer.workdir import Workdir

# F1 on section 23, by training data.
PAPER = {
    "gold": {
        "Vinyals & Kaiser et al. 2014": 88.3,
        "Petrov et al. 2006": 90.4,
        "Zhu et al. 2013": 90.4,
        "Dyer et al. 2016": 91.7,
        "Transformer (4 layers)": 91.3,
    },
    "silver": {
        "Zhu et al. 2013": 91.3,
        "Huang & Harper 2009": 91.3,
        "McClosky et al. 2006": 92.1,
        "Vinyals & Kaiser et al. 2014": 92.1,
        "Transformer (4 layers)": 92.7,
    },
}
TRAINING = {"gold": "WSJ only", "silver": "semi-supervised"}
# The rows of configs/parsing.py.
CONFIGS = {
    "mini": {"gold": "mini", "silver": "mini"},
    "paper": {"gold": "wsj", "silver": "semi_supervised"},
}
PAIR = ("en", "trees")
SEEDS = 3
CONSTRAINT = "well_formed"  # a key of config.decoding


class Stage(NamedTuple):
    """The runs on one kind of training data, gold or silver, in the folder of the same name."""

    name: str
    config: Config
    folder: SweepFolder
    seeds: int


def main(arguments: argparse.Namespace) -> None:
    """Trains and evaluates the missing runs in --output, and publishes the table."""
    output = Path(arguments.output or f"runs/table4-{arguments.scale}")
    gold = _stage(arguments, output, "gold")
    silver = _stage(arguments, output, "silver")
    if not arguments.report:
        sentences = _read_sentences(arguments.text) if arguments.text else []
        _get_trees(arguments, output / "data")
        _run(arguments, gold)
        if sentences:
            _make_silver(arguments, gold, sentences, output / "silver-data")
            _run(arguments, silver)
    evaluations = {stage.name: _read_all(stage) for stage in (gold, silver)}
    if not any(evaluations.values()):
        raise UserError(f"--output={output}: has no evaluated run; leave --report out")
    markdown.publish(make_text(evaluations), "table4", arguments.readme)


def _stage(arguments: argparse.Namespace, output: Path, name: str) -> Stage:
    row = CONFIGS[arguments.scale][name]
    config = loading.load_file(f"configs/parsing.py:{row}", arguments.overrides)
    values = {"data.path": str(output / "data")}
    if name == "silver":
        links = " alignments=train.links" * bool(config.training.guided_heads)
        folders = {kind: shlex.quote(str(output / kind)) for kind in ("data", "silver-data")}
        values["data.mixture"] = (
            f"label=gold path={folders['data']} weight={arguments.gold_weight}{links}",
            f"label=silver path={folders['silver-data']}{links}",
        )
    if not arguments.test:
        values["data.test_split"] = config.data.valid_split
    config = loading.with_values(config, values)
    folder = SweepFolder(output / name)
    seeds = SEEDS if arguments.seeds is None else arguments.seeds
    if arguments.report and arguments.seeds is None and folder.record.exists():
        seeds = len(folder.read()["trials"])
    return Stage(name, config, folder, seeds)


def _read_sentences(name: str) -> list[str]:
    """Returns the different sentences of --text. Raises UserError if there are none."""
    sentences = [read_sentence(line) for line in read_text_file(files.expand_user(name))]
    sentences = list(dict.fromkeys(filter(None, sentences)))
    if not sentences:
        raise UserError(f"--text={name}: has no sentence; name a file that has some")
    return sentences


def _get_trees(arguments: argparse.Namespace, folder: Path) -> None:
    """Writes the folder of the treebank. Raises UserError if it has the trees of other files."""
    if folder.exists():
        named = get_data.treebank_paths(arguments)
        paths = {split: list(map(str, find_files(names))) for split, names in named.items()}
        read = files.read_json(
            folder / ORIGIN, lambda record: record["read"], "name another --output"
        )
        if paths and paths != read:
            raise UserError(
                f"--output: {folder} has the trees of {read}, and the flags name {paths}; name "
                "another --output, or repeat the flags of its first run"
            )
        return
    for flag in ("trees", "validation"):
        if not getattr(arguments, flag):
            raise UserError(f"--{flag}=PATH: is missing; name a treebank, as for scripts.get_data")
    flags = [f"--output={folder}"]
    for flag in ("trees", "validation", "test"):
        if getattr(arguments, flag):
            flags.append(f"--{flag}={getattr(arguments, flag)}")
    get_data.make_trees(get_data.make_parser().parse(flags))


def _run(arguments: argparse.Namespace, stage: Stage) -> None:
    """Trains and evaluates the runs of a stage that are not complete."""
    trials = [{SEED: seed} for seed in range(stage.seeds)]
    objective = stage.config.checkpoint.best_metric
    train_trials(stage.config, stage.folder, trials, objective, arguments)
    done = {
        (evaluation.workdir, evaluation.split, evaluation.average, evaluation.decoding[CONSTRAINT])
        for evaluation in _read_all(stage)
        if _is_of_best_and_config(evaluation)
    }
    # What the constraint changes is measured on validation only, because a beam of 21 takes long.
    measured = [("valid", False), ("valid", True)]
    if arguments.test:
        measured.append(("test", True))
    for seed, (split, is_constrained) in itertools.product(range(stage.seeds), measured):
        workdir = Workdir(stage.folder.workdir(seed))
        evaluation = workdir.path, split, arguments.average, is_constrained
        if workdir.is_complete() and evaluation not in done:
            flags = [
                f"--workdir={workdir.path}",
                f"--split={split}",
                f"--average={arguments.average}",
                f"--decoding.{CONSTRAINT}={str(is_constrained).lower()}",
            ]
            evaluate.evaluate(evaluate.make_parser().parse(flags)).save()


def _read_all(stage: Stage) -> list[Evaluation]:
    """Returns the evaluations of the complete runs of a stage."""
    workdirs = [Workdir(stage.folder.workdir(seed)) for seed in range(stage.seeds)]
    complete = [workdir for workdir in workdirs if workdir.is_complete()]
    return [evaluation for workdir in complete for evaluation in read_evaluations(workdir)]


def choose_evaluations(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Returns one evaluation for each seed and split, with and without the constraint.

    They are of the best checkpoint, with the search of the configuration, and with the largest
    number of averaged checkpoints.
    """
    candidates = list(filter(_is_of_best_and_config, evaluations))
    most = max((evaluation.average for evaluation in candidates), default=1)
    return [evaluation for evaluation in candidates if evaluation.average == most]


def _is_of_best_and_config(evaluation: Evaluation) -> bool:
    """True for the best checkpoint and the search of the configuration, but for the constraint."""
    search = evaluation.config.decoding.to_dict()
    search |= {CONSTRAINT: evaluation.decoding[CONSTRAINT]}
    is_best = evaluation.result["step"] == best_of(evaluation.run)["step"]
    return evaluation.decoding == search and is_best


def _make_silver(
    arguments: argparse.Namespace, gold: Stage, sentences: Sequence[str], folder: Path
) -> None:
    """Writes the sentences with the trees that the first run on gold trees gives them.

    Sentences that the model cuts, because they are too long, are left out. Raises UserError if
    other sentences were parsed before.
    """
    work = folder.with_name("silver-parsing")
    text = work / "sentences.txt"
    if text.exists() and read_text_file(text) != sentences:
        raise UserError(
            f"--text={arguments.text}: {work} has other sentences; name another --output, or "
            "repeat the flags of its first run"
        )
    if folder.exists():
        return
    # Parsing continues at the first shard that is missing.
    files.make_folder(work, "--output")
    workdir = Workdir(gold.folder.workdir(0))
    RecordedRun(workdir.path.name, workdir, gold.config).check_complete()
    files.write_text(text, "".join(f"{line}\n" for line in sentences))
    flags = [
        f"--workdir={workdir.path}",
        f"--average={arguments.average}",
        f"--source={text}",
        f"--output={work / 'shards'}",
        "--format=text",
        "--shard=1/1",
        "--decoding.well_formed=true",
    ]
    with contextlib.redirect_stdout(sys.stderr):  # it prints its counts
        translate_corpus.main(translate_corpus.make_parser().parse(flags))

    pairs = []
    for path in sorted((work / "shards").glob("*.tsv")):
        for line in read_text_file(path):
            number, _, tree = line.split("\t")
            sentence = sentences[int(number) - 1]
            if fits(tree.split(), len(sentence.split())):
                pairs.append((sentence, tree))
    if not pairs:
        raise UserError(f"--text={arguments.text}: no sentence has a tree; name shorter sentences")
    logging.info("%d of %d sentences have silver trees.", len(pairs), len(sentences))
    with files.new_folder(folder) as unfinished:
        texts = dict(zip(PAIR, zip(*pairs, strict=True), strict=True))
        texts["links"] = [word_links(tree.split()) for _, tree in pairs]
        for ending, lines in texts.items():
            files.write_text(unfinished / f"train.{ending}", "".join(f"{t}\n" for t in lines))
        write_record(unfinished, PAIR, {"by": "self-training", "model": str(workdir.path)})


def make_text(evaluations: Mapping[str, Sequence[Evaluation]]) -> str:
    """Returns the table of the paper with the runs' rows, and a table of all their scores.

    `evaluations` has those on gold trees, and with silver trees, by the keys of TRAINING.
    """
    rows = [("parser", "training", "F1")]
    details = [("training", "split", CONSTRAINT, "seeds", *_score_names().values())]
    for name, parsers in PAPER.items():
        rows += [(parser, TRAINING[name], f"{f1:.1f}") for parser, f1 in parsers.items()]
        chosen = choose_evaluations(evaluations[name])
        published = []
        for split, is_constrained in itertools.product(("valid", "test"), (False, True)):
            results = [
                evaluation.result
                for evaluation in chosen
                if (evaluation.split, evaluation.decoding[CONSTRAINT]) == (split, is_constrained)
            ]
            if results:
                details.append(_detail(name, is_constrained, results))
            if results and is_constrained:
                published = [result["bracket_f1"] for result in results]
        if published:
            rows.append(("**here**", TRAINING[name], mean_and_spread(published)))
    note = (
        "The paper's scores are of section 23. Those of the runs are of the split `test`, or "
        "`valid` if there is no test, with outputs under the constraint. ± is the standard "
        "deviation over seeds."
    )
    return markdown.table(rows, [note]) + "\n" + markdown.table(details)


def make_recorded_text(records: Path) -> str:
    """Returns `make_text` of the records in the folders `gold` and `silver`."""
    folders = {name: records / name for name in TRAINING}
    return make_text(
        {name: read_results(path) if path.exists() else [] for name, path in folders.items()}
    )


def _score_names() -> dict[str, str]:
    """Returns the labels of the metrics that only trees have, by name."""
    names = applicable(METRICS, "tree")
    return {name: METRICS[name].label for name in names if METRICS[name].target_form}


def _detail(name: str, is_constrained: bool, results: list[dict[str, Any]]) -> tuple[str, ...]:
    scores = [
        mean_and_spread([result[score] for result in results], METRICS[score].format)
        for score in _score_names()
    ]
    is_shown = "yes" if is_constrained else "no"
    return (TRAINING[name], results[0]["split"], is_shown, str(len(results)), *scores)
