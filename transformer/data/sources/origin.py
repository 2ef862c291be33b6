"""The record of how a folder of data was made: `scripts.get_data` writes it, and the runs on the data copy it."""

import json
from typing import Any

from transformer import files
from transformer.config_types import Config
from transformer.errors import UNREADABLE, UserError

FILE_NAME = "data.json"


def read_origin(data: Config) -> dict[str, Any] | None:
    """Returns the record in the folder `data.path`; None if there is none. Raises UserError if it is damaged."""
    path = files.expanded(data.path) / FILE_NAME
    if not data.path or not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise TypeError("not an object")
    except UNREADABLE as error:
        raise UserError(
            f"{path}: damaged ({type(error).__name__}); restore it, or delete it to train without"
        ) from error
    return record
