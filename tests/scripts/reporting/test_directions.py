import pytest

from configs import base
from scripts.reporting.directions import make_directions
from transformer.config.loading import with_values
from transformer.support.errors import UserError

RESULTS = {
    ("de", "en"): {"bleu": 33.0, "bleu_interval": [32.0, 35.0]},
    ("en", "de"): {"bleu": 30.0},
    ("fr", "de"): {"bleu": 21.0, "bleu_interval": [20.5, 21.5]},
}


@pytest.fixture
def config():
    mixture = ("label=to", "label=back source_language=de target_language=en")
    return with_values(base.get_config(), {"data.source": "text", "data.mixture": mixture})


def test_a_matrix_has_a_row_for_each_source_language(config):
    header, _, *rows = make_directions(RESULTS, "bleu", config).splitlines()
    assert header == "| from | to de | to en | to fr |"
    assert rows == [
        "| de |  | 33.00 ± 1.50 |  |",
        "| en | 30.00 |  |  |",
        "| fr | 21.00 ± 0.50 * |  |  |",
    ]


def test_an_evaluation_without_the_metric_is_named(config):
    with pytest.raises(UserError, match="--metric=chrf: the evaluation of de-en does not have it"):
        make_directions(RESULTS, "chrf", config)
