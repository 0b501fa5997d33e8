from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest
from msgspec import structs
from openai.types.chat import ChatCompletion

from refold.core.presets import PRESETS
from refold.engine.events import SummaryFailed
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError, DoesNotFit, InvalidWindow, WireError
from refold.model.message import assistant, user
from refold.sync import Conversation, Engine
from tests.formats import CALLS, KEYS, RESULTS, answer, chat_call, chat_result, question, turn, violations
from tests.wire.test_sdk import CHAT_REPLY, CLAUDE_REPLY

every_format = pytest.mark.parametrize("name", DIALECTS)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = {
    "chat": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}],
    "responses": [{"type": "function", "name": "read", "parameters": SCHEMA}],
    "anthropic": [{"name": "read", "input_schema": SCHEMA}],
}


def full(name: str = "chat", turns: int = 30, **settings: object) -> Conversation:
    """A long conversation in a window that is too small for it."""
    talk = Conversation("gpt-4o", format=name, **{"window": 4_000, **settings})
    for number in range(turns):
        talk.add(*turn(number, name))
    talk.add(question("And now?"))
    return talk


UNMARKED = structs.replace(PRESETS["refold"], cache=None)
"""Sets no cache breakpoints."""


class TestFormats:
    @every_format
    def test_what_goes_in_comes_out_while_it_fits(self, name):
        talk = Conversation("gpt-4o", system="Be kind.", tools=TOOLS[name], format=name, policy=UNMARKED)
        said = [*turn(0, name), question("And now?")]
        talk.add(*said)

        fields = talk.context()

        prompt = {
            "chat": {"messages": [{"role": "system", "content": "Be kind."}, *said]},
            "responses": {"instructions": "Be kind.", "input": said},
            "anthropic": {"system": "Be kind.", "messages": said},
        }
        assert fields == {**prompt[name], "tools": TOOLS[name]}
        assert talk.receipts == ()

    @every_format
    def test_a_long_one_is_compacted_and_could_be_sent(self, name):
        talk = Conversation(
            "gpt-4o",
            system="Be kind.",
            tools=TOOLS[name],
            format=name,
            window=4_000,
            max_output=500,
            policy=UNMARKED,
        )
        for number in range(40):
            *asked, replied = turn(number, name)
            talk.add(*asked)
            fields = talk.context()
            assert violations(fields, name) == ()
            assert talk.measurement.content.tokens <= 3_460
            assert fields[KEYS[name]][-1] == asked[-1]
            assert "What is in file 0?" in str(fields)
            talk.add(replied)
        assert {receipt.decision for receipt in talk.receipts} == {"summarise"}
        assert talk.measurement.summary.tokens > 0

    @every_format
    def test_between_two_folds_the_prefix_stays_what_it_was(self, name):
        talk, before, told = full(name, turns=2, window=6_000, policy=UNMARKED), [], 0
        for number in range(2, 30):
            messages = talk.context()[KEYS[name]]
            if len(talk.receipts) == told:
                assert messages[: len(before)] == before
                assert all(new is old for new, old in zip(messages, before, strict=False))
            before, told = messages, len(talk.receipts)
            talk.add(answer("Well."), *turn(number, name), question("And now?"))
        assert told

    @pytest.mark.feature("L9")
    def test_what_anthropic_may_cache_is_marked_unless_that_is_switched_off(self):
        marked, plain = full("anthropic"), full("anthropic", policy=UNMARKED)
        assert str(marked.context()).count("'cache_control': {'type': 'ephemeral'}") == 2
        assert "cache_control" not in str(plain.context())
        hour = full("anthropic", policy=structs.replace(UNMARKED, cache="1h"))
        assert "'ttl': '1h'" in str(hour.context())

    def test_tools_are_given_as_they_came(self):
        bare = Conversation("gpt-4o")
        bare.add("Hello.")
        assert "tools" not in bare.context()
        talk = Conversation("gpt-4o", tools=TOOLS["chat"])
        talk.add("Hello.")
        assert talk.context()["tools"] == TOOLS["chat"]
        assert talk.state.frame.cost.tools.tokens > 0


