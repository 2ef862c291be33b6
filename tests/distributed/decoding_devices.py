"""python -m tests.distributed.decoding_devices: translations, scores and states by one and eight devices, as JSON."""

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
from transformer.decoding.inspection import Inspector
from transformer.decoding.replicas import Replicas
from transformer.decoding.scoring import Scorer
from transformer.decoding.translator import FIRST_EXTRA_LENGTH, Translator

VOCABULARY = IdsVocabulary(12)
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)
MODELS = [tiny_model(VOCABULARY.size, seed=1), tiny_model(VOCABULARY.size, seed=2, d_model=12)]
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(map(str, RANDOM.integers(0, VOCABULARY.size - 4, length))) for length in RANDOM.integers(1, 20, 90)]
DEVICES = {"one": jax.local_devices()[:1], "eight": jax.local_devices()}


def decoding_config(**changes):
    config = base.get_config().decoding
    small = {"beam_size": 2, "max_extra_length": 12, "max_source_length": 20, "batch_tokens": 192}
    config.update(small | changes)
    return config


def replicas(models: Sequence[Model]) -> Replicas:
    graphs, parameters = zip(*models, strict=True)
    return Replicas(graphs, parameters, jax.local_devices()[0])


def translate(models: Sequence[Model], texts: Sequence[str], devices: Sequence[jax.Device], **changes) -> dict:
    """Returns all fields of the translations, and the numbers of devices and shapes used and of shapes lowered."""
    translator = Translator([model.graph for model in models], TOKENIZER, decoding_config(**changes), 2, devices)
    lowered, lower = [], translator.search._lower
    translator.search._lower = lambda *arguments: lowered.append(arguments) or lower(*arguments)
    translations = translator.translate(replicas(models), texts, 1, lambda _: None)
    used, shapes = (set(column) for column in zip(*translator.search.programs, strict=True))
    return {
        "translations": [[dataclasses.astuple(translation) for translation in best] for best in translations],
        "devices": len(used),
        "shapes": len(shapes),
        "lowered": len(lowered),
    }


def main() -> None:
    short, one_pass = [text for text in TEXTS if len(text.split()) < SHORTEST], {"max_extra_length": FIRST_EXTRA_LENGTH}
    cases = {
        "beam": (MODELS[:1], TEXTS, {}),
        "sample": (MODELS[:1], short, one_pass | {"strategy": "sample"}),
        "bfloat16": ([tiny_model(VOCABULARY.size, seed=1, dtype="bfloat16")], short, one_pass),
    }
    report = {
        name: {number: translate(models, texts, devices, **changes) for number, devices in DEVICES.items()}
        for name, (models, texts, changes) in cases.items()
    }
    translator = Translator([MODELS[0].graph], TOKENIZER, decoding_config(), 2, DEVICES["eight"])
    for text in TEXTS[:8]:
        translator.translate(replicas(MODELS[:1]), [text], 1, lambda _: None)
    report["single_texts"] = sorted({device.id for device, _ in translator.search.programs})
    graphs, config, copies = [model.graph for model in MODELS], decoding_config(), replicas(MODELS)
    report["scores"], report["states"] = {}, {}
    for number, devices in DEVICES.items():
        scores = Scorer(graphs, TOKENIZER, config, devices).score(copies, list(zip(short, short[::-1], strict=True)))
        report["scores"][number] = [dataclasses.astuple(score) for score in scores]
        encodings = Inspector(graphs[0], TOKENIZER, config, devices).encode(replicas(MODELS[:1]), short)
        report["states"][number] = [encoding.states.tolist() for encoding in encodings]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
