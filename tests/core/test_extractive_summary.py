"""Summaries that the engine writes itself, through a conversation under the default preset."""

import re

import pytest
from msgspec import structs

from refold.core.digest.extract import HISTORY, TURN
from refold.core.extractive_summary import MAX_DIGEST, mechanical_summary, summarise
from refold.core.plan import SummaryRequest
from refold.core.presets import PRESETS
from refold.core.stage import HANDLE_PATTERN
from refold.core.summary_checks import check_headings_once
from refold.core.summary_text import MODIFIED, READ, RULES
from refold.model.dialect import CHAT
from refold.model.message import Message, ToolCall, assistant, system, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Budget
from refold.model.window import FixedFields
from refold.replay import ReferenceCounter
from tests.core.digest.conversations import WordCounter
from tests.engine.action_player import Played
from tests.engine.conversations import agent_turn
from tests.work import calls_made

TASK = "Port the billing service to PostgreSQL. Never touch the public API of billing/api.py."


def conversation(window=3_000, turns=0) -> Played:
    fixed, policy = FixedFields(CHAT, (system("You are careful."),)), PRESETS["refold"]
    talk = Played(fixed, Budget(window=window), policy, ReferenceCounter())
    talk.add(user(TASK), assistant("I will start with the schema."))
    for number in range(turns):
        talk.add(*agent_turn(number, size=900))
    talk.add(user("What is left to do?"))
    return talk


def sent_text(talk: Played) -> str:
    window = talk.context()
    return "\n".join(message.text for message in (*window.summaries, *window.messages))


def test_the_task_and_the_rules_survive_word_for_word():
    talk = conversation(turns=40)
    assert len(talk.receipts) > 2
    text = sent_text(talk)
    assert TASK in text
    assert text.count("Never touch the public API of billing/api.py.") == 1


def test_what_a_summary_says_was_said():
    talk = conversation(turns=30)
    said = "\n".join(
        " ".join(
            (
                message.text,
                *(call.name + call.arguments for call in message.calls),
                *(r.text for r in message.results),
            )
        )
        for message in talk.folded.branch.messages()
    )
    (summary,) = talk.context().summaries
    words = re.sub(HANDLE_PATTERN, " ", summary.text.removeprefix(talk.frame.policy.texts.opening))
    made_up = [word for word in re.findall(r"[A-Za-z_]*\d[\w./]*", words) if word not in said]
    assert made_up == []


def test_a_fact_that_was_used_is_still_known_long_after_it_left():
    talk = conversation(turns=3)
    call = ToolCall("id-1", "deploy", '{"ticket": "OPS-48213"}')
    talk.add(Message("assistant", (call,)), tool("id-1", "deployed as release-7f3a9c"))
    talk.add(assistant("OPS-48213 went out as release-7f3a9c."))
    for number in range(10, 30):
        talk.add(*agent_turn(number, size=900))
    talk.add(user("Which release was it?"))
    text = sent_text(talk)
    assert "OPS-48213" in text
    assert "release-7f3a9c" in text


def worked(number: int) -> list[Message]:
    """A turn in which the agent reads one file and changes another."""
    *turn, done = agent_turn(number, size=900)
    call = ToolCall(f"edit-{number}", "edit_file", f'{{"path": "src/g{number}.py", "new": "limit_{number}"}}')
    return [*turn, Message("assistant", (call,)), tool(f"edit-{number}", "changed"), done]


def test_fifty_compactions_in_a_row_keep_rules_and_files_and_repeat_no_heading():
    talk, number, sizes = conversation(), 0, []
    talk.add(user("From now on, always answer in Norwegian."), assistant("Ja."))
    while len(sizes) < 50:
        before = talk.folded.summaries
        talk.add(*worked(number))
        number += 1
        if talk.folded.summaries is not before:
            (summary,) = talk.folded.summaries
            assert check_headings_once(summary.text).passed
            sizes.append(summary.tokens)
    text = talk.folded.summaries[0].text
    assert TASK in text
    assert "- From now on, always answer in Norwegian." in text
    assert max(sizes) <= 0.6 * 3_000
    assert max(sizes[25:]) <= 1.1 * max(sizes[:25])
    assert text.count(MODIFIED) == text.count(READ) == text.count(RULES) == 1
    shown = [call.arguments for item in talk.folded.items.items for call in item.message.calls]
    oldest = next(at for at in range(number) if any(f"src/g{at}.py" in arguments for arguments in shown))
    assert f"- src/g{oldest - 1}.py" in text
    assert f"- src/g{oldest}.py" not in text
    assert talk.folded.ledger.modified == tuple(f"src/g{index}.py" for index in range(number))
    assert talk.folded.ledger.read == tuple(f"src/f{index}.py" for index in range(number))
    assert sum(isinstance(talk.recall(f"#m{at}"), Message) for at in range(len(talk.folded.branch))) > 300


