"""Commands that score translations: their fields, their numbers, and their failures."""

import sys
import time

import pytest

from transformer.decoding.scorer import check_command, run_scorer
from transformer.support.errors import UserError

TEXTS = {
    "source": ["a b", "", "c\u2028d"],
    "reference": ["x", "", "y"],
    "hypothesis": ["xx", "", "Zürich ภาษา"],
}
# Prints the number of characters of each hypothesis, minus those of the source.
LENGTHS = f"""{sys.executable} -c '
import sys
source, hypothesis = (open(name, encoding="utf-8").read().split("\\n") for name in sys.argv[1:])
for a, b in zip(source[:-1], hypothesis[:-1]):
    print(len(b) - len(a))
' {{source}} {{hypothesis}}"""


def python(program: str) -> str:
    return f"{sys.executable} -c '{program}' {{hypothesis}}"


def test_a_command_reads_a_line_for_each_text_and_prints_a_number():
    assert run_scorer(LENGTHS, TEXTS) == [-1.0, 0.0, 8.0]
    assert run_scorer(LENGTHS, dict.fromkeys(TEXTS, [])) == []


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print(1)", "printed 1 lines for 3 translations, must print one number for each; it pri"),
        ("pass", "printed 0 lines .*; it printed nothing$"),
        ('print("1\\n2\\nnan")', "line 3: 'nan' is not a finite number$"),
        ('print("1\\ninf\\n3")', "line 2: 'inf' is not a finite number$"),
        ('print("1\\n2\\nscore")', "line 3: 'score' is not a finite number$"),
        ('raise SystemExit("no such model")', "failed with exit code 1; it printed: no such mod"),
        ('print("half"); raise SystemExit(3)', "failed with exit code 3; it printed: half$"),
    ],
)
def test_a_command_that_fails_is_shown_with_what_it_printed(program, message):
    with pytest.raises(UserError, match=f"hypothesis}}: {message}") as caught:
        run_scorer(python(program), TEXTS)
    assert "\n" not in str(caught.value)


def test_a_command_that_hangs_is_killed_with_its_children():
    sleeper = 'import subprocess, time; print(7, flush=True); subprocess.run(["sleep", "60"])'
    began = time.monotonic()
    with pytest.raises(UserError, match="did not end within 0.5 seconds; it printed: 7$"):
        run_scorer(python(sleeper), TEXTS, seconds=0.5)
    assert time.monotonic() - began < 20


def test_a_missing_program_is_named():
    with pytest.raises(UserError, match=r"^no-such-program \{hypothesis\}: cannot be run"):
        run_scorer("no-such-program {hypothesis}", TEXTS)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("comet", r"has no \{hypothesis\}, and may have \{source\}, \{reference\}, \{hypothesis\}"),
        ("comet {hypothesis} {mt}", r"has \{mt\}, and may have"),
        ("comet '{hypothesis}", "is not a command .No closing quotation"),
        ("", "has no "),
    ],
)
def test_a_command_that_cannot_score_is_refused(command, message):
    with pytest.raises(UserError, match=f"^--scorer=comet=.*: {message}"):
        check_command("--scorer=comet", command)
