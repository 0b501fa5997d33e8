"""Conversations in nine languages, good summaries of them, and bad ones with the fault that each has."""

from __future__ import annotations

from msgspec import Struct

from refold.core.digest.ledger import EMPTY, Ledger
from refold.core.summary_checks import DraftSource

EN = [
    ("User", "Fix the login in src/auth/login.py. Never touch main.py. It must be done by 2024-05-01, and all 1,234 tests have to pass."),
    ("Assistant", "I read src/auth/login.py: `SessionStore.refresh` drops the token after 1500 ms. The order ORD-99123 in postgres hangs."),
    ("Result", 'Traceback (most recent call last):\n  File "src/auth/login.py", line 120, in refresh\nECONNRESET: connect to db.internal.example:8443 failed, "I cannot connect to the database"'),
    ("Assistant", "I changed MAX_RETRIES from 3 to 5 in src/auth/login.py and pushed commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b to github. Coverage is 87.46 %, 0.125 of the calls are slow."),
    ("User", "Good. Now write the docs in docs/login.md with Python 3.11 examples, and mail them to ops@example.com."),
    ("Assistant", "The docs need the read and write scopes of https://api.example.com/v2/users?id=77. I will write them after the tests have run."),
]  # fmt: skip
DE = [
    ("User", "Bitte repariere die Anmeldung in src/auth/login.py und fasse main.py niemals an. Der API Schlüssel steht in config/keys.toml."),
    ("Assistant", "Ich habe src/auth/login.py gelesen und den Fehler gefunden: Die Sitzung läuft nach 1,234 Sekunden ab, das ist zu kurz."),
    ("Result", "ECONNRESET: connect to db.internal.example:8443 failed\n12 passed, 1 failed"),
    ("Assistant", "Die Anmeldung ist repariert, und die Tests sind grün. Als Nächstes schreibe ich die Dokumentation und schicke sie per Email."),
]  # fmt: skip
FR = [
    ("User", "Corrige la connexion dans src/auth/login.py et ne touche jamais à main.py. Le ticket est ORD-99123."),
    ("Assistant", "J'ai lu le fichier et la session expire après 1500 ms. La correction est dans la branche fix/login."),
    ("Result", "ECONNRESET: connect to db.internal.example:8443 failed"),
    ("Assistant", "Les tests passent et la correction est prête. Il reste à écrire la documentation pour les utilisateurs."),
]  # fmt: skip
ES = [
    ("User", "Arregla el inicio de sesión en src/auth/login.py y no toques nunca main.py. El pedido es ORD-99123."),
    ("Assistant", "He leído el archivo y la sesión caduca después de 1500 ms. El servidor db.internal.example:8443 no responde."),
    ("Assistant", "Los tests pasan y el arreglo está en la rama fix/login. Falta escribir la documentación para los usuarios."),
]  # fmt: skip
PT = [
    ("User", "Corrija o login em src/auth/login.py e nunca mexa em main.py. O pedido é ORD-99123 e não pode esperar."),
    ("Assistant", "Li o arquivo e a sessão expira depois de 1500 ms. O servidor não responde na porta 8443."),
    ("Assistant", "Os testes passam e a correção está pronta. Falta escrever a documentação para os usuários."),
]  # fmt: skip
IT = [
    ("User", "Correggi il login in src/auth/login.py e non toccare mai main.py. Il ticket è ORD-99123."),
    ("Assistant", "Ho letto il file e la sessione scade dopo 1500 ms. Il server non risponde sulla porta 8443."),
    ("Assistant", "I test passano e la correzione è pronta. Resta da scrivere la documentazione per gli utenti."),
]  # fmt: skip
RU = [
    ("User", "Почини вход пользователей в src/auth/login.py и никогда не трогай main.py. Заказ ORD-99123 ждёт."),
    ("Assistant", "Я прочитал файл: сессия истекает через 1500 мс, сервер db.internal.example:8443 не отвечает."),
    ("Assistant", "Тесты проходят, исправление готово. Осталось написать документацию для пользователей."),
]  # fmt: skip
ZH = [
    ("User", "用户无法登录，请修复 src/auth/login.py，不要修改 main.py。订单号是 ORD-99123，五月一日（2024-05-01）之前完成。"),
    ("Assistant", "我读了文件，会话在 1500 毫秒之后过期，服务器 db.internal.example:8443 没有响应。"),
    ("Assistant", "测试全部通过，修复已经完成。接下来要写文档，然后通知用户结果。"),
]  # fmt: skip
JA = [
    ("User", "ログインを直してください。対象は src/auth/login.py です。main.py には触らないでください。注文番号は ORD-99123 です。"),
    ("Assistant", "ファイルを読みました。セッションが 1500 ミリ秒で切れています。サーバー db.internal.example:8443 が応答しません。"),
    ("Assistant", "テストはすべて通り、修正は完了しました。次はドキュメントを書きます。"),
]  # fmt: skip
KO = [
    ("User", "로그인을 고쳐 주세요. 파일은 src/auth/login.py 입니다. main.py 는 절대 건드리지 마세요. 주문 번호는 ORD-99123 입니다."),
    ("Assistant", "파일을 읽었습니다. 세션이 1500 밀리초 후에 만료됩니다. 서버 db.internal.example:8443 이 응답하지 않습니다."),
    ("Assistant", "테스트가 모두 통과했고 수정이 끝났습니다. 다음은 문서를 작성하는 일입니다."),
]  # fmt: skip
MIXED = [*DE, *EN[1:4], *DE[2:]]
TALKS = {
    "en": EN,
    "de": DE,
    "fr": FR,
    "es": ES,
    "pt": PT,
    "it": IT,
    "ru": RU,
    "zh": ZH,
    "ja": JA,
    "ko": KO,
    "mixed": MIXED,
}
LEDGER = Ledger(rules=("Never touch main.py.",), modified=("src/auth/login.py",), tasks=("write the docs",))
PREVIOUS = "## Progress\n### Done\n" + "\n".join(
    f"In step {number} the assistant read the handler of part {number} and found that it drops its second argument, so it was rewritten."
    for number in range(6)
)


