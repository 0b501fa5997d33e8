"""Runs real clients through the gateway: long sessions in small windows, before the scripted provider.

.venv/bin/python -m scripts.smoke_clients                         the clients on PATH and in this environment
.venv/bin/python -m scripts.smoke_clients --clients DIR           those installed in DIR (see below) as well
.venv/bin/python -m scripts.smoke_clients --only codex --json     one client, as JSON

To install them into a folder of their own:
  cd DIR && npm install @anthropic-ai/claude-code @openai/codex opencode-ai @continuedev/cli cline openai @anthropic-ai/sdk
  npm install --prefix DIR @librechat/agents      (the part of LibreChat that asks a model; it needs no database)
  npm install --prefix DIR @aaif/goose-binary-linux-x64 && ln -s ../@aaif/goose-binary-linux-x64/bin/goose DIR/node_modules/.bin/
  python3 -m venv DIR/llm && DIR/llm/bin/pip install llm openai anthropic
  python3 -m venv DIR/aider && DIR/aider/bin/pip install aider-chat
Programs are looked for in DIR/node_modules/.bin and in DIR/*/bin, then on PATH. npm may ask to approve the install scripts of
claude-code and opencode-ai, which put their programs in place.

Everything runs in a network namespace with nothing but loopback; where none can be made, nothing is run. Each client
has a home folder, a gateway (`refold serve`) and a scripted provider of its own, which checks every request as real ones
do. Early in each session a code word, a rule and a number are told; then texts fill the window several times.

`calls` are those of the client, `folds` those that were folded smaller than the one before, `refused` are the requests that the provider or the gateway refused, and for each of the
three facts the table says where it is in the end: in the last request (`window`), only in `refold recall` (`recall`), or nowhere
(`lost`).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from refold.testing import Received, Refuse, Say, ScriptedUpstream, call, say, think

Environment = dict[str, str]
INSIDE = "REFOLD_SMOKE_INSIDE"
ROOT = Path(__file__).parents[1]

# The session

WORD, NUMBER, RULE = "MARIGOLD-LANTERN-58", "7351942", "Never edit billing/ledger.py before I have agreed."
TASK = f"Read the notes of the harbour office one after the other, and tell me when you are done. The code word is {WORD}. {RULE}"
LAST = "Thank you. Which invoice was it, and what was the code word?"
WRITER = "smoke-writer"
SUMMARY = (
    "## Goal\nThe notes of the harbour office are read one after the other.\n"
    "## Progress\nSeveral notes were read; nothing was changed.\n## Next\nRead the next note."
)
"""What a careless model writes: none of the facts. They have to survive without it."""
_WORDS = [
    "harbour",
    "lantern",
    "anchor",
    "signal",
    "cargo",
    "ballast",
    "rudder",
    "compass",
    "tide",
    "mooring",
    "beacon",
    "hull",
    "crane",
    "ledger",
    "pilot",
]
NOTE_LINES = 60


def prose(seed: int, words: int) -> str:
    return " ".join(f"{_WORDS[(seed * 7 + at * 3) % len(_WORDS)]}{(seed * at) % 89}" for at in range(words))


def note(number: int) -> str:
    """A note of some 1,500 tokens. The second one has the number in its middle."""
    lines = [f"{at:02} {prose(number * 100 + at, 9)}." for at in range(NOTE_LINES)]
    if number == 1:
        lines[NOTE_LINES // 2] = f"The unpaid invoice has the number {NUMBER}."
    return "\n".join(lines)


def question(turn: int) -> str:
    """What a person types in a chat without tools."""
    if turn == 0:
        return TASK
    return f"Note {turn}:\n{note(turn)}\nGo on with the next one."


LOG = "log.txt"


def log_after(turns: int) -> str:
    """What the file of a client that edits has after this many replies."""
    return "".join(f"Note {number} is read.\n" for number in range(turns))


# The provider


class Provider:
    """Answers a session: the client's tools are called `rounds` times, then it is done."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.main: list[Received] = []
        """The requests of the session itself, without summaries and titles."""

    def __call__(self, received: Received) -> Say:
        if received.model == WRITER:
            return say(SUMMARY)
        tools = {tool.name: tool.schema for tool in received.request.tools} if received.request else {}
        if self.rounds and not tools:
            return say("The harbour office")  # the title of the session
        self.main.append(received)
        done = len(self.main)
        if done > self.rounds:
            edit = f"\n\n{LOG}\n```\n{log_after(done)}```\n" if (self.folder / LOG).exists() else ""
            return say(f"I have read it: {prose(done, 30)}.{edit}")
        thoughts = (think(f"Note {done - 1} is next."),) if _thinks(received) else ()
        found = self._read(tools, self.folder / f"note-{done - 1:02}.txt")
        if found is None:
            return say("There is no tool to read with.")
        return say(*thoughts, f"I read note {done - 1}. {prose(done, 12)}.", found)

    def _read(self, tools: dict[str, str], path: Path) -> Any:
        """The call by which this client reads a file."""
        command = f"cat {path}"
        in_shell: object = ["bash", "-lc", command] if '"array"' in tools.get("shell", "") else command
        for name, arguments in (
            ("Read", {"file_path": str(path), "filepath": str(path)}),
            ("read", {"filePath": str(path)}),
            ("read_file", {"path": str(path)}),
            ("read_files", {"files": [{"path": str(path)}]}),
            ("run_commands", {"commands": [command]}),
            ("exec_command", {"cmd": command}),
            ("shell_command", {"command": command}),
            ("shell", {"command": in_shell}),
        ):
            if name in tools:
                return call(name, arguments)
        return None


