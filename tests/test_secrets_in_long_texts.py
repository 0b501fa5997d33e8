"""A summariser is given no secret of a long text that is full of them."""

from __future__ import annotations

import refold

PROSE = "The ship left the harbour at dawn and nobody saw it. " * 400


async def test_a_summariser_is_given_no_secret_of_a_long_text():
    given, secrets = [], [f"Zq{at}x!{at * 7919}Kd" for at in range(1, 400)]
    settings = "".join(f"DB_PASSWORD_{at}={secret}\n" for at, secret in enumerate(secrets))
    said = f"Find the ship. {PROSE}{settings}{PROSE}It was {secrets[7]}, and then {secrets[-1]}. {PROSE}"

    async def summarise(messages, *, previous, max_tokens):
        given.append(str(messages))
        return "## Goal\nFind the ship.\n\n## Next Steps\n1. Go on."

    async with refold.Conversation("gpt-4o", window=30_000, max_output=500, summariser=summarise) as talk:
        await talk.add({"role": "user", "content": said})
        await talk.add({"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Go on."})
        await talk.compact()

    assert "ship left the harbour" in given[0]
    assert [secret for secret in secrets if secret in given[0]] == []
