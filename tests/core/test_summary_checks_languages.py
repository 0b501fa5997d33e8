import pytest

from refold.core.summary_checks import is_other_language, scripts_of

ENGLISH = "The user wants the login to be fixed, and the tests are to be run when it has been done, but not before that."
GERMAN = "Der Nutzer will, dass die Anmeldung repariert wird, und die Tests sind danach auch noch zu starten, aber nicht vorher."
FRENCH = "Il faut corriger la connexion dans le module, et les tests sont à lancer pour cela, mais pas avant la fin du travail."
SPANISH = "El usuario quiere que se arregle el inicio de sesión, y los tests se deben ejecutar después, pero no antes de eso, como lo ha dicho con las notas del día."
CHINESE = "用户希望修复登录问题，测试应该在完成之后运行，但是不要在那之前。"
JAPANESE = "ログインの修正が必要です。テストは完了後に実行してください。"
RUSSIAN = "Пользователь хочет, чтобы вход был исправлен, а тесты запущены после этого."
ALL = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH, "es": SPANISH, "zh": CHINESE, "ja": JAPANESE, "ru": RUSSIAN}


@pytest.mark.feature("N3")
@pytest.mark.parametrize("said", ALL.values(), ids=ALL)
@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_a_summary_is_in_a_language_of_the_conversation(text, said):
    assert is_other_language(text, [said]) is (text != said)
    assert not is_other_language(text, [said, text])


@pytest.mark.feature("N3")
def test_code_paths_names_and_headings_tell_no_language():
    code = "## Constraints & Preferences\n`git push` in src/auth/session_store.py, LoginHandler, tests/auth/test_login.py\n```\nfor the user in users:\n```\n"
    assert not is_other_language(f"{code}登录已修复。", [CHINESE])
    assert not is_other_language(f"{code}Готово.", [RUSSIAN])
    assert is_other_language(f"{code}{ENGLISH}", [RUSSIAN])


def test_too_little_to_tell_is_fine():
    assert not is_other_language("fixed", [CHINESE])
    assert not is_other_language(ENGLISH, ["", "ok"])
    assert not is_other_language(ENGLISH, ["Fix the bug"])
    assert not is_other_language(
        "De login is gemaakt en de tests zijn groen, maar het is nog niet klaar voor de klant.",
        [ENGLISH[:30]],
    )


@pytest.mark.parametrize(
    ("text", "scripts"),
    [("a few plain words of English here", {"latin"}), ("немного русского текста здесь", {"cyrillic"}), ("1 + 2", set())],
)  # fmt: skip
def test_the_scripts_of_a_text(text, scripts):
    assert scripts_of(text) == scripts