def _thinks(received: Received) -> bool:
    """True if an Anthropic request asks for thinking; then a reply with calls begins with some."""
    body = received.json
    thinking = body.get("thinking") if isinstance(body, dict) else None
    return isinstance(thinking, dict) and thinking.get("type") != "disabled"


# The gateway


class Gateway(Struct):
    url: str
    store: Path
    log: Path

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of the log about calls."""
        for line in self.log.read_text().splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                if "status" in found:
                    yield found


@contextmanager
def gateway(folder: Path, upstream: str, window: int) -> Iterator[Gateway]:
    """`refold serve` on a free port."""
    store, log = folder / "chats.db", folder / "gateway.log"
    argv = [
        sys.executable,
        "-m",
        "refold",
        "serve",
        "--port",
        "0",
        "--store",
        str(store),
        "--window",
        str(window),
    ]
    argv += ["--upstream", f"{upstream}/v1", "--upstreams-formats", "default=chat,responses,anthropic"]
    argv += ["--server-log", "json", "--summariser-models", f"{WRITER}@{upstream}/v1"]
    with log.open("w") as errors:
        served = subprocess.Popen(
            argv, cwd=folder, env=home(folder), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield Gateway(_address(served, log), store, log)
        finally:
            served.terminate()
            served.wait(30)


def _address(served: subprocess.Popen[str], log: Path) -> str:
    assert served.stdout is not None
    for line in served.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise SystemExit(f"error: the gateway did not start\n{log.read_text()[-2000:]}")


def home(folder: Path, **more: str) -> Environment:
    """An environment with a home of its own, and nothing of this machine's settings but PATH."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM", "NODE_PATH") if name in os.environ}
    own = {"HOME": str(folder), "TMPDIR": str(folder), "OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any"}
    return {**kept, **own, "PYTHONPATH": str(ROOT / "src"), **more}


# The clients: each is a function that plays the session, and the size of the window for it

