"""python -m tests.distributed.decoding_devices: translations, scores and states by one device and
by several, as JSON.

Each device compiles each shape, so the cases take two or three.
"""

import dataclasses
import json
from collections.abc import Sequence

import jax
import numpy as np

from configs import base
from tests.decoding.models import Model, tiny_model
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.batches import SHORTEST
from transformer.decoding.forced_decoding import encode_texts, score_pairs
from transformer.decoding.text_decoder import FIRST_EXTRA_LENGTH, TextDecoder

VOCABULARY = IdsVocabulary(12)
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)
MODELS = [tiny_model(VOCABULARY.size, seed=1), tiny_model(VOCABULARY.size, seed=2, d_model=12)]
RANDOM = np.random.default_rng(0)
TEXTS = [
    " ".join(map(str, RANDOM.integers(0, VOCABULARY.size - 4, length)))
    for length in RANDOM.integers(1, 20, 90)
]
ONE, TWO, THREE = (jax.local_devices()[:count] for count in (1, 2, 3))


def make_decoding_config(**changes):
    decoding_config = base.get_config().decoding
    small = {"beam_size": 2, "max_extra_length": 12, "max_source_length": 20, "batch_tokens": 192}
    decoding_config.update(small | changes)
    return decoding_config


def make_decoder(models: Sequence[Model], devices: Sequence[jax.Device], **changes) -> TextDecoder:
    return TextDecoder(
        [model.graph for model in models], TOKENIZER, make_decoding_config(**changes), devices
    )


def translate(
    models: Sequence[Model], texts: Sequence[str], devices: Sequence[jax.Device], **changes
) -> dict:
    """Returns all fields of the translations, and the numbers of devices and shapes used and of
    shapes lowered.
    """
    decoder = make_decoder(models, devices, **changes)
    parameters = decoder.place([model.parameters for model in models])
    lowered, lower = [], jax.stages.Traced.lower
    jax.stages.Traced.lower = lambda traced, **options: (
        lowered.append(traced) or lower(traced, **options)
    )
    translations = decoder.translate(parameters, texts, n_best=2)
    jax.stages.Traced.lower = lower
    used, shapes = (set(part) for part in zip(*decoder.programs.compiled, strict=True))
    return {
        "translations": [
            [dataclasses.astuple(translation) for translation in nbest] for nbest in translations
        ],
        "devices": len(used),
        "shapes": len(shapes),
        "lowered": len(lowered),
    }


def main() -> None:
    short, one_pass = (
        [text for text in TEXTS if len(text.split()) < SHORTEST],
        {"max_extra_length": FIRST_EXTRA_LENGTH},
    )
    cases = {
        "beam": (MODELS[:1], TEXTS, THREE, {}),
        "sample": (MODELS[:1], short, TWO, one_pass | {"strategy": "sample"}),
        "bfloat16": ([tiny_model(VOCABULARY.size, seed=1, dtype="bfloat16")], short, TWO, one_pass),
    }
    report = {
        name: {
            "one": translate(models, texts, ONE, **changes),
            "several": translate(models, texts, devices, **changes),
        }
        for name, (models, texts, devices, changes) in cases.items()
    }
    decoder = make_decoder(MODELS[:1], THREE)
    parameters = decoder.place([MODELS[0].parameters])
    for text in TEXTS[:8]:
        decoder.translate(parameters, [text], n_best=2)
    report["single_texts"] = sorted({device.id for device, _ in decoder.programs.compiled})
    report["scores"], report["states"] = {}, {}
    for number, devices in (("one", ONE), ("several", TWO)):
        decoder = make_decoder(MODELS, devices)
        parameters = decoder.place([model.parameters for model in MODELS])
        scores = score_pairs(decoder, parameters, list(zip(short, short[::-1], strict=True)))
        report["scores"][number] = [dataclasses.astuple(score) for score in scores]
        decoder = make_decoder(MODELS[:1], devices)
        encodings = encode_texts(decoder, decoder.place([MODELS[0].parameters]), short)
        report["states"][number] = [encoding.states.tolist() for encoding in encodings]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
