"""The smoothed targets: numbers worked out by hand."""

import numpy as np
import pytest

from scripts.charts import smoothing
from tests.scripts.charts.drawn import matrices
from transformer.support.errors import UserError


def test_the_panels_have_the_distributions_of_both_supports():
    drawn = matrices(smoothing.draw(), (5, 5), "panel")
    # As in the Annotated Transformer, 0.4 over the three tokens that are neither the truth nor
    # padding.
    n = 0.4 / 3
    others = [[0, n, 0.6, n, n], [0, 0.6, n, n, n], [0] * 5, [0, n, n, 0.6, n], [0, n, n, 0.6, n]]
    np.testing.assert_allclose(drawn["spread over all other tokens"], others, atol=6e-5)
    # 0.4 over all five, the truth and padding included.
    uniform = np.full((5, 5), 0.08) + 0.6 * np.eye(5)[[2, 1, 0, 3, 3]]
    uniform[2] = 0
    np.testing.assert_allclose(drawn["spread over all tokens"], uniform, atol=6e-5)


def test_every_distribution_sums_to_one():
    distributions = smoothing.distributions(0.1, (7, 4, 8, 1), 9, "others")
    np.testing.assert_allclose(distributions.sum(axis=1), 1, atol=1e-6)
    assert distributions[0].argmax() == 7 and distributions[0, 7] == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize("amount", [1.0, float("nan")])
def test_an_impossible_amount_is_refused(amount):
    with pytest.raises(UserError, match=f"smoothing={amount}: must be"):
        smoothing.draw(amount)