PYTHON_OPENAI = """
import sys, json, openai
url, kind, texts = sys.argv[1], sys.argv[2], json.load(sys.stdin)
client, said = openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0), []
for text in texts:
    said.append({"role": "user", "content": text})
    if kind == "chat":
        reply = client.chat.completions.create(model="gpt-4o", messages=said, max_tokens=400).choices[0].message.content
    else:
        reply = client.responses.create(model="gpt-4o", input=said, max_output_tokens=400, store=False).output_text
    said.append({"role": "assistant", "content": reply})
"""
PYTHON_ANTHROPIC = """
import sys, json, anthropic
url, kind, texts = sys.argv[1], sys.argv[2], json.load(sys.stdin)
client, said = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0), []
for text in texts:
    said.append({"role": "user", "content": text})
    with client.messages.stream(model="claude-sonnet-4-5", messages=said, max_tokens=400) as stream:
        reply = stream.get_final_message().content[0].text
    said.append({"role": "assistant", "content": reply})
"""
NODE_OPENAI = """
import { createRequire } from "node:module";
const OpenAI = createRequire(process.argv[4] + "/")("openai");
const { readFileSync } = await import("node:fs");
const [url, kind] = process.argv.slice(2), texts = JSON.parse(readFileSync(0, "utf8")), said = [];
const client = new (OpenAI.OpenAI ?? OpenAI)({ baseURL: url + "/v1", apiKey: "any", maxRetries: 0 });
for (const content of texts) {
  said.push({ role: "user", content });
  const reply = kind === "chat"
    ? (await client.chat.completions.create({ model: "gpt-4o", messages: said, max_tokens: 400 })).choices[0].message.content
    : (await client.responses.create({ model: "gpt-4o", input: said, max_output_tokens: 400, store: false })).output_text;
  said.push({ role: "assistant", content: reply });
}
"""
NODE_ANTHROPIC = """
import { createRequire } from "node:module";
const Anthropic = createRequire(process.argv[4] + "/")("@anthropic-ai/sdk");
const { readFileSync } = await import("node:fs");
const [url] = process.argv.slice(2), texts = JSON.parse(readFileSync(0, "utf8")), said = [];
const client = new (Anthropic.Anthropic ?? Anthropic)({ baseURL: url, apiKey: "any", maxRetries: 0 });
for (const content of texts) {
  said.push({ role: "user", content });
  const stream = client.messages.stream({ model: "claude-sonnet-4-5", messages: said, max_tokens: 400 });
  const reply = (await stream.finalMessage()).content[0].text;
  said.push({ role: "assistant", content: reply });
}
"""
LIBRECHAT = """
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
const [url, clients] = process.argv.slice(2), find = createRequire(clients + "/"), messages = [];
const { HumanMessage } = find("@langchain/core/messages"), { tool } = find("@langchain/core/tools");
const { Providers, Run } = find("@librechat/agents");
const schema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const read = tool(({ path }) => readFileSync(path, "utf8"), { name: "read_file", description: "Reads a file.", schema });
const configuration = { baseURL: url + "/v1", defaultHeaders: { "X-Refold-Conversation": "harbour" } };
const llmConfig = { provider: Providers.OPENAI, model: "gpt-4o", apiKey: "any", streaming: true, maxRetries: 0, configuration };
for (const text of JSON.parse(readFileSync(0, "utf8"))) {
  const graphConfig = { type: "standard", instructions: "You keep the books.", tools: [read], llmConfig };
  const run = await Run.create({ runId: crypto.randomUUID(), graphConfig, skipCleanup: true });
  messages.push(new HumanMessage(text));
  const options = { streamMode: "values", version: "v2", recursionLimit: 200, configurable: { thread_id: "harbour" } };
  await run.processStream({ messages }, options);
  messages.push(...run.getRunMessages());
}
"""
CODEX = """
model = "gpt-5"
model_provider = "refold"
[model_providers.refold]
name = "Refold"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""


class Session(Struct):
    """One client, with its gateway and a folder of its own."""

    folder: Path
    url: str
    program: str
    """The executable: of the client, or of the language of an SDK."""
    clients: Path
    turns: int
    timeout_s: int

    def run(self, *args: str, text: str = "", **more: str) -> None:
        """Run the program in the folder.

        Raises:
            ClientFailed: it ended with an error, or not in time.
        """
        try:
            done = subprocess.run(
                [self.program, *args],
                cwd=self.folder,
                env=home(self.folder, **more),
                input=text,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClientFailed(f"not done after {self.timeout_s} s") from None
        if done.returncode:
            told = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()
            raise ClientFailed(f"exit {done.returncode}: {told[-1][:200]}")

    @property
    def texts(self) -> str:
        return json.dumps([*map(question, range(self.turns)), LAST])


class ClientFailed(Exception):
    pass


def python_sdk(code: str, kind: str) -> Callable[[Session], None]:
    return lambda session: session.run("-c", code, session.url, kind, text=session.texts)


def node_sdk(code: str, kind: str) -> Callable[[Session], None]:
    def play(session: Session) -> None:
        script = session.folder / "session.mjs"
        script.write_text(code)
        session.run(str(script), session.url, kind, str(session.clients), text=session.texts)

    return play


def librechat(session: Session) -> None:
    script = session.folder / "session.mjs"
    script.write_text(LIBRECHAT)
    session.run(str(script), session.url, str(session.clients), text=json.dumps([TASK, LAST]))


def claude_code(session: Session) -> None:
    more = {
        "ANTHROPIC_BASE_URL": session.url,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    options = ("--model", "claude-sonnet-4-5", "--allowedTools", "Read")
    session.run("-p", TASK, *options, **more)
    session.run("-c", "-p", LAST, *options, **more)


def codex(session: Session) -> None:
    settings = session.folder / ".codex"
    settings.mkdir()
    (settings / "config.toml").write_text(CODEX.format(url=session.url))
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    session.run("exec", *options, TASK)
    session.run("exec", *options, "resume", "--last", LAST)


def opencode(session: Session) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Refold",
        "options": {"baseURL": f"{session.url}/v1", "apiKey": "any"},
        "models": {"gpt-4o": {"limit": {"context": 128_000, "output": 4_000}}},
    }
    settings = {"$schema": "https://opencode.ai/config.json", "provider": {"refold": provider}}
    settings |= {"autoupdate": False, "share": "disabled", "permission": "allow"}
    (session.folder / "opencode.json").write_text(json.dumps(settings))
    more = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    session.run("run", "--model", "refold/gpt-4o", TASK, **more)
    session.run("run", "--model", "refold/gpt-4o", "-c", LAST, **more)


CONTINUE = """
name: smoke
version: 1.0.0
schema: v1
models:
  - name: Refold
    provider: openai
    model: gpt-4o
    apiBase: {url}/v1
    apiKey: any
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 128000
      maxTokens: 2000
