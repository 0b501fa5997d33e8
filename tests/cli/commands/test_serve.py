"""`refold serve` as people start it: a process of its own, what it prints, what it answers, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from anthropic import Anthropic
from openai import AuthenticationError, InternalServerError, OpenAI

from refold.config.tree import all_keys
from refold.local import weights_path
from refold.testing import ScriptedUpstream, echo
from tests.program import command

PATIENCE_S = 60
CANARY = "the canary is called Pip"
WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
sys.argv = ["refold", "serve"]
from refold.__main__ import main
main()
"""


class ServedModel:
    """A gateway that runs, and its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout
        self.url = process.stdout.readline().strip()

    def openai(self, key: str = "any") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def anthropic(self) -> Anthropic:
        return Anthropic(base_url=self.url, api_key="any", max_retries=0)

    def say(self, words: str, model: str = "m", key: str = "any") -> str:
        with self.openai(key) as client:
            asked = [{"role": "user", "content": words}]
            return client.chat.completions.create(model=model, messages=asked).choices[0].message.content

    def end(self, how: int = signal.SIGINT) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        self._process.send_signal(how)
        _, told = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, told


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    """A machine on which nothing is installed or set."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("REFOLD_", "OPENAI_", "ANTHROPIC_"))
    }
    folders = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    return {**own, **folders}  # fmt: skip


@pytest.fixture
def serve(environ, tmp_path) -> Iterator:
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str, **more: str) -> ServedModel:
        argv = [*command(), "serve", "--port", "0", *flags]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            argv, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env={**environ, **more}
        )
        started.append(process)
        return ServedModel(process)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream(otherwise=echo) as server:
        yield server


def refused(environ, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    argv = [*command(), "serve", *flags]
    return subprocess.run(
        argv, capture_output=True, text=True, cwd=folder, env=environ, timeout=PATIENCE_S, check=False
    )


def test_an_upstream_is_all_that_is_needed(serve, upstream, tmp_path):
    served = serve("--upstream", f"{upstream.url}/v1")

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", served.url)
    assert served.say("Hello.") == "Hello."
    with served.openai() as client:
        assert [model.id for model in client.models.list()] == ["scripted"]
    code, told = served.end()
    assert code == 0
    assert "Traceback" not in told
    assert f"OPENAI_BASE_URL={served.url}/v1" in told
    assert f"http://127.0.0.1:{upstream.url.rpartition(':')[2]}/v1" in told
    for words in (
        "the client's",
        "preset refold",
        str(tmp_path / "data"),
        "without a key",
        f"curl {served.url}",
    ):
        assert words in told
    assert "ANTHROPIC_BASE_URL" not in told  # nobody there speaks it
    assert "\x1b" not in told


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_quietly(serve, upstream, how):
    served = serve("--upstream", f"{upstream.url}/v1")
    served.say("Hello.")

    code, told = served.end(how)

    assert code == 0
    notice, _, logged = told.partition("Ctrl-C ends it.\n")
    assert notice
    # An upstream that does not report its window is warned about once.
    lines = [line.split()[3:5] for line in logged.splitlines() if "the window of" not in line]
    assert lines == [["POST", "/v1/chat/completions"]]


def test_without_anything_a_script_answers_and_says_so(serve):
    served = serve()

    said = served.say("Is anybody there?", model="local")
    with served.anthropic() as client:
        asked = [{"role": "user", "content": "And here?"}]
        other = client.messages.create(model="local", max_tokens=99, messages=asked).content[0].text
        client.messages.stream(model="local", max_tokens=99, messages=asked)
    with served.openai() as client:
        asked = [{"role": "user", "content": "And the window?"}]
        answer = client.chat.completions.with_raw_response.create(model="local", messages=asked)
        window = answer.headers["x-refold-window"]
    _, told = served.end()

    assert said.startswith("I am a script, not a model")
    assert "refold local install" in said
    # Without the extra, fetching the weights would change nothing.
    assert ("pip install 'refold[local]'" in said) is (find_spec("xllamacpp") is None)
    assert said.endswith("You said: Is anybody there?")
    assert other.endswith("You said: And here?")
    assert window == "8192 (upstream)"  # nobody set it
    assert "no local model: " in told
    assert "A script answers for `local`" in told
    assert [line.split()[0] for line in told.splitlines() if line.startswith(("local ", "openai ", "anthropic "))] == [
        "local", "openai", "anthropic",
    ]  # fmt: skip


def test_flags_come_before_variables_and_those_before_the_file(serve, upstream, tmp_path):
    file = f'[compaction]\npreset = "lis"\n[store]\nurl = "memory:"\n[upstreams.mine]\nurl = "{upstream.url}/v1"\n'
    (tmp_path / "refold.toml").write_text(file)

    served = serve("--preset", "llms", REFOLD_COMPACTION_PRESET="opal", REFOLD_STORE_URL="sqlite:///chats.db")
    served.say("Hello.")
    _, told = served.end()

    assert "preset llms" in told
    assert "chats.db" in told
    assert "\nmine " in told


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('variant = "without-summaries"', "none: old tool output is shortened"),
        ('summarization = { provider = "openAI", model = "gpt-4o-mini" }', "by openai:gpt-4o-mini"),
        ("summarization = { reserveRatio = 0.1 }", "by the conversation's own model"),
    ],
)
def test_who_writes_summaries_is_told_at_the_start(serve, upstream, tmp_path, settings, words):
    (tmp_path / "refold.toml").write_text(f'[compaction]\npreset = "librechat"\n{settings}\n')
    served = serve("--upstream", f"{upstream.url}/v1", OPENAI_API_KEY="hush")
    served.say("Hello.")
    _, told = served.end()
    assert words in " ".join(told.split())


