from __future__ import annotations

from pathlib import Path

import pytest

from refold.model.errors import ConfigError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.replay.summarisers import FileCache, summary_folder

SUMMARY = Summary("What was said.", 0, 12, 40, "model", usage=Usage(900, output=30), checks=("mended",))


@pytest.mark.feature("N6", "X14")
async def test_what_was_paid_for_is_there_for_the_next_program(tmp_path):
    await FileCache(tmp_path / "a" / "b").put("answer-12ab", SUMMARY)

    kept = FileCache(tmp_path / "a" / "b")

    assert await kept.get("answer-12ab") == SUMMARY
    assert await kept.get("answer-12ac") is None


async def test_the_address_of_a_server_keeps_its_summaries_apart(tmp_path):
    await FileCache(tmp_path, "http://one/v1").put("answer-12ab", SUMMARY)

    assert await FileCache(tmp_path, "http://one/v1").get("answer-12ab") == SUMMARY
    assert await FileCache(tmp_path, "http://two/v1").get("answer-12ab") is None
    assert await FileCache(tmp_path).get("answer-12ab") is None


async def test_nobody_else_can_read_it_and_no_half_of_it_is_ever_left(tmp_path):
    kept = FileCache(tmp_path / "kept")
    await kept.put("answer-12ab", SUMMARY)
    await kept.put("answer-12ab", SUMMARY)

    (file,) = (path for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert file.suffix == ".json"
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / "kept", file.parent, file)] == [0, 0, 0]


async def test_a_damaged_file_is_no_summary_and_is_written_anew(tmp_path):
    kept = FileCache(tmp_path)
    await kept.put("answer-12ab", SUMMARY)
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(b'{"text": "What w')

    assert await kept.get("answer-12ab") is None
    await kept.put("answer-12ab", SUMMARY)
    assert await kept.get("answer-12ab") == SUMMARY


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="cannot be stored") as caught:
        FileCache(tmp_path / "file" / "summaries")

    assert "--summary-cache" in caught.value.hint


@pytest.mark.parametrize(
    "platform, environ, folder",
    [
        ("linux", {"XDG_CACHE_HOME": "/c"}, Path("/c/refold/summaries")),
        ("linux", {}, Path.home() / ".cache/refold/summaries"),
        ("darwin", {}, Path.home() / "Library/Caches/refold/summaries"),
        ("win32", {"LOCALAPPDATA": "/l"}, Path("/l/refold/summaries")),
    ],
)
def test_each_platform_has_its_own_folder_for_it(platform, environ, folder):
    assert summary_folder(environ, platform) == folder
