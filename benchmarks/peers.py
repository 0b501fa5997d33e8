"""Other libraries on the same conversation, if they are installed: `pip install langchain-core litellm`."""

from collections.abc import Callable
from importlib.util import find_spec

from benchmarks.conversation import Writer, conversation, turn


def peers(timed: Callable[[Callable[[], object], int], float]) -> dict[str, float]:
    """Milliseconds for the decision before a call, one turn after 2,000 messages, below the trigger."""
    history = conversation(2_000) + turn(Writer(5), 1)
    found: dict[str, float] = {}
    if find_spec("langchain_core"):
        found |= langchain(history, timed)
    if find_spec("litellm"):
        found |= litellm(history, timed)
    return found


def langchain(history: list[dict], timed: Callable[[Callable[[], object], int], float]) -> dict[str, float]:
    from langchain_core.messages import convert_to_messages, trim_messages
    from langchain_core.messages.utils import count_tokens_approximately

    messages = convert_to_messages(history)

    def approximately() -> object:
        return trim_messages(
            messages,
            max_tokens=10**7,
            token_counter=count_tokens_approximately,
            start_on="human",
            include_system=True,
        )

    return {"langchain-core trim_messages, chars/4": timed(approximately, 7)}


def litellm(history: list[dict], timed: Callable[[Callable[[], object], int], float]) -> dict[str, float]:
    from litellm.utils import trim_messages

    def run() -> object:
        return trim_messages([dict(message) for message in history], model="gpt-4o", max_tokens=10**7)

    return {"litellm trim_messages, tiktoken": timed(run, 5)}