def count(text: str) -> int:
    """Tokens as a model counts: a Chinese character is one, four letters are one."""
    wide = sum(character > "\u2e80" for character in text)
    return wide + (len(text) - wide) // 4


def source(name: str = "en", ledger: Ledger | None = EMPTY, **shown: str) -> DraftSource:
    talk = TALKS[name]
    told = "\n\n".join(f"[{who} #m{number}] {said}" for number, (who, said) in enumerate(talk))
    spoken, answered = ("\n".join(said for who, said in talk if who == one) for one in ("User", "Assistant"))
    return DraftSource(told, 5_000, spoken=spoken, answered=answered, ledger=ledger, **shown)


HEADED = """## Goal
Fix the login in src/auth/login.py by 2024-05-01.

## Constraints & Preferences
- Never touch main.py.

## Progress
### Done
- `SessionStore.refresh` no longer drops the token (#m1).
- MAX_RETRIES raised from 3 to 5.
### In Progress
- docs/login.md

## Critical Context
ECONNRESET: connect to db.internal.example:8443 failed"""

GOOD: dict[str, tuple[str, str]] = {
    "headings": ("en", HEADED),
    "one line": ("en", "The login was fixed and the docs are next."),
    "prose": ("en", "The user wants the login fixed in src/auth/login.py without touching main.py. The assistant raised MAX_RETRIES, pushed the change and goes on with docs/login.md."),
    "bullets": ("en", "- Login fixed\n- 1,234 tests must pass\n- Docs still to be written, with Python 3.11 examples"),
    "numbered": ("en", "1. Fix the login.\n2. Run the tests.\n3. Write the docs.\n\n10. Mail them."),
    "a preface": ("en", "Here is the checkpoint:\n\n## Goal\nFix the login."),
    "sub-headings under two parents": ("en", "## Backend\n### Done\nThe login.\n## Docs\n### Done\nNothing yet."),
    "code": ("en", "## Progress\nThe change:\n```python\n# before\nMAX_RETRIES = 3\n# after\nMAX_RETRIES = 5\n```\nTests pass."),
    "comments twice in code": ("en", "Run this:\n```sh\n# login\nrefresh\n# login\nrefresh\n```"),
    "a quoted error": ("en", 'The user reported the error "I cannot connect to the database" and the assistant fixed the port in the settings.'),
    "an error first": ("en", '"I cannot connect to the database" was the error; the login works again.'),
    "a long quoted error": ("en", 'Still failing:\n> ECONNRESET: connect to db.internal.example:8443 failed, "I cannot connect to the database"\nThe login waits for it.'),
    "first person": ("en", "I cannot go on with the deployment until the tests have run; so far I fixed src/auth/login.py."),
    "abbreviations": ("en", "Retry, e.g. after a time-out, i.e. try again and/or wait. Follow-up work remains, etc."),
    "everyday compounds": ("en", "A non-blocking, end-to-end fix; the read/write scopes are up-to-date, and the server is read-only."),
    "capitals of its own": ("en", "Pushed to GitHub. IMPORTANT: NEVER touch main.py. The API and its URLs answer in JSON."),
    "other spellings of numbers": ("en", "All 1234 tests pass, 1.234 in all; calls time out after 1.5 s; 12.5 % are slow, coverage is 87.5 %."),
    "rough numbers": ("en", "About 1,200 tests, roughly 90 % covered, in ~20 minutes, 2-3 times a day, 24/7."),
    "dates in words": ("en", "Due on May 1, 2024 (1 May 2024, 05/01/2024)."),
    "ordinals and units": ("en", "The 2nd and 3rd try failed, the 21st passed; 5GB free, 10k users, v2 is a 2-step, 10-minute job."),
    "a short path": ("en", "login.py and login.md changed, in the directory src/auth; line 120 of auth/login.py was wrong."),
    "a full path": ("en", "Changed ./src/auth/login.py:120."),
    "a short hash": ("en", "Pushed as 9f86d08."),
    "a url": ("en", "Needs the scopes of https://api.example.com/v2/users."),
    "an address": ("en", "Mail the docs to ops@example.com."),
    "plurals and endings": ("en", "Several SessionStores and an ECONNRESET-like error; PostgreSQL is used."),
    "a table": ("en", "| file | state |\n|---|---|\n| src/auth/login.py | fixed |\n| docs/login.md | open |"),
    "bold labels": ("en", "**Goal:** fix the login\n**Done:** `MAX_RETRIES` is 5\n**Next:** docs"),
    "who did what": ("en", "User: wants the login fixed.\nAssistant: fixed it in src/auth/login.py."),
    "handles": ("en", "The cause is in #m1 and #m2; see #m3."),
    "a standard": ("en", "The docs are UTF-8, their examples JavaScript, the e2e tests TypeScript."),
    "german": ("de", "## Goal\nDie Anmeldung in src/auth/login.py reparieren, main.py niemals anfassen.\n## Progress\n### Done\nDie Sitzung läuft nun nicht mehr zu früh ab, und die Tests sind grün."),
    "german compounds": ("de", "Der API-Schlüssel steht in config/keys.toml, z.B. für den E-Mail-Versand; d.h. die Tests sind grün, u.a. nach 1.234 Sekunden. ECONNRESET-Fehler gibt es nicht mehr."),
    "german first person": ("de", "Leider kann ich die Dokumentation erst schreiben, wenn die Tests grün sind; die Anmeldung ist repariert."),
    "french": ("fr", "La connexion est corrigée dans src/auth/login.py, branche fix/login. Il reste la documentation ; ne jamais toucher à main.py (ORD-99123)."),
    "spanish": ("es", "El inicio de sesión está arreglado en la rama fix/login. El usuario no puede entrar si el servidor db.internal.example no responde; falta la documentación."),
    "portuguese": ("pt", "O login foi corrigido em src/auth/login.py; o usuário não consegue entrar se o servidor não responde. Falta a documentação."),
    "italian": ("it", "Il login è stato corretto in src/auth/login.py, per esempio la sessione di 1500 ms. Non si può toccare main.py; resta la documentazione."),
    "russian": ("ru", "## Goal\nПочинить вход пользователей.\n## Constraints & Preferences\nНе трогать main.py.\n## Progress\n### Done\nИсправлены src/auth/login.py, auth/login.py, login.py\n## Next Steps\nДокументация."),
    "russian about somebody": ("ru", "Пользователь не может войти, сервер db.internal.example:8443 не отвечает. Исправление готово."),
    "chinese": ("zh", "## Goal\n用户无法登录，需要修复 src/auth/login.py。\n## Progress\n### Done\n会话在1500毫秒之后过期，已经修复。服务器db.internal.example:8443没有响应。"),
    "chinese at length": ("zh", "用户无法登录，因为会话在 1.5 秒后过期。助手修改了登录模块并且运行了测试，全部通过。下一步是写文档，然后通知用户。截止日期是2024年5月1日。不要修改 main.py。"),
    "chinese, short": ("zh", "## Goal\n修复登录问题。\n## Progress\n### Done\n修改了 src/auth/login.py, auth/login.py, login.py\n## Next Steps\n写文档。"),
    "japanese": ("ja", "## Goal\nログインの修正（src/auth/login.py）。\n## Progress\nテストはすべて通り、修正は完了。main.py には触らない。次はドキュメント。"),
    "japanese about somebody": ("ja", "ユーザーはログインできません。セッションが1500ミリ秒で切れることが原因でした。"),
    "korean": ("ko", "## Goal\n로그인 수정(src/auth/login.py). 서버 db.internal.example:8443이 응답하지 않아 사용자가 로그인할 수 없습니다. 다음은 문서 작성."),
    "either language of two": ("mixed", "The login was fixed in src/auth/login.py and the tests of the assistant have been run; the docs are to be written by hand."),
    "the other of two": ("mixed", "Die Anmeldung ist repariert, die Tests sind grün, und die Dokumentation wird noch geschrieben, denn sie ist nicht fertig."),
    "reasoning before it": ("en", "<think>What would they want? ZX-90817 maybe.</think>\nThe login was fixed."),
}  # fmt: skip


