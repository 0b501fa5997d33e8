"""A visitor of the page without a browser: requests by hand, with cookies, and the token that a form has."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any
from urllib.parse import urlencode

_TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')


class Answer:
    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.body, self.text = status, body, body.decode()
        self.headers = {name.lower(): value for name, value in headers}
        self.cookies = [value for name, value in headers if name.lower() == "set-cookie"]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def location(self) -> str:
        return self.headers.get("location", "")


class Visitor:
    """Keeps its cookie, and follows no redirect."""

    def __init__(self, port: int) -> None:
        self._port, self.cookie, self.token = port, "", ""

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            sent.setdefault("cookie", self.cookie)
        if body is not None:
            sent.setdefault("content-type", "application/x-www-form-urlencoded")
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            answer = Answer(response.status, response.getheaders(), response.read())
        finally:
            connection.close()
        for one in answer.cookies:
            self.cookie = one.partition(";")[0]
        if found := _TOKEN.search(answer.text):
            self.token = found[1]
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def act(
        self, path: str, *, token: str | None = None, headers: dict[str, str] | None = None, **form: str
    ) -> Answer:
        """Send a form with the token of the page that was seen last."""
        fields = {"token": self.token if token is None else token, **form}
        return self.ask("POST", path, urlencode(fields), **(headers or {}))

    def sign_in(self, key: str) -> Answer:
        self.get("/sign-in")
        return self.act("/sign-in", key=key)