"""


def continue_cli(session: Session) -> None:
    settings = session.folder / "continue.yaml"
    settings.write_text(CONTINUE.format(url=session.url))
    options = ("--config", str(settings), "--auto", "-p")
    more = {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_METRICS_ENABLED": "0"}
    session.run(*options, TASK, **more)
    session.run("--resume", *options, LAST, **more)


def cline(session: Session) -> None:
    # One run: a later message to the same session is for its terminal only.
    session.run("auth", "-p", "openai", "-k", "any", "-m", "gpt-4o", "-b", f"{session.url}/v1")
    options = ("-P", "openai", "-m", "gpt-4o", "--compaction", "off", "--json")
    session.run(*options, TASK)


def goose(session: Session) -> None:
    more = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "gpt-4o",
        "OPENAI_HOST": session.url,
        "GOOSE_CONTEXT_LIMIT": "1000000",
        "GOOSE_MODE": "auto",
        "GOOSE_DISABLE_KEYRING": "1",
    }
    options = ("--with-builtin", "developer", "--name", "smoke")
    session.run("run", *options, "--text", TASK, **more)
    session.run("run", *options, "--resume", "--text", LAST, **more)


def llm(session: Session) -> None:
    settings = session.folder / "llm"
    settings.mkdir()
    model = [{"model_id": "smoke", "model_name": "gpt-4o", "api_base": f"{session.url}/v1"}]
    (settings / "extra-openai-models.yaml").write_text(json.dumps(model))
    more = {"LLM_USER_PATH": str(settings)}
    for turn in range(session.turns):
        session.run("prompt", "-m", "smoke", *(("-c",) if turn else ()), text=question(turn), **more)
    session.run("prompt", "-m", "smoke", "-c", LAST, **more)


def aider(session: Session) -> None:
    """One run, as a person types: every reply edits a file."""
    log = session.folder / LOG
    log.write_text("")
    options = ["--model", "openai/gpt-4o", "--openai-api-base", f"{session.url}/v1", "--edit-format", "whole"]
    options += ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--map-tokens", "0"]
    options += ["--no-show-model-warnings", "--no-show-release-notes", "--no-pretty", "--no-detect-urls"]
    options += ["--no-fancy-input", "--max-chat-history-tokens", "1000000", LOG]
    lines = [*(question(turn).replace("\n", " ") for turn in range(session.turns)), LAST, "/exit"]
    session.run(*options, text="\n".join(lines) + "\n")
    if log.read_text() != log_after(session.turns + 1):
        raise ClientFailed("the edits are not all in the file")


class Client(Struct):
    """How a client is found, and how it plays the session."""

    program: str
    play: Callable[[Session], None]
    window: int
    needs: str = ""
    """The package of the language that has to be there: a module of Python, or a package of Node."""
    rounds: int = 0
    """Calls of tools in one session of an agent; 0 for a client without tools, which has `turns`."""


PYTHON = "python"
CLIENTS = {
    "claude-code": Client("claude", claude_code, 48_000, rounds=30),
    "codex": Client("codex", codex, 24_000, rounds=30),
    "opencode": Client("opencode", opencode, 24_000, rounds=30),
    "continue": Client("cn", continue_cli, 24_000, rounds=30),
    "cline": Client("cline", cline, 24_000, rounds=30),
    "goose": Client("goose", goose, 24_000, rounds=30),
    "librechat agents": Client("node", librechat, 24_000, "@librechat/agents", rounds=30),
    "aider": Client("aider", aider, 8_000),
    "llm": Client("llm", llm, 8_000),
    "openai-python chat": Client(PYTHON, python_sdk(PYTHON_OPENAI, "chat"), 8_000, "openai"),
    "openai-python responses": Client(PYTHON, python_sdk(PYTHON_OPENAI, "responses"), 8_000, "openai"),
    "anthropic-python": Client(PYTHON, python_sdk(PYTHON_ANTHROPIC, ""), 8_000, "anthropic"),
    "openai-node chat": Client("node", node_sdk(NODE_OPENAI, "chat"), 8_000, "openai"),
    "openai-node responses": Client("node", node_sdk(NODE_OPENAI, "responses"), 8_000, "openai"),
    "anthropic-node": Client("node", node_sdk(NODE_ANTHROPIC, ""), 8_000, "@anthropic-ai/sdk"),
}
"""Claude Code's instructions and tools alone take some 28,800 tokens."""