def test_every_handle_in_a_window_opens_an_original():
    talk = conversation(turns=30)
    handles = set(re.findall(HANDLE_PATTERN, sent_text(talk)))
    assert handles
    assert all(talk.recall(handle) is not None for handle in handles)


@pytest.mark.parametrize(
    "query, found", [("which release went out", "release-7f3a9c"), ("deploy ticket", "OPS-48213")]
)
def test_search_finds_what_left_the_window(query, found):
    talk = conversation(turns=1)
    call = ToolCall("id-1", "deploy", '{"ticket": "OPS-48213"}')
    talk.add(Message("assistant", (call,)), tool("id-1", "went out as release-7f3a9c"), assistant("Done."))
    for number in range(10, 40):
        talk.add(*agent_turn(number, size=900))
    hit = talk.search(query, max_tokens=200)
    assert found in hit
    assert ReferenceCounter().text(hit) <= 200
    assert re.search(HANDLE_PATTERN, hit)


def test_search_for_nothing_finds_nothing():
    assert conversation(turns=2).search("zzz qqq", max_tokens=500) == ""
    assert conversation(turns=2).search("code", max_tokens=0) == ""


def request(talk: Played, last: int, *, first: int = 0, room: int = 1_000, **more) -> SummaryRequest:
    """What a plan would ask for that keeps the messages from `last` on."""
    items = talk.folded.items.items
    return SummaryRequest(
        first, last, items[first:last], items[last:], more.pop("previous", ()), room, **more
    )


def roomy(turns: int) -> Played:
    return conversation(window=100_000, turns=turns)


def under(talk: Played, **changes):
    return structs.replace(talk.frame, policy=structs.replace(talk.frame.policy, **changes))


def test_an_own_summary_covers_its_own_messages_only():
    talk = roomy(20)
    first = summarise(request(talk, 30), talk.folded, under(talk, scope="own"))
    asked = request(talk, 60, first=30, previous=(first,))
    second = summarise(asked, talk.folded, under(talk, scope="own"))
    assert (first.first, first.last, first.scope) == (0, 30, "own")
    assert (second.first, second.last, second.scope) == (30, 60, "own")
    handles = {int(number) for number in re.findall(r"^#m(\d+)", second.text, re.MULTILINE)}
    assert handles
    assert min(handles) >= 30
    assert not set(second.reserve) & set(first.reserve)


def test_a_cumulative_summary_covers_everything_so_far():
    talk = roomy(20)
    first = summarise(request(talk, 30), talk.folded, talk.frame)
    second = summarise(request(talk, 60, previous=(first,)), talk.folded, talk.frame)
    assert (second.first, second.last, second.scope) == (0, 60, "cumulative")
    seqs = {talk.folded.facts.shared.pieces[number].seq for number in second.reserve}
    assert min(seqs) < 30 < max(seqs)


def test_after_a_mechanical_summary_the_digest_is_made_from_the_originals():
    talk = roomy(20)
    talk.add(assistant("The release is release-7f3a9c."), *agent_turn(90))
    previous = Summary("nothing known", 0, 84, 10, "mechanical", "cumulative")
    found = summarise(request(talk, 86, previous=(previous,)), talk.folded, talk.frame)
    assert "release-7f3a9c" in found.text


@pytest.mark.feature("O5")
def test_a_split_turn_is_summed_up_in_two_parts():
    talk = roomy(3)
    found = summarise(request(talk, 12, turn_from=6), talk.folded, talk.frame)
    history, turn = found.text.split(f"{TURN}\n")
    assert HISTORY in history
    assert all(int(number) >= 6 for number in re.findall(r"^#m(\d+)", turn, re.MULTILINE))


