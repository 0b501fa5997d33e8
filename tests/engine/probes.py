"""Conversations on which compaction elsewhere breaks, each told in the three dialects.

One idea: a conversation carries its own evidence. The goal stands at the head of the first message and a marker at the tail
of the last, so whoever reads a window can say what was lost.
"""

from random import Random

from refold.model.dialect import Dialect
from refold.model.message import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult, user

GOAL = "GOAL-7F3A: move the invoice export to the new ledger, keep the public API, and do not touch billing/tax.py."
LATEST = "LATEST-91C2"
RULES = "RULES-44D1: you are a careful engineer."
WORDS = (
    "ledger", "invoice", "export", "parser", "cache", "branch", "handler", "retry", "schema", "column",
    "migration", "queue", "worker", "token", "session", "policy", "window", "budget",
    "trigger", "pipeline", "adapter", "socket", "timeout", "release", "config", "secret", "backup", "cursor", "record",
)  # fmt: skip
LONG = 800
"""Lines of a text that is larger than the window of the tests: about twice 4,000 tokens."""
PICTURE = Image(media_type="image/png", data="iVBORw0KGgoAAAANSUhEUg==")


class Script:
    """A conversation being written down, one speaker after the other, as its dialect wants it."""

    def __init__(self, dialect: Dialect, seed: int = 0, long: int = LONG) -> None:
        self.dialect, self.random, self.long = dialect, Random(seed), long
        self.messages: list[Message] = []
        self.calls = 0

    def prose(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, k=words)).capitalize() + "."

    def log(self, lines: int) -> str:
        random = self.random
        return "\n".join(
            f"{number:>4} {random.choice(WORDS)}_{random.choice(WORDS)} = {random.randint(0, 9_999)}"
            for number in range(lines)
        )

    def say(self, text: str) -> None:
        self.messages.append(user(text))

    def answer(self, *parts: Part) -> None:
        said = parts or (Text(self.prose(25)),)
        together = [said] if not self.dialect.spreads_calls else [(part,) for part in said]
        self.messages += [Message("assistant", tuple(group)) for group in together]

    def act(
        self, *outputs: tuple[Part, ...] | str, before: tuple[Part, ...] = (), arguments: str = ""
    ) -> None:
        """One reply that calls a tool for every output, and the results."""
        calls = [self._call(arguments) for _ in outputs]
        self.answer(*before, *calls)
        results = [
            ToolResult(call.id, (Text(output),) if isinstance(output, str) else output)
            for call, output in zip(calls, outputs, strict=True)
        ]
        together = [results] if self.dialect.joint_results else [[result] for result in results]
        self.messages += [Message("tool", tuple(group)) for group in together]

    def _call(self, arguments: str) -> ToolCall:
        self.calls += 1
        path = f"src/{self.random.choice(WORDS)}/{self.random.choice(WORDS)}.py"
        return ToolCall(f"call_{self.calls}", "read_file", arguments or f'{{"path": "{path}"}}')

    def turns(self, count: int, *, parallel: float = 0.5, lines: int = 25) -> None:
        """Turns of one to three replies with tools, and an answer."""
        for _ in range(count):
            if self.messages:
                self.say(self.prose(20))
            else:
                self.say(f"{GOAL}\n{self.prose(20)}")
            for _ in range(self.random.randint(1, 3)):
                batch = self.random.randint(2, 3) if self.random.random() < parallel else 1
                self.act(*(self.log(self.random.randint(3, lines)) for _ in range(batch)))
            self.answer()

    def ask(self) -> list[Message]:
        """End with a question."""
        self.say(f"{self.prose(10)} {LATEST}")
        return self.messages

    def work(self) -> list[Message]:
        """End with the results of two calls at once."""
        self.say(self.prose(10))
        self.act(self.log(5), f"{self.log(5)}\n{LATEST}")
        return self.messages


def sweep(dialect: Dialect, number: int) -> list[Message]:
    """One of the conversations for the cut sweep: half of the replies call in parallel, every other one ends on results."""
    script = Script(dialect, seed=number)
    script.turns(10 if number % 2 else 8)
    return script.work() if number % 2 else script.ask()


def parallel(script: Script) -> list[Message]:
    script.turns(14, parallel=1.0)
    return script.ask()


def ends_on_tool(script: Script) -> list[Message]:
    script.turns(14)
    return script.work()


def multimodal(script: Script) -> list[Message]:
    script.turns(8)
    for _ in range(4):
        script.messages.append(Message("user", (Text(script.prose(15)), PICTURE)))
        if script.dialect.media_in_results:
            script.act((Text(script.log(5)), PICTURE))
        script.answer()
    script.turns(2)
    return script.ask()