# The run


class Row(Struct):
    client: str
    skipped: str = ""
    failed: str = ""
    window: int = 0
    calls: int = 0
    folds: int = 0
    refused: int = 0
    word: str = "-"
    number: str = "-"
    rule: str = "-"
    seconds: float = 0.0


def measure(name: str, client: Client, options: argparse.Namespace) -> Row:
    program, missing = find(client, options.clients)
    if not program:
        return Row(name, skipped=missing)
    began = time.monotonic()
    row = Row(name, window=client.window)
    with tempfile.TemporaryDirectory(prefix="refold-smoke-", ignore_cleanup_errors=True) as made:
        folder = Path(made).resolve()
        for number in range(client.rounds):
            (folder / f"note-{number:02}.txt").write_text(note(number))
        provider = Provider(folder, client.rounds)
        with (
            ScriptedUpstream(otherwise=provider, window=client.window) as upstream,
            gateway(folder, upstream.url, client.window) as gate,
        ):
            session = Session(folder, gate.url, program, options.clients, options.turns, options.timeout)
            try:
                client.play(session)
            except ClientFailed as error:
                row.failed = str(error)
            refused = sum(isinstance(answer, Refuse) for answer in upstream.answered)
            tally(row, gate, provider, refused)
        row.seconds = round(time.monotonic() - began, 1)
    return row


def tally(row: Row, gate: Gateway, provider: Provider, refused: int) -> None:
    calls = [line for line in gate.lines() if str(line.get("path", line.get("message", ""))).count("/v1/")]
    row.calls = len(calls)
    row.refused = refused + sum(int(line["status"]) >= 400 for line in calls)
    last = provider.main[-1] if provider.main else None
    conversation = next((line["conversation"] for line in reversed(calls) if line.get("conversation")), "")
    row.folds = count_folds(calls)
    for fact, text, words in (
        ("word", WORD, "code word"),
        ("number", NUMBER, "unpaid invoice number"),
        ("rule", RULE, "never edit billing ledger"),
    ):
        if last is not None and text in last.body.decode():
            setattr(row, fact, "window")
        else:
            setattr(row, fact, "recall" if text in recalled(gate, conversation, words) else "lost")


