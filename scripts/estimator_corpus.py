"""The texts that the token estimator is fitted to and tested with; all of them are publicly available.

A text is used for fitting or for testing by the hash of its source's name, so that a file and everything
derived from it (its numbered listing, its diff, its copy inside a tool call's arguments) stay on the same
side.
"""

from __future__ import annotations

import ast
import difflib
import gzip
import hashlib
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

LANGUAGE_PACKS = tuple(
    f"jupyterlab-language-pack-{name}" for name in ("fr-FR", "ja-JP", "ko-KR", "ru-RU", "zh-CN", "zh-TW")
)
PACKAGES = ("Django", "sphinx", "docutils", "botocore", "pygments", "numpy", "rich", "pip", "setuptools",
            "chatterbot-corpus", "pyjokes", *LANGUAGE_PACKS)  # fmt: skip
"""Packages whose files are read from their installation: translations, dialogues, templates, JSON, markdown,
C headers.
"""

_KINDS = {
    **dict.fromkeys(
        ("py", "pyi", "js", "ts", "css", "h", "c", "cpp", "go", "rs", "java", "rb", "sh", "sql"), "code"
    ),
    **dict.fromkeys(("html", "xml", "svg", "jinja", "toml", "cfg", "yaml", "yml"), "markup"),
    **dict.fromkeys(("md", "rst", "txt"), "prose"),
    "json": "json",
    "po": "languages",
}
_WIDESPREAD = re.compile(
    r"(?:/locale/|wordfreq/)(?:ar|de|es|fr|hi|id|it|ja|ko|nl|pl|pt|ru|sv|tr|uk|vi|zh)(?:_[A-Z][A-Za-z]+)?/"
    r"|/data/(?:chinese|french|german|hindi|indonesia|italian|japanese|portuguese|russian|spanish|turkish)/"
)
"""Sources in the languages of most conversations. The other languages are a kind of their own: within one
script they cost more per letter (Kazakh more than Russian), and a hundred of them would outvote the few.
"""
_SIZES = (120, 400, 1_200, 4_000, 10_000)
"""Characters of a text, in turn: messages of agents reach from one line to a whole file."""


class Sample(NamedTuple):
    kind: str
    source: str
    text: str

    @property
    def held_back(self) -> bool:
        return is_held_back(self.source)


def is_held_back(source: str) -> bool:
    """True if texts of this source are used for testing only. One source in five is."""
    return hashlib.blake2b(source.encode(), digest_size=1).digest()[0] % 5 == 0


def standard_library() -> Iterator[Sample]:
    """Python's own sources and texts, unchanged and as an agent's tools show them."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*")):
        if "site-packages" not in path.parts:
            yield from file_samples(path, f"stdlib/{path.relative_to(root).as_posix()}")


def installed_packages() -> Iterator[Sample]:
    for package in PACKAGES:
        for file in sorted(_files_of(package)):
            yield from file_samples(Path(str(file.locate())), f"{package}/{file.as_posix()}")


def _files_of(package: str) -> list[metadata.PackagePath]:
    try:
        return metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []


def tree(root: Path) -> Iterator[Sample]:
    """Any folder of text, for example an unpacked source distribution."""
    for path in sorted(root.rglob("*")):
        yield from file_samples(path, f"{root.name}/{path.relative_to(root).as_posix()}")


def file_samples(path: Path, source: str) -> Iterator[Sample]:
    text = _read(path)
    if not text:
        return
    luck = random.Random(source)
    kind = _kind_of(path)
    if kind == "languages":
        yield from _translations(source, text)
    else:
        yield from _cut(kind, source, text, luck)
    if kind == "code":
        yield from _as_tools_show_it(source, text, luck)


def _kind_of(path: Path) -> str:
    if "LC_MESSAGES" in path.parts:
        return "languages"
    if "chatterbot_corpus" in path.parts or path.name.startswith("jokes_"):
        return "chat" if "english" in path.parts or path.name == "jokes_en.py" else "languages"
    return _KINDS.get(path.name.removesuffix(".gz").rpartition(".")[2], "prose")


def _read(path: Path) -> str:
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if not path.is_file() or (suffix not in _KINDS and path.name not in ("METADATA", "LICENSE")):
        return ""
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (UnicodeDecodeError, gzip.BadGzipFile):
        return ""


def _cut(kind: str, source: str, text: str, luck: random.Random) -> Iterator[Sample]:
    """A few passages of a file, so that a large file does not outweigh the rest; more if there are few files."""
    for _ in range(10 if kind in ("languages", "chat") else 3):
        size = luck.choice(_SIZES)
        start = luck.randrange(max(1, len(text) - size))
        passage = text[start : start + size].strip()
        if len(passage) >= 40:
            yield Sample(_kind_of_text(kind, source, passage), source, passage)


def _kind_of_text(kind: str, source: str, text: str) -> str:
    """Text in an East Asian script is a kind of its own, from any source."""
    far = sum("\u3040" <= char <= "\u9fff" or "\uac00" <= char <= "\ud7a3" for char in text)
    if far > len(text) / 4:
        return "cjk"
    return "more languages" if kind == "languages" and not _WIDESPREAD.search(source) else kind


def _translations(source: str, text: str) -> Iterator[Sample]:
    """The translated sentences of a gettext catalogue, as running text."""
    if text.startswith("{"):
        said = [line for lines in json.loads(text).values() for line in lines if isinstance(line, str)]
    else:
        blocks = re.findall(r'^msgstr(?:\[\d])? ((?:".*"\n)+)', text, re.MULTILINE)
        said = ["".join(ast.literal_eval(line) for line in block.splitlines()) for block in blocks][1:]
    running = "\n".join(line for line in said if line)
    yield from _cut("languages", source, running, random.Random(source))


def word_salad(per_language: int = 60) -> Iterator[Sample]:
    """Sentences of words drawn by their frequency, in the languages that wordfreq knows."""
    for file in sorted(_files_of("wordfreq")):
        language = file.name.partition(".")[0].removeprefix("small_")
        if file.name.startswith("small_"):
            yield from _salad_of(
                language, Path(str(file.locate())), per_language * (10 if language == "en" else 1)
            )


def _salad_of(language: str, path: Path, samples: int) -> Iterator[Sample]:
    """Wordfreq's lists hold the words of frequency 10 ** (-i / 100) at index i."""
    ranks = msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=list[Any])[1:]
    words = [(word, 10 ** (-place / 100)) for place, rank in enumerate(ranks) for word in rank]
    luck = random.Random(language)
    gap, stop = ("", "。") if language in ("ja", "zh") else (" ", luck.choice((". ", ".\n", ", ")))
    for number in range(samples):
        drawn = luck.choices(
            [word for word, _ in words], [weight for _, weight in words], k=luck.choice((8, 30, 90, 300))
        )
        steps = range(0, len(drawn), luck.randrange(6, 16))
        text = stop.join(gap.join(drawn[at : at + 12]).capitalize() for at in steps)
        source = f"wordfreq/{language}/{number}"
        yield Sample(_kind_of_text("chat" if language == "en" else "languages", source, text), source, text)


