"""What comes back: originals by handle and by words, smaller requests after a refusal, and what was undone."""

from __future__ import annotations

from types import SimpleNamespace

import openai
import pytest

from refold.model.errors import NotAnOverflow, NotFound, RecoverySpent
from refold.sync import Conversation
from tests.formats import KEYS, answer, question, turn, violations
from tests.test_sync import every_format, full

TOO_LONG = {
    "message": "This model's maximum context length is 3000 tokens. However, your messages resulted in 3500 tokens.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}


@pytest.mark.feature("N2")
class TestRecall:
    @every_format
    def test_by_handle(self, name):
        talk, said = full(name), [*turn(0, name)]
        talk.context()

        assert [talk.recall(f"#m{number}") for number in range(4)] == said
        assert talk.recall("#m1.1") == said[1]
        assert talk.recall("#m2.1") == said[2]
        assert talk.recall("m0") == said[0]

    def test_by_words(self):
        talk = full()
        talk.context()

        found = talk.recall("what is value_3 set to?")

        assert "value_3 = 111" in found or "value_3 to 111" in found
        assert "#m1" in found
        assert talk.state.folded.shown.counter.text(talk.recall("value", max_tokens=50)) <= 50

    def test_a_word_that_looks_like_a_handle_is_a_word(self):
        talk = Conversation("gpt-4o")
        talk.add("Upload it to s3, please, not to m99.", answer("It is on s3 now."), "And now?")

        assert "s3" in talk.recall("s3")
        assert "m99" in talk.recall("m99")

    def test_what_is_not_there(self):
        with pytest.raises(NotFound):
            full().recall("#m999")

    def test_a_summary(self):
        talk = full(preset="lis")
        talk.context()

        assert isinstance(talk.recall("#s0"), str)


class TestRecover:
    def error(self, body: object = TOO_LONG, status: int = 400) -> openai.APIStatusError:
        response = SimpleNamespace(status_code=status, request=None, headers={})
        return openai.OpenAI(api_key="none")._make_status_error(
            "refused", body={"error": body}, response=response
        )

    @pytest.mark.feature("O14")
    def test_an_error_of_the_sdk_leads_to_a_smaller_request(self):
        talk = full(window=6_000)
        talk.context()
        before = talk.measurement.content.tokens

        fields = talk.recover(self.error())

        assert isinstance(self.error(), openai.BadRequestError)
        assert violations(fields) == ()
        assert talk.measurement.content.tokens < before
        assert fields["messages"][-1] == question("And now?")
        assert "What is in file 0?" in str(fields)
        assert talk.receipts[-1].reason.startswith("the provider refused the input as too long")

    def test_at_most_two_and_then_a_clear_error(self):
        talk = full(window=20_000, turns=60)
        talk.context()
        talk.recover(self.error())
        talk.recover({"error": {"code": "context_length_exceeded"}})

        with pytest.raises(RecoverySpent) as error:
            talk.recover("prompt is too long")
        assert error.value.hint

    def test_another_refusal_is_not_taken_for_an_overflow(self):
        talk = full()
        talk.context()
        limited = self.error({"message": "Rate limit reached", "code": "rate_limit_exceeded"}, 429)

        with pytest.raises(openai.RateLimitError) as raised:
            talk.recover(limited)
        assert raised.value is limited
        with pytest.raises(NotAnOverflow):
            talk.recover({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}})


class TestUndo:
    @every_format
    def test_compact_then_undo_is_as_before(self, name):
        talk = full(name, turns=6, window=100_000)
        before = talk.context()

        after = talk.compact()

        assert len(after[KEYS[name]]) < len(before[KEYS[name]])
        assert talk.undo()
        assert talk.context() == before
        assert not talk.undo()

    def test_what_is_said_after_an_undo_is_there(self):
        talk = full(turns=6, window=100_000)
        talk.compact()
        talk.undo()
        talk.add(answer("Well."), "And then?")

        assert [message["content"] for message in talk.context()["messages"][-3:]] == [
            "And now?",
            "Well.",
            "And then?",
        ]
