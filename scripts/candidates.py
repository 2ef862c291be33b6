"""Makes candidate translations of training sources, with rewards, for `training.candidate_loss`.

    python -m scripts.candidates --workdir=DIR --output=FOLDER [--text=FOLDER]
        [--candidates=K] [--n_best=N] [--without_reference]
        [--reward=NAME,NAME,...] [--scorer=NAME:COMMAND] [--shard=I/N] [--decoding.KEY=VALUE ...]

The sources are those of the run's training pairs, or of --text, a folder with its train_split. The
candidates of a source are the reference and the run's translations: the best of its beam, or
samples with --decoding.strategy=sample. The first K different ones count, and are repeated if there
are fewer. A source with only one is left out.

--output gets train.LANGUAGE, with K consecutive lines for each source, and NAME.rewards for each
reward: chrf and bleu, the sentence score with the reference from 0 to 1, or the number that the
command of --scorer prints for each line. Two more are controls: constant, with which only the
likelihood is learned, and random.

The same command continues after a kill, and adds other rewards. --shard=2/8 translates the second
of eight parts.
"""

import argparse
import json

from absl import logging

from scripts import score_flags
from scripts.translate_corpus import part_of
from transformer.config import cli
from transformer.support import files
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from scripts.corpora import candidates, shards, translator
    from scripts.results.sentence_scores import parse_flags
    from transformer.decoding.bleu import bleu_language
    from transformer.decoding.strategies import check_n_best
    from transformer.support.cache import enable_compilation_cache

    names = arguments.reward.split(",")
    for name in names:
        if name not in candidates.REWARDS:
            raise UserError(f"--reward={name}: must be among {', '.join(candidates.REWARDS)}")
    scorers = parse_flags("scorer", arguments.scorer)
    for scorer in scorers:
        if scorer.name in candidates.REWARDS:
            raise UserError(f"--scorer={scorer.name}: is a reward here; choose another name")
    flags = (arguments.workdir, arguments.checkpoint, arguments.average, arguments.overrides)
    models = translator.load(*flags)
    count = arguments.candidates
    n_best = arguments.n_best or count
    check_n_best(models.config.decoding, n_best)
    data_config = models.config.data
    pairs = candidates.read_pairs(data_config, arguments.text)

    # The shards are those of scripts.translate_corpus.
    output = files.expand_user(arguments.output).absolute()
    files.make_folder(output, "--output")
    path = output / "sources.txt"
    sources = [text for text, _ in pairs]
    content = "".join(f"{text}\n" for text in sources)
    candidates.check_own_folder(output, path)
    # The shards know the file's size, and not its content.
    if path.exists() and path.read_bytes() != content.encode():
        raise UserError(f"--output={output}: has candidates of other sources; name another folder")
    files.write_text(path, content)
    request = translator.make_request(models, [path], n_best)
    corpus = shards.open_shards(output / "shards", request)
    missing = corpus.missing(*arguments.shard)
    enable_compilation_cache()
    reports = map(translator.Translator(models, corpus).translate, missing)
    totals = translator.add_up(reports, len(missing))
    if corpus.missing(1, 1):
        logging.info("Shards of other parts are missing; repeat the command when they are done.")
        print(json.dumps(totals))
        return

    references = ["" if arguments.without_reference else reference for _, reference in pairs]
    translations = (hypotheses for _, hypotheses in corpus.translations())
    groups = candidates.make_groups(sources, references, translations, count)
    if not any(groups):
        raise UserError(f"--n_best={n_best}: no source has two different candidates; raise it")
    texts = candidates.flatten(pairs, groups)
    languages = (data_config.source_language, data_config.target_language)
    candidates.write_pairs(output, languages, texts)
    for name in names:
        rewards = candidates.REWARDS[name](texts, bleu_language(data_config))
        candidates.write_rewards(output, name, rewards)
    for scorer in scorers:
        candidates.write_rewards(output, scorer.name, candidates.score(scorer, texts))
    record = candidates.write_record(output, languages, groups, request["model"])
    print(json.dumps(record))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.candidates", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--text", metavar="FOLDER", help="training pairs (the run's)")
    parser.add_argument("--output", required=True, help="folder of the candidates")
    parser.add_number("--candidates", 8, "candidates of each source, batch.candidates", least=2)
    parser.add_number("--n_best", None, "translations of each source (as many)")
    parser.add_argument(
        "--without_reference", action="store_true", help="the reference is not a candidate"
    )
    parser.add_argument(
        "--reward",
        metavar="NAME,NAME,...",
        default="chrf",
        help="chrf, bleu, constant or random (chrf)",
    )
    score_flags.add_flags(parser)
    parser.add_argument(
        "--shard", type=part_of, metavar="I/N", default=(1, 1), help="translate part I of N"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
