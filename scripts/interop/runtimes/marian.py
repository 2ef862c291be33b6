"""Marian: decodes with pymarian. The docstring of the package explains the protocol."""

import json
import pathlib
import sys

import numpy as np
import pymarian
import sentencepiece
import yaml


def find_files(path):
    """Returns the model and its vocabularies.

    The third result is the SentencePiece models that segment text for vocabularies that are lists
    of pieces, else None.
    """
    folder = path if path.is_dir() else path.parent
    if path == folder:
        models = sorted(folder.glob("*.npz"))
        path = next(file for file in models if not file.name.endswith(".optimizer.npz"))

    # The settings of the search are in the first of these files.
    configs = sorted(file.name for file in folder.glob("config*.yml"))
    settings = {}
    for name in (f"{path.name}.decoder.yml", "decoder.yml", *configs):
        if (folder / name).exists():
            settings = yaml.safe_load((folder / name).read_text("utf-8"))
            break
    files = sorted(file for file in folder.glob("*vocab*") if file.suffix in (".spm", ".yml"))

    # A single vocabulary is for both sides.
    names = (settings.get("vocabs", files) * 2)[:2]
    vocabularies = [str(folder / pathlib.Path(name).name) for name in names]
    segmenters = [folder / "source.spm", folder / "target.spm"]
    if vocabularies[0].endswith(".spm") or not all(file.exists() for file in segmenters):
        return str(path), vocabularies, None
    processors = [sentencepiece.SentencePieceProcessor(model_file=str(file)) for file in segmenters]
    return str(path), vocabularies, processors


def check_decoding(model):
    """Exits if pymarian does not decode a model as it trains it."""
    text = np.load(model)["special:model.yml"].tobytes().split(b"\0")[0].decode()
    settings = yaml.safe_load(text)
    has_self_attention = settings["transformer-decoder-autoreg"] == "self-attention"
    if settings["transformer-preprocess"] and has_self_attention:
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
        source_processor, target_processor = processors
        sources = [" ".join(source_processor.encode(text, out_type=str)) for text in sources]
        targets = [" ".join(target_processor.encode(text, out_type=str)) for text in targets]

    # Marian limits the length by a factor of the source, which has this many tokens or more.
    shortest = min(len(text.split()) for text in sources) + 1
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
        translator = pymarian.Translator(beam_size=beam_size, **options)
        lines = translator.translate("\n".join(sources)).splitlines()
        return [target_processor.decode(line.split()) for line in lines] if processors else lines

    answer = {"greedy": translate(1), "beam": translate(request["beam_size"]), "scores": None}
    if references is not None:
        lengths = [len(reference["pieces"]) for reference in references]
        answer["scores"] = score(sources, targets, lengths, options)
    return answer | {"versions": {"pymarian": pymarian.__version__}}


def score(sources, targets, lengths, options):
    """Returns the log-probabilities of the targets, or None if a target has none.

    pymarian does not contain Marian's scorer. Instead a beam search is forced to begin with the
    target, and the score is that of the hypothesis that ends there.
    """
    forced = {
        "force_decode": True,
        "tsv": True,
        "tsv_fields": 2,
        "n_best": True,
        "word_scores": True,
        "beam_size": 12,
    }

    # Each line of the input has a source, a tab and the forced beginning of the translation.
    lines = []
    for source, target in zip(sources, targets, strict=True):
        lines.append(source.replace("\t", " ") + "\t" + target)
    scores = [None] * len(lines)
    for line in pymarian.Translator(**options, **forced).translate("\n".join(lines)).splitlines():
        # A hypothesis is "NUMBER ||| TEXT ||| WordScores= P P ... ||| ...".
        number, text, words, *_ = line.split(" ||| ")
        index = int(number)
        word_scores = list(map(float, words.split()[1:]))

        # More pieces would be without text, such as a space.
        if text.split() == targets[index].split() and len(word_scores) == lengths[index] + 1:
            scores[index] = sum(word_scores)
    return None if None in scores else scores


if __name__ == "__main__":
    json.dump(decode(json.load(sys.stdin)), sys.stdout)