def _as_tools_show_it(source: str, code: str, luck: random.Random) -> Iterator[Sample]:
    lines = code.splitlines()
    start = luck.randrange(max(1, len(lines) - 80))
    view = lines[start : start + luck.randrange(5, 160)]
    if len(view) < 5:
        return
    numbered = luck.choice(("{:>6}\t{}", "{:>6}→{}", "{}: {}"))
    shapes = {
        "listing": "\n".join(numbered.format(start + i, line) for i, line in enumerate(view, 1)),
        "listing ": "\n".join(
            f"{source}:{start + i}:{line}" for i, line in enumerate(view, 1) if luck.random() < 0.3
        ),
        "diff": _diff(source, view, luck),
        "arguments": json.dumps({"path": source, "content": "\n".join(view)}),
        "arguments ": json.dumps(
            {"command": f"grep -rn {luck.choice(view).strip()!r} {source} | head -{start}"}
        ),
        "logs": _log(source, view, luck),
        "json": _records(view, luck),
        "hashes": _hashes(source, view, luck),
    }
    for kind, shown in shapes.items():
        if len(shown) >= 40:
            yield Sample(kind.strip(), source, shown[: luck.choice(_SIZES)])


def _diff(source: str, lines: list[str], luck: random.Random) -> str:
    changed = [
        line.replace("self", "this") if luck.random() < 0.1 else line
        for line in lines
        if luck.random() < 0.95
    ]
    return "\n".join(difflib.unified_diff(lines, changed, f"a/{source}", f"b/{source}", lineterm=""))


def _log(source: str, lines: list[str], luck: random.Random) -> str:
    """Server logs, access logs, test runs, listings and tracebacks, around lines of a real file."""
    forms = (
        "2026-{a:02}-{b:02}T{c:02}:{d:02}:{e:02}.{f:03}Z {level} [{module}] {line}",
        "{level}:{module}:{line}",
        '10.{a}.{b}.{f} - - [{b:02}/Oct/2026:{c:02}:{d:02}:{e:02} +0000] "GET /{path}?id={n} HTTP/1.1" 200 {n}',
        "tests/{path}::test_{module} PASSED [{c:>3}%]",
        "-rw-r--r-- 1 root root {n:>7} Oct {b:>2} {c:02}:{d:02} {path}",
        '  File "/usr/lib/python3/{path}", line {f}, in {module}\n    {line}',
        "[{e:>4}.{n:06}] {module}[{f}]: {line} took {c}.{d} ms (retry={a}, size={n})",
    )
    form = luck.choice(forms)
    words = re.findall(r"[a-z_]{3,}", source + " " + " ".join(lines))
    return "\n".join(
        form.format(
            a=luck.randrange(1, 13), b=luck.randrange(1, 29), c=luck.randrange(24), d=luck.randrange(60),
            e=luck.randrange(60), f=luck.randrange(1000), n=luck.randrange(10**6), line=line.strip(),
            level=luck.choice(("INFO", "WARNING", "DEBUG", "ERROR")), module=luck.choice(words),
            path=f"{luck.choice(words)}/{luck.choice(words)}.py",
        )
        for line in lines
    )  # fmt: skip


def _records(lines: list[str], luck: random.Random) -> str:
    words = re.findall(r"[A-Za-z]{3,}", " ".join(lines)) or ["none"]
    records = [
        {
            "id": luck.randrange(10**8),
            "uuid": str(luck.randbytes(16).hex()),
            luck.choice(words): line.strip(),
            "user": {"name": f"{luck.choice(words)} {luck.choice(words)}", "active": luck.random() < 0.5},
            "price": round(luck.random() * 500, 2),
            "tags": luck.choices(words, k=3),
            "created_at": f"2026-0{luck.randrange(1, 9)}-1{luck.randrange(9)}T0{luck.randrange(9)}:15:00Z",
        }
        for line in lines
    ]
    for record in records:
        for key in luck.sample(sorted(record), luck.randrange(4)):
            del record[key]
    return json.dumps(records, indent=luck.choice((None, None, 2, 4)))


def _hashes(source: str, lines: list[str], luck: random.Random) -> str:
    width = luck.choice((7, 12, 40, 64))
    return "\n".join(
        f"{hashlib.sha256(line.encode()).hexdigest()[:width]} {luck.choice((source, line.strip()[:50]))}"
        for line in lines
    )