def test_whose_key_goes_where_is_told_and_never_the_key(serve, upstream):
    flags = (
        "--upstream",
        "openai",
        "--upstream",
        f"mine={upstream.url}/v1",
        "--upstreams-key-command",
        "mine=echo hush",
    )
    served = serve(*flags, OPENAI_API_KEY=CANARY.replace(" ", "-"))
    with served.openai() as client:
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi."}], extra_headers={"x-refold-upstream": "mine"}
        )  # fmt: skip
    _, told = served.end()

    assert upstream.requests[0].key == "hush"
    assert "the client's, else $OPENAI_API_KEY" in told
    assert "printed by a command (settings)" in told
    assert "hush" not in told
    assert CANARY.replace(" ", "-") not in told


def test_who_reads_the_address_may_stop_it_at_once(serve):
    code, _ = serve().end(signal.SIGTERM)

    assert code == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_in_which_order_keys_are_looked_for_is_told_at_the_start(serve, upstream, tmp_path, form):
    file = f"""
    [server]
    log = "{form}"
    [upstreams.openai]
    fallback = ["third", "fourth", "groq"]
    [upstreams.groq]
    [upstreams.first]
    url = "{upstream.url}/v1"
    key_env = "MY_KEY"
    [upstreams.second]
    url = "{upstream.url}/v1"
    key_env = "MY_KEY"
    pass_key = true
    [upstreams.third]
    url = "{upstream.url}/v1"
    [upstreams.fourth]
    url = "{upstream.url}/v1"
    pass_key = true
    [upstreams.fifth]
    url = "{upstream.url}/v1"
    pass_key = false
    [upstreams.anthropic]
    pass_key = false
    """
    (tmp_path / "refold.toml").write_text(file)
    canaries = ("sk-mine", "sk-openai", "sk-groq", "sk-anthropic")
    names = ("MY_KEY", "OPENAI_API_KEY", "GROQ_API_KEY", "ANTHROPIC_API_KEY")
    served = serve(**dict(zip(names, canaries, strict=True)), COLUMNS="200")
    _, told = served.end()

    expected = {
        "openai": "the client's, else $OPENAI_API_KEY",
        "groq": "the client's, else $GROQ_API_KEY; as a fallback $GROQ_API_KEY",
        "first": "$MY_KEY (settings)",
        "second": "the client's, else $MY_KEY",
        "third": "the client's; as a fallback none",
        "fourth": "the client's",
        "fifth": "none",
        "anthropic": "$ANTHROPIC_API_KEY",
    }
    if form == "json":
        ready = next(line for line in map(json.loads, told.splitlines()) if line["message"] == "ready")
        assert {one["name"]: one["key"] for one in ready["upstreams"]} == expected
    else:
        rows = {line.split()[0]: line for line in told.splitlines() if line and line[0] != " "}
        assert all(f"  {key}  " in rows[name] for name, key in expected.items())
    assert not any(canary in told for canary in canaries)