class TestSystemPrompt:
    def test_leading_system_messages_are_the_prompt(self):
        talk = Conversation("gpt-4o")
        rules = {"role": "system", "content": "Be kind.", "name": "house"}
        more = {"role": "developer", "content": "Be brief."}
        talk.add(rules, more, "Hello.")

        assert talk.context()["messages"] == [rules, more, question("Hello.")]
        assert talk.state.frame.fixed.system[0].text == "Be kind."
        assert talk.recall("#m0") == question("Hello.")

    def test_they_are_never_compacted(self):
        talk = Conversation("gpt-4o", window=3_000, max_output=0)
        talk.add({"role": "system", "content": "Rule: " + "kindness " * 100})
        for number in range(30):
            talk.add(*turn(number))
        talk.add("And now?")

        assert talk.context()["messages"][0]["content"] == "Rule: " + "kindness " * 100
        assert talk.receipts

    def test_a_later_one_stays_where_it_is(self):
        talk = Conversation("gpt-4o")
        talk.add("Hello.", answer("Good day."), {"role": "system", "content": "Now be brief."}, "And now?")

        assert [message["role"] for message in talk.context()["messages"]] == [
            "user",
            "assistant",
            "system",
            "user",
        ]

    def test_one_after_the_setting_comes_after_it(self):
        talk = Conversation("gpt-4o", system="Be kind.")
        talk.add({"role": "system", "content": "Be brief."}, "Hello.")

        assert [message["content"] for message in talk.context()["messages"]] == [
            "Be kind.",
            "Be brief.",
            "Hello.",
        ]

    def test_in_responses_it_is_the_instructions_and_items_stay_items(self):
        talk = Conversation("gpt-4o", format="responses", system="Be kind.")
        item = {"type": "message", "role": "developer", "content": "Be brief."}
        talk.add(item, "Hello.")

        fields = talk.context()
        assert fields["instructions"] == "Be kind."
        assert fields["input"][0] == item

    def test_in_anthropic_it_is_one_field_of_blocks(self):
        blocks = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
        talk = Conversation("claude-sonnet-4-5", format="anthropic", system=blocks, policy=UNMARKED)
        talk.add("Hello.")
        assert talk.context()["system"] == blocks

        talk = Conversation("claude-sonnet-4-5", format="anthropic", system=blocks, policy=UNMARKED)
        talk.add({"role": "system", "content": "Be brief."}, "Hello.")
        fields = talk.context()
        assert fields["system"] == [*blocks, {"type": "text", "text": "Be brief."}]
        assert fields["messages"] == [question("Hello.")]


class TestAdding:
    def test_a_reply_of_an_sdk(self):
        talk = Conversation("gpt-4o")
        reply = ChatCompletion.model_validate(CHAT_REPLY)
        talk.add("Look.", reply.choices[0].message, chat_result("1", "There."))

        assert violations(talk.context()) == ()
        assert (
            talk.context()["messages"][1]["tool_calls"] == CHAT_REPLY["choices"][0]["message"]["tool_calls"]
        )

    def test_own_messages(self):
        talk = Conversation("gpt-4o")
        talk.add(user("Hello."), assistant("Good day."), user("And now?"))

        assert talk.context()["messages"] == [
            question("Hello."),
            answer("Good day."),
            question("And now?"),
        ]

    def test_all_or_nothing(self):
        talk = Conversation("gpt-4o")
        with pytest.raises(WireError):
            talk.add("Hello.", {"role": "nobody", "content": "x"})
        assert len(talk.state.folded.branch) == 0

    def test_a_changed_dictionary_changes_nothing_that_was_said(self):
        talk, said = Conversation("gpt-4o"), question("Hello.")
        talk.add(said)
        said["content"] = "Something else."

        assert talk.context()["messages"] == [question("Hello.")]

    @every_format
    def test_a_call_that_waits_is_left_out_until_its_result_is_there(self, name):
        talk = Conversation("gpt-4o", format=name)
        talk.add("Look.", CALLS[name]("look"))
        try:
            fields = talk.context()
        except InvalidWindow:
            pass
        else:
            assert violations(fields, name) == ()
        talk.add(RESULTS[name]("look", "There."))
        assert len(talk.context()[KEYS[name]]) == 3

    def test_a_window_that_was_given_holds_for_another_model_too(self):
        given, known = Conversation("gpt-4o", window=12_000), Conversation("gpt-4o")
        given.reconfigure(model="gpt-4")
        known.reconfigure(model="gpt-4")

        assert (given.window.tokens, given.window.source) == (12_000, "override")
        assert (known.window.tokens, known.window.source) == (8_192, "catalogue")

    def test_nothing_cannot_be_sent(self):
        with pytest.raises(InvalidWindow):
            Conversation("gpt-4o").context()

    def test_what_can_never_fit_is_refused_and_kept(self):
        talk = Conversation("gpt-4o", window=256, max_output=0, system="be kind " * 120)
        talk.add("A question that is far longer than ten tokens can ever hold: " + "why " * 100)

        with pytest.raises(DoesNotFit):
            talk.context()
        assert "why why" in talk.recall("#m0")["content"]


