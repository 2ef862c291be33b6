"""Start-up times: what ends the wait for a command, and commands that fail."""

import pytest

from scripts.benchmarking import startup
from transformer.errors import UserError


def test_a_command_runs_to_its_end_with_caches_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    seen = tmp_path / "seen"
    code = f"import os, sys; open({str(seen)!r}, 'w').write(sys.stdin.read() + str(dict(os.environ)))"
    (tmp_path / "told.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert startup.finished(["told"], tmp_path, "a line") > 0
    assert seen.read_text().startswith("a line")
    assert str(tmp_path / "cache") in seen.read_text()
    assert "elsewhere" not in seen.read_text()


def test_a_command_that_fails_is_one_line_with_its_last_message(tmp_path):
    with pytest.raises(UserError, match=r"^python -m no_such_module --flag: failed: .*No module named no_such_module$"):
        startup.finished(["no_such_module", "--flag"], tmp_path)