@pytest.mark.feature("O7")
@pytest.mark.parametrize("scope, first", [("cumulative", 0), ("own", 30)])
def test_a_mechanical_summary_counts_lists_and_keeps_the_previous(scope, first):
    talk = roomy(20)
    previous = Summary("The user moved to Oslo.", 0, 30, 20, "model", scope)
    asked = request(talk, 60, first=first, previous=(previous,), room=2_000)
    found = mechanical_summary(asked, talk.folded, under(talk, scope=scope))
    assert (found.kind, found.first, found.last, found.scope) == ("mechanical", first, 60, scope)
    assert "The user moved to Oslo." in found.text
    assert re.search(r"\d+ user, \d+ assistant, \d+ tool", found.text)
    assert "- src/f0.py" in found.text
    assert "- Never touch the public API of billing/api.py." in found.text


@pytest.mark.feature("O7")
def test_of_a_mechanical_summary_the_previous_text_goes_last():
    talk = roomy(60)
    text = "\n".join(f"Fact {n} of the summary before." for n in range(60))
    previous = Summary(text, 0, 30, 900, "model", "cumulative")
    kept = []
    for room in (3_000, 1_200, 600, 450, 300, 100, 40):
        asked = request(talk, 200, previous=(previous,), room=room)
        found = mechanical_summary(asked, talk.folded, talk.frame)
        assert found.tokens <= room
        assert ReferenceCounter().text(found.text) <= found.tokens
        kept.append(found.text)
    whole = [text in each for each in kept]
    assert whole == sorted(whole, reverse=True)
    assert whole[:3] == [True, True, True]
    assert "- src/f" in kept[0]
    cut = kept[whole.index(False)]
    assert cut.startswith("Task #m0: Port the billing service to PostgreSQL.")
    assert "\nFact 0 of the summary before.\n" in cut
    assert cut.endswith(" of the summary before.\n[… #s0 …]")


def test_a_summary_keeps_to_its_room():
    talk = roomy(60)
    for room in (4_000, 1_000, 300, 100, 50):
        found = summarise(request(talk, 200, room=room), talk.folded, talk.frame)
        assert found.tokens <= room


def test_the_room_holds_for_any_counter():
    counter = WordCounter()
    talk = Played(FixedFields(CHAT), Budget(window=100_000), PRESETS["refold"], counter)
    talk.add(user(TASK), assistant("I will start with the schema."))
    for number in range(20):
        talk.add(user(f"Never open the door number {number} of the long and winding hall of the old house."))
        talk.add(*worked(number)[1:])
    for room in (9_000, 2_000, 600):
        found = summarise(request(talk, 60, room=room), talk.folded, talk.frame)
        assert counter.text(found.text) <= found.tokens <= room
        assert "#m" in found.text


def test_the_beginning_and_the_end_of_a_long_task_are_kept():
    talk = Played(FixedFields(CHAT), Budget(window=4_000), PRESETS["refold"], ReferenceCounter())
    points = "\n".join(f"Point {n} of the long description of what has to be done." for n in range(60))
    talk.add(user(f"Port the billing service.\n{points}\nStart with the schema."), assistant("Yes."))
    for number in range(30):
        talk.add(*agent_turn(number, size=900))
    text = talk.folded.summaries[-1].text
    assert text.startswith("Task #m0: Port the billing service.\nPoint 0")
    assert "Start with the schema." in text
    assert "[… #m0 …]" in text


def test_summing_up_takes_no_more_work_however_long_the_conversation_is():
    def work(turns):
        talk = roomy(turns)
        asked = request(talk, 4 * turns - 10, room=50_000)
        assert summarise(asked, talk.folded, talk.frame).tokens < 1.5 * MAX_DIGEST
        return calls_made(lambda: summarise(asked, talk.folded, talk.frame))

    assert work(900) < 1.2 * work(450)


@pytest.mark.feature("C11", "X6")
def test_what_a_model_wrote_is_carried_along_by_every_digest_after_it():
    talk = Played(FixedFields(CHAT), Budget(window=6_000), PRESETS["refold"], ReferenceCounter())
    for number in range(4):
        talk.add(*agent_turn(number, size=900))
    asked = talk.wanted_now()
    words = "## Goal\nPort the billing service.\n\n## Open tasks\nThe order 99123 still fails."
    talk.prepare(Summary(words, asked.first, asked.last, 60, "model", "cumulative"))
    talk.compact()
    assert talk.folded.summaries[-1].kind == "model"
    for number in range(4, 40):
        talk.add(*agent_turn(number, size=900))
    newest = talk.folded.summaries[-1]
    assert len(talk.folded.past) >= 3
    assert newest.kind == "extractive"
    assert "## Goal\nPort the billing service." in newest.text
    assert "The order 99123 still fails." in newest.text
    assert check_headings_once(newest.text).passed
