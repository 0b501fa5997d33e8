"""Which file a store URL opens, in programs: relative, absolute and plain paths, and the URLs of earlier versions."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import refold
from refold import sync
from refold.model.errors import ConfigError, StoreError

HELLO = {"role": "user", "content": "Hello."}


async def keep(url: object) -> None:
    """Keep one conversation in the store that a URL names."""
    async with refold.Engine(url, embedder=None) as engine:
        talk = await engine.conversation("tides")
        await talk.add(HELLO)


async def is_kept(url: object) -> bool:
    async with refold.Engine(url, embedder=None) as engine:
        return [one.id for one in await engine.conversations()] == ["tides"]


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, with a folder `x` in it; its parent is the user's home."""
    folder = tmp_path / "here"
    (folder / "x").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///chats.db", "here/chats.db"),
        ("sqlite:///x/chats.db", "here/x/chats.db"),
        ("sqlite:///./x/chats.db", "here/x/chats.db"),
        ("sqlite:///../chats.db", "chats.db"),
        ("sqlite:///~/chats.db", "chats.db"),
        ("sqlite:///{root}/chats.db", "chats.db"),
        ("sqlite:////{root}/chats.db", "chats.db"),
        ("sqlite:///%2E/my%20chats%3F.db", "here/my chats?.db"),
        ("sqlite:///100%25.db", "here/100%.db"),
        ("chats.db", "here/chats.db"),
        ("chats", "here/chats"),
        ("x/chats.db", "here/x/chats.db"),
        ("./x/chats.db", "here/x/chats.db"),
        ("../chats.db", "chats.db"),
        ("~/chats.db", "chats.db"),
        ("./~/../chats.db", "here/chats.db"),
        ("~nobody-of-this-name.db", "here/~nobody-of-this-name.db"),
        ("{root}/chats.db", "chats.db"),
        ("/{root}/chats.db", "chats.db"),
        ("./a:b=c.db", "here/a:b=c.db"),
        ("my%20chats?.db", "here/my%20chats?.db"),
    ],
)
async def test_a_url_names_a_file(here, url, path):
    (here / "~").mkdir()
    url = url.format(root=here.parent)

    await keep(url)

    assert files_in(here.parent) == [path]
    assert await is_kept(url)
    assert await is_kept(here.parent / path), "a pathlib.Path names it too"


async def test_an_absolute_path_after_three_slashes_stays_absolute(here):
    path = here.parent / "chats.db"
    await keep(f"sqlite:///{path}")

    assert files_in(here.parent) == ["chats.db"]
    assert await is_kept("sqlite:///../chats.db")


async def test_a_relative_file_stays_the_same_when_the_program_changes_its_folder(here, monkeypatch):
    async with refold.Engine("sqlite:///chats.db", embedder=None) as engine:
        monkeypatch.chdir(here / "x")
        await (await engine.conversation("tides")).add(HELLO)

    assert files_in(here) == ["chats.db"]


def test_the_engine_without_await_reads_urls_alike(here):
    with sync.Engine("sqlite:///x/chats.db", embedder=None) as engine:
        engine.conversation("tides").add(HELLO)
    with sync.Engine("x/chats.db", embedder=None) as engine:
        assert [one.id for one in engine.conversations()] == ["tides"]
    with pytest.raises(ConfigError, match="earlier versions"):
        sync.Engine(f"sqlite://{here}/x/chats.db")

    assert files_in(here) == ["x/chats.db"]


PROGRAM = """
import asyncio, sys, refold

async def main(name):
    async with refold.Engine("sqlite:///chats.db", embedder=None) as engine:
        talk = await engine.conversation(name)
        for number in range(20):
            await talk.add({"role": "user", "content": f"{name} {number}"})

asyncio.run(main(sys.argv[1]))
"""


def test_two_programs_share_one_relative_file(here):
    names = ["one", "two"]
    programs = [subprocess.Popen([sys.executable, "-c", PROGRAM, name], cwd=here) for name in names]
    try:
        assert [program.wait(timeout=60) for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()

    with sync.Engine("chats.db", embedder=None) as engine:
        assert {one.id: one.messages for one in engine.conversations()} == {"one": 20, "two": 20}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///x", "folder"),
        ("sqlite:///./", "folder"),
        ("sqlite:////", "folder"),
        ("x", "folder"),
        ("sqlite:///not-there/chats.db", "not there"),
    ],
)
async def test_what_is_no_file_is_said(here, url, words):
    with pytest.raises(StoreError, match=words) as refused:
        await refold.Engine(url).start()

    assert refused.value.hint
    assert files_in(here.parent) == []


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://:memory:", ":memory:"])
async def test_sqlite_in_memory_is_refused_with_the_url_that_works(here, url):
    with pytest.raises(ConfigError) as refused:
        await refold.Engine(url).start()

    assert refused.value.hint == "use memory:"


