from __future__ import annotations

import json

from refold.cli.commands.stats import shown_dollars
from refold.sync import Engine


def talk(store, *, usage=True) -> None:
    """A long conversation in a small window, with a summariser that costs something."""
    with Engine(str(store), model="gpt-4o", window=8_000) as engine:
        chat = engine.conversation("a")
        for number in range(30):
            chat.add(f"Question {number}: " + "lorem ipsum dolor " * 60)
            sent = chat.context()
            if usage:
                size = sum(len(str(one)) for one in sent["messages"]) // 4
                chat.record({"prompt_tokens": size, "completion_tokens": 50})
            chat.add({"role": "assistant", "content": "Answer. " * 40})


def test_tokens_and_money_that_were_not_sent_are_added_up(refold, store):
    talk(store)

    found = json.loads(refold("stats", "--json").out)
    (gpt,) = found["replies"]
    assert (gpt["model"], gpt["calls"], found["summaries"]) == ("gpt-4o", 30, [])
    assert found["unsent"] == gpt["unsent"] > found["sent"] / 4
    assert found["net_tokens"] == found["unsent"]
    assert abs(found["net_dollars"] - gpt["saved"]) < 1e-9
    table = refold("stats").out.splitlines()
    assert [line.split()[0] for line in table[1:5]] == ["sent", "not", "summaries", "saved"]
    assert f"{found['unsent']:,}" in table[2]
    assert max(map(len, table)) <= 80


def test_the_price_of_summaries_is_taken_off(refold, store):
    talk(store)
    before = json.loads(refold("stats", "--json").out)
    with Engine(
        str(store), model="gpt-4o", window=8_000, summariser=lambda *_, **__: "A short summary."
    ) as engine:
        engine.conversation("a").compact()

    after = json.loads(refold("stats", "--json").out)
    spent = sum(one["usage"]["input"] + one["usage"]["output"] for one in after["summaries"])
    assert after["net_tokens"] == before["net_tokens"] - spent
    told = "the prices of calls that name no model are not known: they count as 0"  # a function has no model
    assert told in " ".join(refold("stats").err.split())


def test_calls_of_the_last_days_only(refold, store):
    talk(store)

    assert json.loads(refold("stats", "--days", "2", "--json").out)["sent"] > 0
    assert refold("stats", "--days", "0").code == 2
    assert refold("stats", "--days", "x").err.startswith(
        "error: invalid value for '--days': it is not a number\n"
    )


def test_a_store_without_calls_has_no_totals(refold, store):
    talk(store, usage=False)

    result = refold("stats")
    assert (result.code, result.out) == (0, "")
    assert "no calls of the owner 'local' were recorded" in result.err


def test_an_amount_next_to_nothing_has_no_sign():
    amounts = (-0.0001, -0.0, 0.004, -0.01)

    assert [shown_dollars(one) for one in amounts] == ["0.00", "0.00", "0.00", "-0.01"]
