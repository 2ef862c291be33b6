"""CTranslate2: decodes with models in its format, and writes models with its own converter.

The docstring of the package explains the protocol of decoding. A request with `vocabularies` asks
for a conversion. Its `folder` has variables.npz, the arrays and scalars of the model by name. The
request has `quantization` and these fields:

    encoder, decoder   the arguments of their specifications
    config             the content of config.json
    vocabularies       the tokens of source and target
"""

import json
import os
import pathlib
import re
import sys
import time

import ctranslate2
import numpy as np
import sentencepiece
from ctranslate2.specs import model_spec, transformer_spec

ROWS = 32
THREADS = os.cpu_count()  # each thread decodes its own batches, which is faster than sharing them
VERSIONS = {"ctranslate2": ctranslate2.__version__, "sentencepiece": sentencepiece.__version__}


def convert(request):
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(**request["encoder"]),
        transformer_spec.TransformerDecoderSpec(**request["decoder"]),
    )

    # The name of a variable is its path in the specification.
    for name, variable in np.load(pathlib.Path(request["folder"], "variables.npz")).items():
        scope, _, attribute = name.rpartition("/")
        setattr(model_spec.index_spec(spec, scope), attribute, variable)
    spec.register_source_vocabulary(request["vocabularies"][0])
    spec.register_target_vocabulary(request["vocabularies"][1])
    for key, value in request["config"].items():
        setattr(spec.config, key, value)

    # `validate` checks that all weights are set, `optimize` makes aliases of equal weights.
    spec.validate()
    spec.optimize(quantization=request["quantization"])
    spec.save(request["folder"])
    return {"versions": VERSIONS, "greedy": [], "beam": [], "scores": None}


def read_processor(folders, side):
    """Returns the SentencePiece model of a side, or None if its texts are pieces."""
    names = (f"{side}.spm", "sentencepiece.model")
    paths = [folder / name for folder in folders for name in names]
    models = [str(path) for path in paths if path.exists()]
    return sentencepiece.SentencePieceProcessor(model_file=models[0]) if models else None


def segment(processor, text):
    if processor is None:
        return text.split()
    language, rest = re.fullmatch("(>>.*?<<)?(.*)", text).groups()

    # The models of OPUS-MT lack language tokens.
    if language and processor.piece_to_id(language) == processor.unk_id():
        return [language, *processor.encode(rest, out_type=str)]
    return processor.encode(text, out_type=str)


def decode(request):
    package = pathlib.Path(request["folder"])

    # An Argos package has the model in a folder.
    folder = package if (package / "model.bin").exists() else package / "model"
    source = read_processor((folder, package), "source")
    target = read_processor((folder, package), "target")
    compute_type = "default" if request["quantization"] else "float32"
    translator = ctranslate2.Translator(
        str(folder), compute_type=compute_type, inter_threads=THREADS, intra_threads=1
    )

    # Special tokens that the vocabulary has must not be generated. UNK is an option.
    names = [f"{side}_vocabulary.{end}" for side in ("target", "shared") for end in ("json", "txt")]
    path = next(folder / name for name in names if (folder / name).exists())
    text = path.read_text("utf-8")
    tokens = json.loads(text) if path.suffix == ".json" else text.split("\n")
    options = {
        "length_penalty": request["length_penalty"],
        "max_decoding_length": request["max_length"],
        "min_decoding_length": 0,
        "disable_unk": True,
        "max_batch_size": ROWS,
        "suppress_sequences": [[token] for token in ("<pad>", "<blank>", "<s>") if token in tokens],
    }

    # CTranslate2 writes config.json since version 3.
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text("utf-8")) if config_file.exists() else {}
    end = []
    if not config.get("add_source_eos", True):
        eos = config["eos_token"]

        # Hugging Face's tokenizer adds the end of these sources.
        end = [eos] if config["decoder_start_token"] == eos else []

    def split(texts):
        return [segment(source, text) + end for text in texts]

    def translate(texts, beam_size):
        results = translator.translate_batch(split(texts), beam_size=beam_size, **options)
        hypotheses = [result.hypotheses[0] for result in results]
        if target is None:
            return [" ".join(pieces) for pieces in hypotheses]
        return [target.decode(pieces) for pieces in hypotheses]

    sources = request["sources"]
    beam_size = request["beam_size"]
    answer = {"versions": VERSIONS, "greedy": translate(sources, 1), "scores": None}

    # A warm-up: one batch on each thread.
    translate(sources[: ROWS * THREADS], beam_size)
    began = time.perf_counter()
    answer["beam"] = translate(sources, beam_size)
    answer["search_seconds"] = time.perf_counter() - began
    if request["references"] is not None:
        pieces = [reference["pieces"] for reference in request["references"]]
        results = translator.score_batch(split(sources), pieces, max_batch_size=ROWS)
        answer["scores"] = [sum(result.log_probs) for result in results]
    return answer


if __name__ == "__main__":
    request = json.load(sys.stdin)
    json.dump(convert(request) if "vocabularies" in request else decode(request), sys.stdout)
