"""Fixtures of the tests of scripts."""

import shutil
from collections.abc import Iterator

import pytest

from tests.scripts.evaluated import SENTENCES, add_evaluation, damage, make_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Returns Chromium, driven by Playwright. Tests that need it are skipped without it."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian's package chromium)")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def evaluated(tmp_path):
    """Makes a workdir with one evaluation, or adds one to an existing workdir."""

    def make(
        name: str,
        amount: float = 0.1,
        evaluation: str = "valid-step9",
        saved: dict | None = None,
        **changes: str,
    ):
        path = tmp_path / name
        if not path.exists():
            make_run(path, **changes)
        add_evaluation(
            path, evaluation, damage(SENTENCES, amount, seed=len(name)), SENTENCES, **(saved or {})
        )
        return path

    return make