@pytest.mark.parametrize("is_there", [True, False], ids=["the file is there", "its first folder is there"])
async def test_an_absolute_url_of_an_earlier_version_is_refused_with_both_spellings(here, is_there):
    path = here.parent / "my%20chats.db"
    if is_there:
        await keep(f"sqlite:///{path}")
    before = files_in(here.parent)

    with pytest.raises(ConfigError) as refused:
        await refold.Engine(f"sqlite://{path}").start()

    assert f"sqlite://{path}" in str(refused.value)
    assert f"sqlite:///{path} for the absolute path" in refused.value.hint
    assert f"sqlite:///.{path} for the relative one" in refused.value.hint
    assert files_in(here.parent) == before


async def test_both_spellings_of_the_hint_open_what_they_say(here):
    path = here.parent / "chats.db"
    (here / str(path.parent)[1:]).mkdir(parents=True)

    await keep(f"sqlite:///.{path}")
    assert files_in(here.parent) == [f"here{path}"]
    await keep(f"sqlite:///{path}")
    assert files_in(here.parent) == ["chats.db", f"here{path}"]


async def test_a_name_that_is_in_the_root_folder_is_refused(here):
    name = here.parts[1]

    with pytest.raises(ConfigError, match="earlier versions"):
        await refold.Engine(f"sqlite:///{name}").start()
    await keep(name)
    assert files_in(here) == [name], "a plain path has no earlier meaning"


async def test_where_both_files_are_there_the_relative_one_is_opened_with_a_warning(here):
    path = here.parent / "chats.db"
    (here / str(path.parent)[1:]).mkdir(parents=True)
    await keep(f"sqlite:///.{path}")
    async with refold.Engine(str(path), embedder=None):
        pass

    with pytest.warns(FutureWarning, match="as well") as warned:
        assert await is_kept(f"sqlite://{path}")
    assert f"sqlite:///.{path}" in str(warned[0].message)
    assert f"sqlite:///{path}" in str(warned[0].message)


async def test_in_the_root_folder_both_readings_are_one_file(here, monkeypatch):
    monkeypatch.chdir("/")
    await keep(f"sqlite://{here}/chats.db")

    assert files_in(here) == ["chats.db"]


@pytest.mark.parametrize("name", ["chats.db", "./x/chats.db", "my%20chats.db", "~/chats.db"])
async def test_a_relative_url_of_an_earlier_version_works_with_a_warning(here, name):
    with pytest.warns(FutureWarning) as warned:
        await keep(f"sqlite://{name}")

    (one,) = warned
    assert str(one.message).endswith(f"write sqlite:///{name}")
    assert one.filename == __file__, "the warning names the program's line"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await is_kept(f"sqlite:///{name}")


def test_the_warning_of_the_sync_face_names_the_programs_line_too(here):
    with pytest.warns(FutureWarning) as warned, refold.sync.Engine("sqlite://chats.db", embedder=None):
        pass

    (one,) = warned
    assert one.filename == __file__


async def test_the_new_spelling_of_a_relative_url_is_never_an_ambiguous_one(here):
    folder = here.parts[1]  # one of the root folder's
    (here / folder).mkdir()
    with pytest.warns(FutureWarning) as warned:
        await keep(f"sqlite://{folder}/chats.db")

    assert str(warned[0].message).endswith(f"write sqlite:///./{folder}/chats.db")
    assert files_in(here) == [f"{folder}/chats.db"]


async def test_the_new_spelling_of_a_relative_url_is_none_that_is_warned_of(here):
    path = here.parent / "chats.db"
    (here / str(path.parent)[1:]).mkdir(parents=True)
    for url in (f"sqlite:///.{path}", str(path)):
        await keep(url)
    with pytest.warns(FutureWarning) as warned:
        assert await is_kept(f"sqlite://{str(path)[1:]}")

    (one,) = warned
    assert str(one.message).endswith(f"write sqlite:///.{path}")


async def test_messages_hide_what_may_be_a_password(here):
    with pytest.warns(FutureWarning) as warned, pytest.raises(StoreError):
        await refold.Engine("sqlite://anna:secret@host/chats.db").start()

    assert "secret" not in str(warned[0].message)
