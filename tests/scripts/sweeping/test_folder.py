"""The record of a sweep, by which a later command continues it."""

import pytest

from configs import base
from scripts.sweeping import description
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.tasks import TrainingTask
from transformer.config.loading import with_values
from transformer.support import files
from transformer.support.errors import UserError


def test_a_key_that_base_has_got_since_and_another_note_do_not_make_another_sweep(tmp_path):
    folder, sweep = (
        SweepFolder(tmp_path),
        description.listed(description.seeds(2), objective="loss", pruner=None),
    )
    config = with_values(base.get_config(), {})
    record = folder.describe(sweep, TrainingTask(config, folder).identity)
    del record["task"]["model.layer_drop"]
    record["task"]["training.log_every"] = 50  # which older records have
    files.write_json(folder.record, record)
    noted = with_values(config, {"training.note": "why"})
    assert folder.describe(sweep, TrainingTask(noted, folder).identity)["study"] == record["study"]
    changed = with_values(config, {"model.layer_drop": 0.1})
    with pytest.raises(UserError, match=r"holds another sweep \(model.layer_drop: 0.0 -> 0.1\)"):
        folder.describe(sweep, TrainingTask(changed, folder).identity)