def report(name: str, prompt: int) -> dict[str, int]:
    """A usage report in the words of a format; most of the prompt came from the cache, where that is told."""
    if name == "chat":
        return {"prompt_tokens": prompt, "completion_tokens": 10}
    if name == "responses":
        return {"input_tokens": prompt, "output_tokens": 10}
    return {"input_tokens": 100, "cache_read_input_tokens": prompt - 100, "output_tokens": 10}


class TestRecord:
    @every_format
    def test_what_was_reported_is_what_is_measured_from(self, name):
        talk = full(name, turns=3, window=100_000)
        talk.context()
        prompt = talk.measurement.content.tokens + 20
        talk.record(report(name, prompt))

        assert talk.state.meter.anchor.prompt == prompt
        assert talk.state.meter.billed.prompt == prompt
        assert talk.bill.spent > 0

    def test_a_whole_reply_and_nothing_at_all(self):
        talk = Conversation("gpt-4o")
        talk.add("Hello.")
        talk.context()
        talk.record(ChatCompletion.model_validate(CHAT_REPLY))
        talk.record(None)

        # 40 fresh, 60 cached, 20 written: $2.50, $1.25 and $10 a million.
        assert talk.bill.spent == pytest.approx((40 * 2.5 + 60 * 1.25 + 20 * 10) / 1e6)

    @pytest.mark.feature("O13")
    def test_more_than_the_window_holds_is_acted_on_at_the_next_call(self):
        talk = full(turns=16, window=4_000, max_output=0)
        talk.context()
        assert talk.receipts == ()
        assert talk.measurement.content.tokens < 3_400
        talk.record({"prompt_tokens": 4_100, "completion_tokens": 5})
        talk.add(answer("Well."), "And now?")
        talk.context()

        assert [receipt.decision for receipt in talk.receipts] == ["summarise"]


def test_a_policy_that_is_off_sends_everything():
    policy = structs.replace(PRESETS["opal"], enabled=False)
    talk = full(policy=policy, window=1_000)

    assert len(talk.context()["messages"]) == 121
    assert talk.receipts == ()


