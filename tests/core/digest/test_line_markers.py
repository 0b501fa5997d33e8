import pytest

from refold.core.digest.line_markers import is_marker, quoted_line, quoted_lines
from refold.core.summary_text import TITLES

MARKERS = (
    "#m2 user: yes", "m2 user: yes", "s0 assistant: no", "a) m2 user: yes", "b. #m3 tool: 1", "User: yes", "HUMAN: yes",
    "assistant: no", "System note: x", "developer prompt: x", "tool: x", "Benutzer: ja", "nutzer: ja", "utilisateur : oui",
    "usuario: si", "utente: si", "Sistema: x", "Systeme: x", "Task #m2", "question m4", "context_summary: x",
    "No longer shown: x", "End of the earlier messages", "earlier messages #m1", "Rules the user gave", "[User #m2]",
    "<|im_start|>", "## Earlier",
)  # fmt: skip


@pytest.mark.parametrize("line", MARKERS)
def test_a_line_that_reads_as_ours_is_quoted(line):
    for spelt in (line, line.upper(), line.lower(), f" {line}", f"**{line}"):
        assert is_marker(spelt)
        assert quoted_line(spelt) == f"> {spelt}"


@pytest.mark.parametrize("line", [line for line in MARKERS if line[0].isalpha()])
@pytest.mark.parametrize("hidden", ["\x00", "\x7f", "\u200b", "\u2060"])
def test_invisible_characters_do_not_hide_it(line, hidden):
    assert is_marker(f"{line[0]}{hidden}{line[1:]}")
    assert is_marker(f"{hidden}{line}")


@pytest.mark.parametrize(
    "line",
    ["", "x", "u", "the user asked", "message 2", "tomorrow", "end", "stop", "as said", "users: 3", "mm2"],
)
def test_another_line_stays(line):
    assert quoted_line(line) == line


@pytest.mark.parametrize("title", TITLES)
def test_the_heading_of_a_list_is_quoted_in_a_text_that_is_carried_along(title):
    assert quoted_lines(f"{title}\n- one", "carried", begins_line=True) == f"> {title}\n- one"
