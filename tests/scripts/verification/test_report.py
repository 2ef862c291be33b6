"""The report of a verification, and its rows in a table of devices."""

import json
import math

import pytest

from scripts.verification.outcomes import Outcome, Speed
from scripts.verification.report import VerificationReport
from transformer.support.errors import UserError

RIGHT, WRONG = Outcome("right", 1e-7, 1e-5), Outcome("wrong", 0.25, 1e-5)
SPEED = Speed("step of base", 0.0332, 1_320_638.0, 20.4, 7 * 2**30, 0.29, 0.7)


def test_the_verdict_names_what_fails():
    assert VerificationReport("A", "1.0", "c", {"x": [RIGHT], "y": [RIGHT]}, []).verdict.endswith(
        "all 2 checks passed"
    )
    failed = VerificationReport("A", "1.0", "c", {"x": [RIGHT], "y": [WRONG]}, [])
    assert failed.verdict == "A: 1 of 2 checks failed: y, wrong: 0.25"


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_json_has_no_error_that_is_not_finite(error):
    report = VerificationReport(
        "A", "1.0", "c", {"x": [Outcome("broken", error, 1e-5)]}, []
    ).to_json()
    assert json.loads(json.dumps(report, allow_nan=False))["outcomes"]["x"][0] == {
        "name": "broken",
        "error": None,
        "bar": 1e-5,
        "passed": False,
    }


def test_a_device_has_its_rows_once(tmp_path):
    file = tmp_path / "devices.md"
    file.write_text("before\n<!-- devices: begin -->\n<!-- devices: end -->\nafter\n")
    for device, speeds in (("A", [SPEED]), ("B", []), ("A", [SPEED, SPEED])):
        VerificationReport(device, "1.0", "c", {"x": [RIGHT, WRONG]}, speeds).publish(str(file))
    _, first, header, _, *rows, last, after = file.read_text().splitlines()
    assert (first, last, after) == ("<!-- devices: begin -->", "<!-- devices: end -->", "after")
    assert header.startswith("| devices | JAX | commit | checks passed | task | ms |")
    assert [row.split(" | ")[0] for row in rows] == ["| B", "| A", "| A"]
    assert rows[0] == "| B | 1.0 | c | 1 of 2 |  |  |  |  |  |  |  |"  # failed before any speed
    assert (
        rows[1]
        == "| A | 1.0 | c | 1 of 2 | step of base | 33.2 | 1,320,638 | 29% | 0.70 | 7.0 | 20 |"
    )


def test_a_file_without_marks_is_refused(tmp_path):
    (tmp_path / "devices.md").write_text("no marks\n")
    with pytest.raises(UserError, match="needs the lines"):
        VerificationReport("A", "1.0", "c", {}, []).publish(str(tmp_path / "devices.md"))
