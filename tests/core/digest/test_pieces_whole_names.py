import pytest

from refold.core.digest.pieces import contains_word


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("edit src/a.py now", "src/a.py"),
        ("src/a.py", "src/a.py"),
        ("(src/a.py), `src/a.py`: done", "src/a.py"),
        ("see src/a.py.", "src/a.py"),
        ("./src/a.py", "src/a.py"),
        ("修改了src/a.py文件", "src/a.py"),
        ("请不要修改主文件。", "不要修改主文件"),
        ("He said: Never touch main.py. Then he left.", "Never touch main.py."),
        ("in src/, too", "src/"),
        ("src/a.pyc and src/a.py", "src/a.py"),
    ],
)
def test_what_stands_there_whole_is_said(text, entry):
    assert contains_word(text, entry)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("src/a.pyc", "src/a.py"),
        ("src/a.py.bak", "src/a.py"),
        ("tests/config.py", "config.py"),
        ("old-config.py", "config.py"),
        ("ORD-99123", "ORD-9912"),
        ("XORD-9912", "ORD-9912"),
        ("src/auth/login.py", "src/auth"),
        ("prod.env", ".env"),
        ("../src/a.py", "src/a.py"),
        ("nothing", "src/a.py"),
    ],
)
def test_a_part_of_something_longer_is_not_said(text, entry):
    assert not contains_word(text, entry)
