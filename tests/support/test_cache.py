"""The folder of JAX's compilation cache."""

import jax
import pytest

from transformer.support import locks
from transformer.support.cache import enable_compilation_cache, make_once
from transformer.support.errors import UserError


@pytest.fixture
def configured(monkeypatch) -> dict:
    """Records the updates of an unset configuration."""
    values: dict = {}
    monkeypatch.setattr(
        type(jax.config), "jax_compilation_cache_dir", property(lambda _: None), raising=False
    )
    monkeypatch.setattr(jax.config, "update", values.__setitem__)
    return values


def test_the_folder_is_in_the_users_cache(tmp_path, monkeypatch, configured):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    enable_compilation_cache()
    assert configured["jax_compilation_cache_dir"].startswith(f"{tmp_path}/transformer/compiled/")
    enable_compilation_cache(str(tmp_path / "chosen"))
    assert configured["jax_compilation_cache_dir"].startswith(f"{tmp_path}/chosen/compiled/")


def test_nothing_is_cached_where_the_folder_cannot_be_created(tmp_path, configured):
    (tmp_path / "file").write_text("")
    enable_compilation_cache(str(tmp_path / "file" / "cache"))
    assert configured == {}


def test_the_environment_variable_takes_precedence(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    enable_compilation_cache(str(tmp_path))
    assert jax.config.jax_compilation_cache_dir == before is not None


def test_what_exists_needs_no_lock(tmp_path):
    made = []
    make_once(tmp_path / "folder", made.append, 1)
    (tmp_path / ".folder.lock").unlink()
    make_once(tmp_path / "folder", made.append, 1)
    assert len(made) == 1 and not (tmp_path / ".folder.lock").exists()


def test_what_another_process_makes_is_awaited_with_a_deadline(tmp_path):
    late = "waited 0 s for another process that prepares data .*lock.; check .*data.wait_seconds=0"
    with (
        locks.exclusive(tmp_path / ".folder.lock", "nobody", "", 0),
        pytest.raises(UserError, match=late),
    ):
        make_once(tmp_path / "folder", print, 0)
