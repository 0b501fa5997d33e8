import builtins
from functools import cache
from hashlib import blake2b

import pytest

from refold.model.errors import MissingExtra
from refold.tokens import ExactCounter, counter_for, counters
from refold.tokens.counters import vocabulary_for

splintr = pytest.importorskip("splintr")

VOCABULARIES = sorted({vocabulary for _, vocabulary in counters._VOCABULARIES})
TEXTS = [
    "",
    "ok",
    "The quick brown fox jumps over the lazy dog.\n\n    return {'a': [1, 2.5, None]}\n",
    "日本語の文章と한국어 문장, и русский текст 🙂",
    "x" * 500 + " " * 300 + "\n" * 40,
]


@pytest.mark.parametrize(
    "model, vocabulary",
    [
        ("gpt-4o-mini", "o200k_base"),
        ("openai/gpt-4.1", "o200k_base"),
        ("gpt-5-codex", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("openai/gpt-oss-120b", "o200k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-3.5-turbo-0125", "cl100k_base"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3"),
        ("llama3.1:8b", "llama3"),
        ("deepseek/deepseek-r1:free", "deepseek_v3"),
        ("deepseek-r1-distill-llama-70b", "llama3"),
        ("qwen2.5-coder:7b", "qwen3"),
        ("z-ai/glm-4.6", "glm4"),
        ("moonshotai/kimi-k2", "kimi_k2"),
        ("mistralai/mistral-7b-instruct-v0.3", "mistral_v2"),
        ("mistralai/mixtral-8x7b-instruct", "mistral_v1"),
        ("mistral-large-latest", "mistral_v3"),
        ("models/gemini-2.5-flash", "gemma3"),
        ("claude-opus-4-6", None),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", None),
        ("llama-4-scout", None),
        ("qwen3.5-plus", None),
        ("my-own-model", None),
        ("", None),
    ],
)
def test_a_model_s_name_decides_its_vocabulary(model, vocabulary):
    assert vocabulary_for(model) == vocabulary


@cache
def tokenizer_of(vocabulary):
    """Loaded once for both tests, and apart from the one that a counter loads."""
    return splintr.Tokenizer.from_pretrained(vocabulary)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_counts_are_the_content_tokens_of_the_vocabulary(vocabulary):
    tokenizer, counter = tokenizer_of(vocabulary), ExactCounter(vocabulary)
    assert counter.source == "counted"
    for text in TEXTS:
        assert counter.text(text) == len(tokenizer.encode_raw(text))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_special_token_spelled_in_a_text_is_ordinary_text(vocabulary):
    tokenizer, counter = tokenizer_of(vocabulary), ExactCounter(vocabulary)
    for special in tokenizer.special_tokens():
        for text in (special, f"before {special} after", f"{special}{special}" * 40):
            assert counter.text(text) == len(tokenizer.encode_ordinary(text))


def test_a_lone_surrogate_is_counted_like_any_unreadable_character():
    counter = ExactCounter("o200k_base")
    assert counter.text("a\ud800b") == counter.text("a?b")
    assert counter.text("a\ud800b" * 100) > 100


def test_without_splintr_exact_counting_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without_splintr(name, *args, **kwargs):
        if name == "splintr":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    counters._load.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without_splintr)
    with pytest.raises(MissingExtra, match="exact token counting") as raised:
        ExactCounter("o200k_base")
    assert raised.value.extra == "tokens"


@pytest.mark.parametrize("vocabulary", ["o200k_base", "cl100k_base"])
def test_counts_equal_tiktoken_s(vocabulary):
    tiktoken = pytest.importorskip("tiktoken")
    try:
        encoding = tiktoken.get_encoding(vocabulary)
    except OSError as error:
        pytest.skip(f"tiktoken downloads its vocabulary, and cannot here: {type(error).__name__}")
    counter = ExactCounter(vocabulary)
    for text in [*TEXTS, "<|endoftext|> and <|im_start|>"]:
        assert counter.text(text) == len(encoding.encode_ordinary(text))


def test_a_model_that_splintr_knows_is_counted_exactly():
    assert counter_for("gpt-4o").text("hello world") == 2
    assert counter_for("gpt-4o") is counter_for("openai/gpt-4.1-mini")


@pytest.mark.parametrize("vocabulary", ["o200k_base", "llama3", "gemma3"])
def test_a_long_text_is_counted_in_portions_that_add_up(vocabulary, monkeypatch):
    text = "The ferry, at 10:15, took 48 people — and their 7 dogs — to Vik.\n\tIt was late. " * 2_000
    counter = ExactCounter(vocabulary)
    monkeypatch.setattr(counters, "LONG", 0)
    monkeypatch.setattr(counters, "PORTION", len(text))
    whole = counter.count(text)
    monkeypatch.setattr(counters, "PORTION", 10_007)

    assert counter.count(text) == whole
    assert counters.digest(text) == blake2b(text.encode(), digest_size=16).digest()
