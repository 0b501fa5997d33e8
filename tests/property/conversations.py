"""Random conversations: parallel calls, repeated ids, thinking, images, and everything that can go wrong with them."""

from hypothesis import strategies as st

from refold.model.dialect import Dialect
from refold.model.message import Image, Message, Reasoning, Text, ToolCall, ToolResult

IDS = ("call_0", "call_1", "x", "y")
words = st.text(st.sampled_from("ab é\n"), max_size=6)
said = st.builds(Text, words.map(lambda text: text + "."))
blanks = st.sampled_from([Text(""), Text(" ")])
pictures = st.builds(lambda data: Image(media_type="image/png", data=data), st.sampled_from(["AAAA", "BBBB"]))
signed = st.builds(Reasoning, words, st.just("signature"))
users = st.lists(st.one_of(said, pictures), min_size=1, max_size=2).map(
    lambda parts: Message("user", tuple(parts))
)


@st.composite
def exchanges(draw, dialect: Dialect) -> list[Message]:
    """A reply with calls, and all of their results, as the dialect wants them."""
    ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True))
    calls = [ToolCall(call_id, "look", draw(st.sampled_from(["{}", '{"a":1}']))) for call_id in ids]
    thoughts = draw(st.lists(signed, max_size=1))
    text = draw(st.lists(said, max_size=1))
    results = [ToolResult(call_id, (Text(draw(words)),)) for call_id in draw(st.permutations(ids))]
    if dialect.spreads_calls:
        reply = [Message("assistant", (part,)) for part in (*thoughts, *text, *calls)]
    else:
        reply = [Message("assistant", (*thoughts, *text, *calls))]
    if dialect.joint_results:
        return [*reply, Message("tool", (*results, *draw(st.lists(said, max_size=1))))]
    answers = [Message("tool", (result,)) for result in results]
    if not dialect.results_at_once and draw(st.integers(0, 3)) == 0:
        answers.insert(draw(st.integers(0, len(answers))), draw(users))
    return [*reply, *answers]


@st.composite
def sound(draw, dialect: Dialect) -> list[Message]:
    """A conversation that a provider would take, up to ids that repeat across turns."""
    messages: list[Message] = []
    for _ in range(draw(st.integers(1, 4))):
        messages.append(draw(users))
        for _ in range(draw(st.integers(0, 3))):
            messages.extend(draw(exchanges(dialect)))
        if draw(st.booleans()):
            messages.append(Message("assistant", (draw(said),)))
    return _unique(messages) if dialect.unique_call_ids else messages


@st.composite
def broken(draw, dialect: Dialect) -> list[Message]:
    """A conversation with messages lost, doubled, displaced and emptied, and odd ones put in."""
    messages = draw(sound(dialect))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(messages)))
        odd = draw(st.one_of(_odd_messages(), st.sampled_from(messages or [Message("user", ())])))
        match draw(st.sampled_from(["drop", "insert", "swap"])):
            case "drop":
                del messages[at : at + 1]
            case "insert":
                messages.insert(at, odd)
            case "swap" if at + 1 < len(messages):
                messages[at], messages[at + 1] = messages[at + 1], messages[at]
    return messages


def _odd_messages() -> st.SearchStrategy[Message]:
    ids = st.sampled_from((*IDS, ""))
    calls = st.builds(ToolCall, ids, st.just("look"), st.sampled_from(["{}", "{bad", "[1]"]))
    results = st.builds(ToolResult, ids, st.tuples(said))
    unsigned = st.builds(Reasoning, words)
    return st.one_of(
        st.lists(st.one_of(said, calls, signed, unsigned), max_size=4).map(
            lambda parts: Message("assistant", tuple(parts))
        ),
        st.lists(results, min_size=1, max_size=2).map(lambda parts: Message("tool", tuple(parts))),
        st.builds(
            lambda role, parts: Message(role, tuple(parts)),
            st.sampled_from(["user", "assistant", "tool"]),
            st.lists(st.one_of(said, blanks, calls, results, signed), max_size=4),
        ),
        st.just(Message("user", ())),
    )


def _unique(messages: list[Message]) -> list[Message]:
    """Give every batch its own ids."""
    out = []
    for number, message in enumerate(messages):
        batch = number if message.role == "assistant" else number - 1
        out.append(Message(message.role, tuple(_renamed(part, batch) for part in message.parts)))
    return out


def _renamed(part, batch: int):
    match part:
        case ToolCall():
            return ToolCall(f"{part.id}-{batch}", part.name, part.arguments)
        case ToolResult():
            return ToolResult(f"{part.call_id}-{batch}", part.parts)
    return part