class Bad(Struct, frozen=True):
    """A draft that must not pass as it is: its fault, and on the last try either the fault that stays or what is left of it."""

    fault: str
    text: str
    finish: str = "stop"
    talk: str = "en"
    has_calls: bool = False
    has_reasoning: bool = False
    left: str | None = None


_FIXED = "The login was fixed."
_LONG_REFUSAL = (
    "I'm sorry, but I can't help with summarising this conversation, because it seems to contain material that goes against my "
    "guidelines. If you would like, you can share another text with me, or describe in your own words what you need, and I will "
    "be happy to assist you with that instead of this one. There are many other things that I can do for you, and I would be "
    "glad to hear about them at any time that suits you."
)
_ECHO = "\n".join(
    [said for who, said in EN if who == "Assistant"] + ["And a few words more that were not said before."]
)

BAD: dict[str, Bad] = {
    "nothing": Bad("empty", ""),
    "white space": Bad("empty", " \n\t\n"),
    "headings only": Bad("empty", "## Goal\n\n## Progress\n### Done\n---"),
    "bullets without words": Bad("empty", "## Goal\n- \n- \n***"),
    "reasoning in a part of its own": Bad("reasoning_only", "", has_reasoning=True),
    "reasoning in the text": Bad("reasoning_only", "<think>What would they want? The login, I guess.</think>"),
    "reasoning without an end": Bad("reasoning_only", "<thinking>What would they want? The login, I"),
    "cut off, in one word": Bad("cut_off", _FIXED, finish="length"),
    "cut off, in another": Bad("cut_off", _FIXED, finish="max_tokens"),
    "cut off, in capitals": Bad("cut_off", _FIXED, finish="MAX_TOKENS"),
    "stops after a comma": Bad("cut_off", "## Done\nThe login was fixed, the tests pass,"),
    "stops in code": Bad("cut_off", "The change:\n```python\nMAX_RETRIES = 5"),
    "a call": Bad("tool_call", _FIXED, has_calls=True),
    "a call as text": Bad("tool_call", '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/auth/login.py"}}\n</tool_call>'),
    "a call as json": Bad("tool_call", '```json\n{"name": "read_file", "arguments": {"path": "src/auth/login.py"}}\n```'),
    "words and a call": Bad("tool_call", 'I will look first.\n<function_calls>\n<invoke name="read_file">\n</function_calls>'),
    "declined by the provider": Bad("refusal", _FIXED, finish="content_filter"),
    "declined, in english": Bad("refusal", "I'm sorry, but I can't help with that."),
    "declined under a heading": Bad("refusal", "## Goal\nI'm sorry, but I can't assist with this request.\n## Progress\nNone."),
    "declined without regret": Bad("refusal", "I cannot provide a summary of this conversation."),
    "declined at length": Bad("refusal", _LONG_REFUSAL),
    "declined as a machine": Bad("refusal", "As an AI language model, I don't have access to previous conversations."),
    "nothing there, it says": Bad("refusal", "There is no conversation to summarize. Please provide the transcript."),
    "no history, it says": Bad("refusal", "No prior history."),
    "declined, in chinese": Bad("refusal", "抱歉，我无法总结这段对话。", talk="zh"),
    "declined, in chinese, without regret": Bad("refusal", "我不能为您提供这段对话的摘要，因为它包含敏感内容。", talk="zh"),
    "declined, in japanese": Bad("refusal", "申し訳ありませんが、この会話を要約することはできません。", talk="ja"),
    "declined, in korean": Bad("refusal", "죄송하지만 이 대화를 요약할 수 없습니다.", talk="ko"),
    "declined, in russian": Bad("refusal", "Извините, я не могу выполнить эту просьбу.", talk="ru"),
    "declined, in german": Bad("refusal", "Es tut mir leid, aber ich kann diese Unterhaltung nicht zusammenfassen.", talk="de"),
    "declined, in french": Bad("refusal", "Je suis désolé, mais je ne peux pas résumer cette conversation.", talk="fr"),
    "declined, in spanish": Bad("refusal", "Lo siento, pero no puedo ayudar con eso.", talk="es"),
    "declined, in portuguese": Bad("refusal", "Desculpe, mas não posso ajudar com isso.", talk="pt"),
    "declined, in italian": Bad("refusal", "Mi dispiace, ma non posso aiutarti con questa richiesta.", talk="it"),
    "longer than all of it": Bad("not_smaller", f"{_FIXED} " * 1_200),
    "an echo": Bad("echo", _ECHO),
    "an echo with labels": Bad("echo", "\n".join(f"Assistant: {line}" for line in _ECHO.splitlines())),
    "the transcript goes on": Bad("continuation", "[Assistant #m6] The docs are written.\n\n[User #m7] Thank you."),
    "the dialogue goes on": Bad("continuation", "The login was fixed.\n\nUser: Can you show me the docs?\nAssistant: Sure, I have written them for you."),
    "an answer": Bad("continuation", "Sure! Let me look at the tests first, then I will write the docs."),
    "an answer, in chinese": Bad("continuation", "好的，我来修复登录问题，请稍等，修复之后我会告诉你结果。", talk="zh"),
    "a template": Bad("continuation", "The login was fixed.\n<|im_start|>user\nGo on."),
    "english for chinese": Bad("other_language", "The user wants the login fixed; the assistant has done it and goes on with the docs.", talk="zh"),
    "english for russian, with names": Bad("other_language", "The user wants the login in src/auth/login.py to be fixed, and main.py is not to be touched at all.", talk="ru"),
    "english for german": Bad("other_language", "The user wants the login to be fixed and the assistant has done it. The tests pass, but the docs have not been written yet, and that is to be done by the assistant when it goes on with the work.", talk="de"),
    "chinese for english": Bad("other_language", "用户要求修复登录模块的错误，并且不要修改主文件，目前仍在进行。"),
    "japanese for chinese": Bad("other_language", "ログインの修正は完了しました。次はドキュメントを書きます。テストはすべて通りました。", talk="zh"),
    "an id": Bad("invented", f"{_FIXED}\nSee ORD-4712.", left=_FIXED),
    "an id cut short": Bad("invented", f"{_FIXED} See ORD-9912 for more.", left=_FIXED),
    "a path": Bad("invented", f"{_FIXED}\n- It is in src/auth/logout.py.", left=_FIXED),
    "a path without an ending": Bad("invented", f"{_FIXED}\nSee src/billing.", left=_FIXED),
    "half of a name": Bad("invented", f"{_FIXED}\nMAX_RETRY was raised.", left=_FIXED),
    "a class": Bad("invented", f"{_FIXED} `TokenVault` keeps the tokens.", left=_FIXED),
    "a number": Bad("invented", f"{_FIXED}\nPort 8444 is open.", left=_FIXED),
    "a part of a number": Bad("invented", f"{_FIXED}\nTicket 9912 is closed.", left=_FIXED),
    "a version": Bad("invented", f"{_FIXED}\nIt needs Python 3.12.", left=_FIXED),
    "a time in a unit": Bad("invented", f"{_FIXED}\nIt takes 1700 ms.", left=_FIXED),
    "a day": Bad("invented", f"{_FIXED}\nDue on 2024-05-02.", left=_FIXED),
    "a day in words": Bad("invented", f"{_FIXED}\nDue on May 2, 2024.", left=_FIXED),
    "a url": Bad("invented", f"{_FIXED}\nSee https://evil.example/login.", left=_FIXED),
    "an address": Bad("invented", f"{_FIXED}\nMail bob@example.com.", left=_FIXED),
    "a handle": Bad("invented", f"{_FIXED}\nSee #m34.", left=_FIXED),
    "a handle cut short": Bad("invented", f"{_FIXED}\nSee #m12.", left=_FIXED),
    "a service": Bad("invented", f"{_FIXED}\nThe service billing-gateway was restarted.", left=_FIXED),
    "a host": Bad("invented", f"{_FIXED}\nIt runs on DBPROD.", left=_FIXED),
    "a sentence among others": Bad("invented", f"- {_FIXED} See ORD-4712. The docs are next.", left=f"- {_FIXED} The docs are next."),
    "in chinese": Bad("invented", "修复已经完成。订单号是ORD-9912。接下来要写文档。", talk="zh", left="修复已经完成。接下来要写文档。"),
    "nothing but an invention": Bad("invented", "See ORD-4712 for more."),
}  # fmt: skip