def empty(script: Script) -> list[Message]:
    """Tools that say nothing, replies of calls alone, and replies, results and questions with blank text."""
    script.turns(8)
    for _ in range(6):
        script.say(script.prose(15))
        script.act("", script.log(20))
        script.act((), before=(Text(""),))
        script.messages.append(Message("assistant", (Text(""),)))
        script.say("")
    script.turns(2)
    return script.ask()


def thinking(script: Script) -> list[Message]:
    """Signed and sealed thinking in every reply, and an open tool loop at the end."""
    script.turns(2)
    for number in range(10):
        script.say(script.prose(15))
        for step in range(2):
            thought = Reasoning(script.prose(60), signature=f"sig-{number}-{step}")
            sealed = Reasoning("", sealed="c2VhbGVk" * 4)
            script.act(script.log(12), before=(thought, sealed, Text(script.prose(8))))
        script.answer(Reasoning(script.prose(40), signature=f"sig-{number}"), Text(script.prose(20)))
    script.say(script.prose(10))
    script.act(f"{script.log(5)}\n{LATEST}", before=(Reasoning(script.prose(30), signature="sig-now"),))
    return script.messages


def huge_last_user(script: Script) -> list[Message]:
    script.turns(10)
    script.say(f"HEAD-5B {script.log(script.long)}\n{LATEST}")
    return script.messages


def huge_last_tool(script: Script) -> list[Message]:
    script.turns(10)
    script.say(script.prose(10))
    script.act(f"HEAD-5B {script.log(script.long)}\n{LATEST}")
    return script.messages


def huge_parallel_tools(script: Script) -> list[Message]:
    """Six results at once, each as large as the window."""
    script.turns(4)
    script.say(script.prose(10))
    script.act(*(script.log(400) for _ in range(5)), f"{script.log(400)}\n{LATEST}")
    return script.messages


def huge_input(script: Script) -> list[Message]:
    """A file written by a tool call that is larger than the window."""
    script.turns(6)
    script.say(script.prose(10))
    text = script.log(script.long).replace("\n", "\\n")
    script.act("written", arguments=f'{{"path": "src/new.py", "content": "{text}"}}')
    script.answer()
    return script.ask()


def huge_first_user(script: Script) -> list[Message]:
    """The goal, and a pasted file after it."""
    script.say(f"{GOAL}\n{script.log(script.long)}")
    script.answer()
    script.turns(6)
    return script.ask()


def one_message(script: Script) -> list[Message]:
    script.say(f"{GOAL}\n{script.log(script.long)}\n{LATEST}")
    return script.messages


def autonomous(script: Script) -> list[Message]:
    """An agent that works on alone, long after the only thing it was told."""
    script.say(GOAL)
    for _ in range(40):
        script.act(script.log(15), script.log(5), before=(Text(script.prose(10)),))
    script.act(f"{script.log(5)}\n{LATEST}")
    return script.messages


def cjk(script: Script) -> list[Message]:
    script.say(f"{GOAL}\n请把发票导出迁移到新的账本,保持公共接口不变。")
    for number in range(30):
        script.act("测试结果：第" + "一二三四五六七八九十" * 12 + f" {number}")
        script.answer(Text("我已经检查了这个文件,下一步是修改导出的处理程序。" * 4))
        script.say("继续。請繼續。続けてください。계속하세요." * 2)
    script.answer()
    return script.ask()


def orphan_result_in_input(script: Script) -> list[Message]:
    """A result whose call was lost on the way, in the middle and near the end."""
    for count in (7, 5):
        script.turns(count)
        script.say(script.prose(10))
        script.messages.append(Message("tool", (ToolResult("call_lost", (Text(script.log(5)),)),)))
        script.answer()
    return script.ask()


def orphan_call_in_input(script: Script) -> list[Message]:
    """Calls that nobody answered: a whole batch, and one of two."""
    script.turns(6)
    script.say(script.prose(10))
    script.answer(Text(script.prose(5)), script._call(""), script._call(""))
    script.turns(5)
    script.say(script.prose(10))
    script.act(script.log(5), before=(script._call(""),))
    script.answer()
    return script.ask()


def many_small(script: Script) -> list[Message]:
    """Nothing large anywhere, only a great many messages."""
    script.turns(1)
    for _ in range(400):
        script.say("ok, next")
        script.answer(Text("done"))
    return script.ask()


def latest_turns(messages: list[Message], count: int) -> list[Message]:
    """The end of a conversation: so many messages of the user, and what followed each."""
    begun = [number for number, message in enumerate(messages) if message.role == "user"]
    return messages[begun[-count:][0] :]


PROBES = {
    probe.__name__: probe
    for probe in (
        parallel,
        ends_on_tool,
        multimodal,
        empty,
        thinking,
        huge_last_user,
        huge_last_tool,
        huge_parallel_tools,
        huge_input,
        huge_first_user,
        one_message,
        autonomous,
        cjk,
        orphan_result_in_input,
        orphan_call_in_input,
        many_small,
    )
}
"""By name, what a conversation is about. Each writes itself into a script."""