def count_folds(calls: Sequence[dict[str, Any]]) -> int:
    """The folded requests that are smaller than the one before in their conversation, in all branches: aider begins one
    with every run.
    """
    folds, before = 0, dict[str, int]()
    for line in calls:
        came, arrow, sent = str(line.get("tokens", "")).partition("->")
        if arrow:
            conversation = str(line.get("conversation"))
            folds += line.get("action") == "folded" and int(sent) < before.get(conversation, int(came))
            before[conversation] = int(sent)
    return folds


def recalled(gate: Gateway, conversation: str, words: str) -> str:
    """What `refold recall` finds by these words."""
    argv = [sys.executable, "-m", "refold", "recall", conversation, words, "--store", str(gate.store)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False).stdout


def find(client: Client, clients: Path) -> tuple[str, str]:
    """The program of a client; or the reason why it cannot be run."""
    if client.program == PYTHON:
        found = next((python for python in pythons(clients) if has_module(python, client.needs)), "")
        return found, "" if found else f"the module {client.needs} is not installed"
    program = shutil.which(client.program)
    if program is None:
        return "", f"{client.program} is not installed"
    if client.needs and not (clients / "node_modules" / client.needs).is_dir():
        return "", f"the package {client.needs} is not installed"
    return program, ""


def pythons(clients: Path) -> list[str]:
    return [sys.executable, *map(str, sorted(clients.glob("*/bin/python")))]


def has_module(python: str, module: str) -> bool:
    return not subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode


COLUMNS = ("client", "window", "calls", "folds", "refused", "word", "number", "rule", "seconds")


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'client':<24}" + "".join(f"{head:>9}" for head in COLUMNS[1:])]
    for row in rows:
        if row.skipped:
            lines.append(f"{row.client:<24}  skipped: {row.skipped}")
            continue
        values = (
            f"{getattr(row, head):>9,}"
            if head in ("window", "calls", "folds", "refused")
            else f"{getattr(row, head):>9}"
            for head in COLUMNS[1:]
        )
        lines.append(f"{row.client:<24}" + "".join(values))
        if row.failed:
            lines.append(f"{'':<24}  failed: {row.failed}")
    return "\n".join(lines)


# The namespace


def enter(argv: Sequence[str]) -> int:
    """Run this script again where there is no network but loopback."""
    unshare = shutil.which("unshare")
    wrapped = [unshare or "", "--map-root-user", "--net"]
    if unshare is None or subprocess.run([*wrapped, "true"], capture_output=True, check=False).returncode:
        print("skipped: no network namespace can be made here, so no client is run")
        return 0
    child = [*wrapped, sys.executable, "-m", "scripts.smoke_clients", *argv]
    return subprocess.run(child, cwd=ROOT, env={**os.environ, INSIDE: "1"}, check=False).returncode


def raise_loopback() -> None:
    """Turn on the only interface of the namespace, and see that it is the only one."""
    names = [name for _, name in socket.if_nameindex()]
    if names != ["lo"]:
        raise SystemExit(f"error: there are other interfaces than loopback: {', '.join(names)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        up_and_running = 0x41
        fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", up_and_running))  # SIOCSIFFLAGS


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="smoke_clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clients",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder in which clients are installed",
    )
    parser.add_argument("--only", nargs="+", choices=CLIENTS, metavar="NAME", help=", ".join(CLIENTS))
    parser.add_argument(
        "--turns", type=int, default=20, help="questions of a client without tools (default: 20)"
    )
    parser.add_argument(
        "--timeout", type=int, default=600, metavar="S", help="for each run of a client (default: 600)"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    if os.environ.get(INSIDE) != "1":
        return enter(argv)
    raise_loopback()
    options.clients = options.clients.resolve()
    places = [options.clients / "node_modules" / ".bin", *sorted(options.clients.glob("*/bin"))]
    os.environ["PATH"] = os.pathsep.join([*map(str, places), os.environ.get("PATH", "")])
    rows = []
    for name in options.only or CLIENTS:
        rows.append(measure(name, CLIENTS[name], options))
        if not options.json:
            print(table(rows[-1:]).partition("\n")[2] if len(rows) > 1 else table(rows), flush=True)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    is_bad = any(row.failed or row.refused or "lost" in (row.word, row.number, row.rule) for row in rows)
    return 1 if is_bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
