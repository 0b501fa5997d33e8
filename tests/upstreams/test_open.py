from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import sys

import pytest

from refold.model.errors import ConfigError, MissingExtra, UpstreamUnavailable
from refold.testing import ScriptedUpstream
from refold.upstreams import Provider, open_upstream
from tests.upstreams.questions import QUESTION, Waits

HELLO = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
REPLY = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'


class Plain:
    """A server that notes what it is sent and always says hello; over TLS where it has a certificate."""

    def __init__(self, certificate: ssl.SSLContext | None = None) -> None:
        self.certificate, self.heard, self.port, self.idle = certificate, [], 0, asyncio.Event()
        self.idle.set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=self.certificate)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await self.idle.wait()

    async def _answer(self, reader, writer):
        self.idle.clear()
        head = await reader.readuntil(b"\r\n\r\n")
        self.heard.append(head)
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        writer.write(HELLO % (len(REPLY), REPLY))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.idle.set()


async def ask(provider: Provider) -> str:
    async with open_upstream(provider, pace=Waits().pace()) as upstream:
        return (await upstream.ask(QUESTION)).messages[0].text


async def test_a_proxy_is_used_where_one_is_named_with_its_own_password():
    async with Plain() as proxy:
        named = f"http://user:word@127.0.0.1:{proxy.port}"
        assert await ask(Provider("x", "m", base_url="http://models.invalid/v1", proxy=named)) == "Hi"
    (head,) = proxy.heard
    assert head.startswith(b"POST http://models.invalid/v1/chat/completions HTTP/1.1")
    assert b"proxy-authorization: basic" in head.lower()


@pytest.mark.parametrize("settings", [{}, {"trust_env": True}])
async def test_proxies_of_the_environment_are_used_only_if_asked_for(settings, monkeypatch):
    async with Plain() as proxy, ScriptedUpstream(otherwise="direct") as server:
        for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        provider = Provider("x", "m", base_url=f"{server.url}/v1", **settings)
        assert await ask(provider) == ("Hi" if settings else "direct")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    files = {"key": folder / "key.pem", "cert": folder / "cert.pem"}
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    out = ["-keyout", files["key"], "-out", files["cert"], "-days", "2"]
    subprocess.run([*command, *names, *out], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    return context, str(files["cert"])


async def test_a_certificate_is_trusted_where_its_authority_is_named(certificate):
    context, ca_file = certificate
    async with Plain(context) as server:
        provider = Provider("x", "m", base_url=f"https://127.0.0.1:{server.port}/v1", ca_file=ca_file)
        assert await ask(provider) == "Hi"


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(certificate):
    waits = Waits()
    async with Plain(certificate[0]) as server:
        provider = Provider("x", "m", base_url=f"https://127.0.0.1:{server.port}/v1")
        async with open_upstream(provider, pace=waits.pace()) as upstream:
            with pytest.raises(UpstreamUnavailable, match="not trusted") as caught:
                await upstream.ask(QUESTION)
    assert (waits.waited, server.heard) == ([], [])
    assert "ca_file" in caught.value.hint


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_file_of_certificates_has_to_be_one(tmp_path, content):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="the ca_file of 'x' cannot be read"):
        await ask(Provider("x", "m", base_url="https://h", ca_file=str(file)))


async def test_settings_are_judged_before_the_first_question():
    with pytest.raises(ConfigError, match="the variable OPENAI_API_KEY holds no key"):
        async with open_upstream(Provider("openai", "m"), environ={}):
            pass


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
async def test_anthropic_addresses_end_with_the_version_or_before_it(end):
    async with ScriptedUpstream("Hi") as server:
        assert await ask(Provider("x", "m", "anthropic", f"{server.url}{end}")) == "Hi"


def test_without_aiohttp_the_extra_is_named():
    code = (
        "import sys, asyncio; sys.modules['aiohttp'] = None\n"
        "from refold.upstreams import Provider, open_upstream\n"
        "async def main():\n"
        "    async with open_upstream(Provider('ollama', 'm')): pass\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=False
    )
    assert MissingExtra("upstreams", "asking a model").message in done.stderr