def test_a_reply_of_anthropic_goes_back_without_what_surrounds_it():
    from anthropic.types import Message

    talk = Conversation("claude-sonnet-4-5", format="anthropic")
    reply = Message.model_validate(CLAUDE_REPLY)
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "There."}
    talk.add("Look.", reply, {"role": "user", "content": [result]})
    talk.record(reply)

    fields = talk.context()
    assert sorted(fields["messages"][1]) == ["content", "role"]
    assert fields["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    assert violations({**fields, "thinking": {"type": "enabled", "budget_tokens": 1024}}, "anthropic") == ()


def test_one_call_waits_while_the_others_are_answered():
    talk = Conversation("gpt-4o")
    both = chat_call("a")
    both["tool_calls"] = [*chat_call("a")["tool_calls"], *chat_call("b")["tool_calls"]]
    talk.add("Look.", both, chat_result("b", "There."), chat_result("a", "Here."))

    assert violations(talk.context()) == ()
    assert talk.recall("#m1.2")["tool_calls"][0]["id"] == "call_b"


def test_help_shows_the_docstrings_of_the_async_classes_without_await():
    text = Conversation.add.__doc__
    assert "Raises:" in text
    assert "    chat.add(" in text
    assert Conversation.receipts.__doc__


GOOD = "The user asks about the tides at the pier, and the assistant answers each question with a time."


class TestSummaryFunctions:
    @pytest.mark.parametrize("face", ["conversation", "engine"])
    def test_a_plain_function_writes_and_is_called_outside_of_the_event_loop(self, face):
        threads = []

        def write(messages, *, previous, max_tokens):
            threads.append(threading.current_thread().name)
            return GOOD

        if face == "conversation":
            talk = full(summariser=write)
            talk.compact()
        else:
            with Engine("memory:", model="gpt-4o", window=4_000, summariser=write) as engine:
                talk = engine.conversation("tides")
                for number in range(30):
                    talk.add(*turn(number, "chat"))
                talk.compact()

        assert set(threads) == {"refold-function"}
        assert talk.receipts[-1].summary.author == "model"
        assert GOOD in talk.receipts[-1].summary.text

    @pytest.mark.parametrize(("value", "kind"), [(None, "None"), (42, "int"), (b"text", "bytes")])
    def test_what_a_function_returned_instead_of_text_is_in_the_warning(self, value, kind, caplog):
        heard = []
        talk = full(summariser=lambda messages, *, previous, max_tokens: value, on_event=heard.append)

        talk.compact()

        problem = f"the summariser returned {kind}, not text"
        assert f"a summary could not be written: {problem}" in caplog.messages
        assert f"a compaction was made without the summariser: {problem}" in caplog.messages
        assert {one.problem for one in heard if isinstance(one, SummaryFailed)} == {problem}

    @pytest.mark.parametrize("wrong", [lambda messages: "", lambda: "", lambda messages, previous: ""])
    def test_a_function_that_cannot_take_the_arguments_is_refused_at_once(self, wrong):
        for make in (partial(Conversation, "gpt-4o"), partial(Engine, "memory:", model="gpt-4o")):
            with pytest.raises(ConfigError, match="cannot take the arguments of a summariser") as told:
                make(summariser=wrong)
            assert "messages, *, previous, max_tokens" in told.value.hint

    def test_a_function_that_ends_by_an_odd_exception_keeps_nobody_waiting(self, caplog):
        def stop(messages, *, previous, max_tokens):
            raise StopIteration

        talk = full(summariser=stop)
        talk.compact()

        assert "a summary could not be written: RuntimeError" in caplog.messages

    @pytest.mark.parametrize("preset", ["refold", "opal", "lis", "llms", "librechat"])
    def test_no_warning_speaks_of_a_summary_that_never_came(self, preset, caplog):
        async def hang(messages, *, previous, max_tokens):
            await asyncio.sleep(3_600)

        with Conversation(
            "gpt-4o", window=4_000, preset=preset, summariser=hang, summariser_timeout_s=0.01
        ) as talk:
            play(talk, turns=60)

        reasons = {line.partition("the summariser: ")[2] for line in caplog.messages}
        assert reasons <= {"the model is still writing", "the model took longer than 0.01 seconds"}
        assert reasons

    @pytest.mark.parametrize("preset", ["refold", "opal"])
    def test_one_that_never_answers_is_given_up_and_asked_again(self, preset, monkeypatch, caplog):
        monkeypatch.setattr("refold.engine.summary_jobs.MAX_WRITE_S", 0.02)
        asked = []

        async def hang(messages, *, previous, max_tokens):
            asked.append(len(messages))
            await asyncio.sleep(3_600)

        with Conversation("gpt-4o", window=4_000, preset=preset, summariser=hang) as talk:
            play(talk, turns=60, pause_s=0.01)

        assert len(asked) > 1
        assert "a summary could not be written: TimeoutError" in caplog.messages


def play(talk: Conversation, turns: int, pause_s: float = 0.0) -> None:
    """Talk, with a request in each turn."""
    for number in range(turns):
        asked, *rest = turn(number, "chat")
        talk.add(asked)
        talk.context()
        talk.add(*rest)
        time.sleep(pause_s)
