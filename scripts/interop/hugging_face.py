"""Import and export of Hugging Face's MarianMTModel (OPUS-MT), Pegasus, and T5's family."""

from pathlib import Path

from scripts.interop import (
    hugging_face_export,
    hugging_face_marian,
    hugging_face_t5,
    hugging_face_t5_export,
    hugging_face_t5_names,
    t5_vocabulary,
    untrusted,
)
from scripts.interop.hugging_face_folder import INDEX, read_folder
from scripts.interop.hugging_face_names import CONFIG, VOCABULARIES, WEIGHTS
from scripts.interop.portable import PortableModel
from transformer.support.errors import UserError

TOKENIZERS = (t5_vocabulary.SENTENCEPIECE, t5_vocabulary.TOKENIZER_JSON)
# The readers of a Folder, by the model_type of config.json.
READERS = dict.fromkeys(("marian", "pegasus"), hugging_face_marian.read) | dict.fromkeys(
    hugging_face_t5_names.MODEL_TYPES, hugging_face_t5.read
)


def recognises(path: Path) -> bool:
    has_config = (path / CONFIG).is_file()
    names = (WEIGHTS, INDEX, "pytorch_model*.bin")
    has_weights = any(file.is_file() for name in names for file in path.glob(name))
    if has_config and has_weights:
        return True
    # One of the files is missing, and the reader names it. CTranslate2's converter may copy
    # vocabularies beside its model.bin.
    has_vocabulary = all(
        (path / name).is_file() for name in (VOCABULARIES[0], hugging_face_marian.MODELS[0])
    ) or any((path / name).is_file() for name in TOKENIZERS)
    return has_vocabulary and (has_config or has_weights) and not (path / "model.bin").exists()


def read(path: Path) -> PortableModel:
    """Reads a folder that `save_pretrained` wrote.

    Raises UserError for another kind of model or a damaged file.
    """
    with untrusted.reading(path):
        folder = read_folder(path)
        model_type = folder.config.get("model_type")
        with untrusted.reading(path / CONFIG):
            if model_type not in READERS:
                raise UserError(f"model_type={model_type}: must be one of {', '.join(READERS)}")
        return READERS[model_type](folder)


def write(model: PortableModel, folder: Path, quantization: str | None, *_: object) -> None:
    """Writes the model into a folder.

    Raises UserError, with the setting, for a model that no class can express.
    """
    is_t5 = model.settings["model.positions"] in hugging_face_t5_names.CLASSES
    writer = hugging_face_t5_export if is_t5 else hugging_face_export
    writer.write(model, folder, quantization)
