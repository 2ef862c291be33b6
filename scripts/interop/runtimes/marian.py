"""Marian: decodes as the package's docstring says, with pymarian."""

import json
import pathlib
import sys

import numpy as np
import pymarian
import sentencepiece
import yaml


def find_files(path):
    """Returns the model, its vocabularies, and the SentencePiece models that segment text for lists
    of pieces.
    """
    folder = path if path.is_dir() else path.parent
    if path == folder:
        path = next(
            path
            for path in sorted(folder.glob("*.npz"))
            if not path.name.endswith(".optimizer.npz")
        )
    names = (
        f"{path.name}.decoder.yml",
        "decoder.yml",
        *sorted(path.name for path in folder.glob("config*.yml")),
    )
    config = next((folder / name for name in names if (folder / name).exists()), None)
    settings = {} if config is None else yaml.safe_load(config.read_text("utf-8"))
    found = sorted(path for path in folder.glob("*vocab*") if path.suffix in (".spm", ".yml"))
    vocabularies = [
        str(folder / pathlib.Path(name).name) for name in (settings.get("vocabs", found) * 2)[:2]
    ]
    segmenters = [folder / "source.spm", folder / "target.spm"]
    if vocabularies[0].endswith(".spm") or not all(path.exists() for path in segmenters):
        return str(path), vocabularies, None
    return (
        str(path),
        vocabularies,
        [sentencepiece.SentencePieceProcessor(model_file=str(path)) for path in segmenters],
    )


def check_decoding(model):
    """Exits if pymarian decodes a model otherwise than it trains it."""
    settings = yaml.safe_load(
        np.load(model)["special:model.yml"].tobytes().split(b"\0")[0].decode()
    )
    if (
        settings["transformer-preprocess"]
        and settings["transformer-decoder-autoreg"] == "self-attention"
    ):
        print(
            "Marian normalizes keys and values of pre-norm decoders in training, not in decoding",
            file=sys.stderr,
        )
        sys.exit(3)


def decode(request):
    model, vocabularies, processors = find_files(pathlib.Path(request["folder"]))
    check_decoding(model)
    sources = request["sources"]
    references = request["references"]
    targets = [reference["text"] for reference in references or []]
    if processors:
        sources, targets = (
            [" ".join(processor.encode(text, out_type=str)) for text in texts]
            for processor, texts in zip(processors, (sources, targets), strict=True)
        )
    shortest = min(len(text.split()) for text in sources) + 1  # tokens, or more
    options = {
        "models": [model],
        "vocabs": vocabularies,
        "normalize": request["length_penalty"],
        "cpu_threads": 1,
        "max_length_factor": (request["max_length"] + 1) / shortest,
        "mini_batch": 16,
        "maxi_batch": 100,
        "workspace": 512,
        "quiet": True,
        "quiet_translation": True,
    }

    def translate(beam_size):
        lines = (
            pymarian.Translator(beam_size=beam_size, **options)
            .translate("\n".join(sources))
            .splitlines()
        )
        return [processors[1].decode(line.split()) for line in lines] if processors else lines

    answer = {"greedy": translate(1), "beam": translate(request["beam_size"]), "scores": None}
    if references is not None:
        lengths = [len(reference["pieces"]) for reference in references]
        answer["scores"] = score(sources, targets, lengths, options)
    return answer | {"versions": {"pymarian": pymarian.__version__}}


def score(sources, targets, lengths, options):
    """Returns the log-probabilities of the targets: of hypotheses that begin with them, those that
    end there.

    None if the hypotheses lack one. Marian's scorer is not part of pymarian.
    """
    forced = {
        "force_decode": True,
        "tsv": True,
        "tsv_fields": 2,
        "n_best": True,
        "word_scores": True,
        "beam_size": 12,
    }
    sources = [source.replace("\t", " ") for source in sources]
    lines = [f"{source}\t{target}" for source, target in zip(sources, targets, strict=True)]
    scores = [None] * len(lines)
    for line in pymarian.Translator(**options, **forced).translate("\n".join(lines)).splitlines():
        number, text, words, *_ = line.split(" ||| ")
        if text.split() == targets[int(number)].split():
            word_scores = list(map(float, words.split()[1:]))
            # More pieces would be without text, such as a space.
            if len(word_scores) == lengths[int(number)] + 1:
                scores[int(number)] = sum(word_scores)
    return None if None in scores else scores


if __name__ == "__main__":
    json.dump(decode(json.load(sys.stdin)), sys.stdout)
