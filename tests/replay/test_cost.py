from __future__ import annotations

import pytest

from refold.model.errors import ConfigError
from refold.model.message import system, user
from refold.replay.cost import ANTHROPIC, OPENAI, ConversationCost, PromptNames, Tariff, tariff_for
from refold.replay.facts import Context, FactBook, ReferenceCounter

TARIFF = Tariff("test", input=10.0, output=20.0, cache_read=1.0, cache_write=12.0, ttl_s=300, minimum=100)


class Client:
    """Sends texts of a given number of tokens, each a message of its own."""

    def __init__(self, tariff=TARIFF, head_tokens=0):
        self.cache, self.prompts = ConversationCost(tariff), PromptNames(head_tokens)
        self.book, self.context = FactBook(ReferenceCounter()), None

    def send(self, *names, now=0.0, tokens=200, output=0, prompt=None):
        messages = [user(f"{name:<{4 * (tokens - 4)}}") for name in names]
        if prompt:
            messages.insert(0, system(f"{prompt:<{4 * (tokens - 4)}}"))
        self.context = Context(self.book.all_of(messages), self.context)
        return self.cache.send(self.prompts.of(self.context), output, now)


def test_the_first_prompt_is_written_and_its_extension_reads_it():
    client = Client()

    first, second = client.send("a", now=0), client.send("a", "b", now=10)

    assert first.dollars == pytest.approx(200 * 12e-6)
    assert (second.cached_tokens, second.prompt_tokens) == (200, 400)
    assert second.dollars == pytest.approx(200 * 1e-6 + 200 * 12e-6)


def test_a_changed_beginning_is_paid_again():
    client = Client()
    client.send("a", "b")

    assert client.send("x", "b", "c").cached_tokens == 0


def test_a_beginning_that_was_sent_long_ago_is_found_again_while_it_lives():
    client = Client()
    client.send("a", now=0)
    client.send("x", now=100)

    assert client.send("a", "b", now=250).cached_tokens == 200
    assert client.send("a", "c", now=540).cached_tokens == 200  # the read at 250 began its time anew
    assert client.send("a", "d", now=841).cached_tokens == 0


def test_the_system_prompt_survives_what_comes_after_it():
    client = Client()
    client.send("a", "b", prompt="rules")

    assert client.send("x", prompt="rules").cached_tokens == 200


def test_a_short_prompt_is_neither_cached_nor_dearer():
    client = Client()

    assert client.send("a", tokens=50).dollars == pytest.approx(50 * 10e-6)
    assert client.send("a", "b", tokens=50).cached_tokens == 0


def test_tools_stand_before_everything_and_output_is_paid():
    client = Client(head_tokens=1_000)
    client.send("a")

    second = client.send("a", "b", output=30)

    assert (second.cached_tokens, second.prompt_tokens) == (1_200, 1_400)
    assert second.dollars == pytest.approx(1_200 * 1e-6 + 200 * 12e-6 + 30 * 20e-6)


def test_some_providers_read_in_steps():
    client = Client(Tariff("steps", 10.0, 20.0, 1.0, 10.0, minimum=100, step=128))
    client.send("a")

    assert client.send("a", "b").cached_tokens == 128


def test_a_call_of_the_candidate_s_own_is_paid_in_full():
    assert ConversationCost(TARIFF).ask(1_000, 100).dollars == pytest.approx(1_000 * 10e-6 + 100 * 20e-6)


def test_prices_come_from_the_catalogue():
    claude, gpt = tariff_for("claude-sonnet-4-5"), tariff_for("gpt-5")

    assert (claude.input, claude.cache_read, claude.cache_write, claude.step) == (3.0, 0.3, 3.75, 1)
    assert (gpt.cache_write, gpt.step) == (gpt.input, 128)
    assert (ANTHROPIC.cache_read, OPENAI.cache_write) == (0.3, 1.25)
    with pytest.raises(ConfigError, match="not known"):
        tariff_for("no-such-model")