def test_once_there_is_a_key_nobody_gets_in_without_one(serve, upstream, environ, tmp_path):
    make = [*command(), "keys", "create"]
    key = subprocess.run(
        make, capture_output=True, text=True, env=environ, timeout=PATIENCE_S, check=True
    ).stdout
    served = serve("--upstream", f"{upstream.url}/v1")

    with pytest.raises(AuthenticationError):
        served.say("Hello.")
    assert served.say("Hello.", key=key.strip()) == "Hello."
    _, told = served.end()
    assert "those that have a key" in told
    assert "x-refold-key: $REFOLD_KEY" in told
    assert key.strip() not in told


def test_a_log_of_json_is_nothing_but_json_and_holds_nothing_that_was_said(serve, upstream):
    served = serve("--upstream", "gone=http://127.0.0.1:9/v1", "--upstream", f"mine={upstream.url}/v1",
                   "--upstreams-models", "mine=m", "--server-log", "json", "--server-log-level", "debug")  # fmt: skip
    served.say(CANARY)
    with pytest.raises(InternalServerError):
        served.say(CANARY, model="another")
    _, told = served.end()

    lines = [json.loads(line) for line in told.splitlines()]
    ready = next(line for line in lines if line["message"] == "ready")
    assert (ready["address"], ready["preset"], ready["needs_key"]) == (served.url, "refold", False)
    assert [one["name"] for one in ready["upstreams"]] == ["gone", "mine"]
    assert CANARY not in told


def test_a_port_that_is_taken_is_told(environ, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused(environ, tmp_path, "--upstream", "openai", "--store", "memory:", "--port", str(port))

    assert told.returncode == 2
    assert told.stdout == ""
    assert told.stderr.startswith(f"error: the gateway cannot listen on 127.0.0.1:{port} (")
    assert "hint: " in told.stderr
    assert "--port" in told.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--host", "0.0.0.0", "--port", "0"), "0.0.0.0 is open to others"),
        (("--upstream", "nosuch"), "upstreams.nosuch.url"),
        (("--server-log", "yaml"), "server.log"),
        (("--nonsense",), "--nonsense"),
        (("--upstreams-key-env", "openai=NOT_SET"), "NOT_SET holds no key"),
        (("--port", "0x"), "--port: server.port: it is not a whole number\nhint: it takes 0 to 65,535"),
        (("--upstream", "localhost:8000"), "hint: an address begins with http:// or https://, such as"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_served(environ, tmp_path, flags, words):
    told = refused(environ, tmp_path, "--upstream", "openai", "--store", "memory:", *flags)

    assert (told.returncode, told.stdout) == (2, "")
    assert words in told.stderr
    assert "hint: " in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "aiohttp"])
def test_without_the_extra_its_name_is_told(environ, tmp_path, package):
    argv = [sys.executable, "-c", WITHOUT, package]
    told = subprocess.run(
        argv, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=PATIENCE_S, check=False
    )

    assert told.returncode == 2
    assert told.stderr.splitlines() == [
        "error: the gateway needs the extra 'server'",
        f"hint: install it with: {sys.executable} -m pip install 'refold[server]'",
    ]


