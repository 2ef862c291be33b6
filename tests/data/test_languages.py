"""Language codes."""

import pytest

from transformer.data.languages import base_code


@pytest.mark.parametrize("code", ["pt-BR", "pt_br", "PT", "pt", "por", "por_Latn"])
def test_regions_scripts_and_three_letters_are_the_same_language(code):
    assert base_code(code) == "pt"