def test_every_setting_is_an_option(environ, tmp_path):
    told = refused({**environ, "COLUMNS": "200"}, tmp_path, "--help").stdout

    assert not [
        key.name
        for key in all_keys()
        if not any(f"{flag} " in told or f"{flag}," in told for flag in key.flags)
    ]
    assert "--upstream [NAME=]URL" in told


def test_what_there_is_of_the_local_model_is_told(environ, tmp_path):
    argv = [*command(), "local", "status"]
    run = partial(subprocess.run, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    weights = tmp_path / "own.gguf"
    absent = run(argv, env={**environ, "REFOLD_LOCAL_MODEL": str(weights)})
    weights.touch()
    there = run([*argv, "--json"], env={**environ, "REFOLD_LOCAL_MODEL": str(weights)})

    assert absent.returncode == 1
    assert f"{weights} (not there)" in absent.stdout
    assert "refold local install" in absent.stderr
    can_run = find_spec("xllamacpp") is not None
    assert json.loads(there.stdout) == {"weights": str(weights), "is_there": True, "can_run": can_run}
    assert there.returncode == (0 if can_run else 1)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed (extra local)")
@pytest.mark.skipif(not weights_path().is_file(), reason="no weights: refold local install")
def test_the_model_on_this_machine_answers_both_clients(serve):
    served = serve(REFOLD_LOCAL_MODEL=str(weights_path().resolve()))

    asked = [{"role": "user", "content": "Say hello."}]
    with served.openai() as client:
        whole = client.chat.completions.create(model="local", messages=asked, max_tokens=20)
        stream = client.chat.completions.create(model="local", messages=asked, max_tokens=20, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    with served.anthropic() as client:
        other = client.messages.create(model="local", messages=asked, max_tokens=20)
    code, told = served.end()

    assert (code, "no local model" in told) == (0, False)
    assert whole.choices[0].message.content
    assert "".join(pieces)
    assert other.content[0].text
    assert {whole.model, other.model} == {weights_path().stem}


def test_a_relative_store_url_of_an_earlier_version_is_warned_of_in_the_log(serve, upstream, tmp_path):
    served = serve("--upstream", f"{upstream.url}/v1", "--store", "sqlite://chats.db")
    served.say("Hello.")
    _, told = served.end()

    assert re.search(r"warning +the store URL sqlite://chats\.db .*: write sqlite:///chats\.db\n", told)
    assert f"{tmp_path / 'chats.db'}\n" in told
    assert (tmp_path / "chats.db").is_file()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_store_url_of_an_earlier_version_in_a_file_is_rewritten(serve, upstream, tmp_path, form):
    file = tmp_path / "refold.toml"
    file.write_text(f'[store]\nurl = "sqlite://chats.db" # mine\n[server]\nlog = "{form}"\n')
    for told_times in (1, 0):
        served = serve("--upstream", f"{upstream.url}/v1")
        served.say("Hello.")
        _, told = served.end()
        assert told.count("store.url sqlite://chats.db is written sqlite:///chats.db now") == told_times
        assert "old form" not in told
        assert form == "text" or all(json.loads(line) for line in told.splitlines())

    assert file.read_text() == f'[store]\nurl = "sqlite:///chats.db" # mine\n[server]\nlog = "{form}"\n'
    assert (tmp_path / "chats.db").is_file()


def test_an_absolute_store_url_of_an_earlier_version_is_refused_at_the_start(environ, tmp_path):
    ended = refused(environ, tmp_path, "--port", "0", "--store", f"sqlite://{tmp_path}/chats.db")

    assert ended.returncode == 2
    assert f"sqlite:///{tmp_path}/chats.db for the absolute path" in ended.stderr
    assert f"sqlite:///.{tmp_path}/chats.db for the relative one" in ended.stderr
    assert not (tmp_path / "chats.db").exists()


def test_a_plain_path_is_a_store(serve, upstream, tmp_path):
    served = serve("--upstream", f"{upstream.url}/v1", "--store", "chats.db")
    served.say("Hello.")
    _, told = served.end()

    assert "is written" not in told
    assert f"{tmp_path / 'chats.db'}\n" in told
