import pytest

from refold.core.summary_checks import is_refusal


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry.",
        "I’m sorry, but I cannot comply.",
        "Sorry, but I won't be able to do that.",
        "Unfortunately, I'm unable to summarize this.",
        "I must decline to help with that.",
        "I don't see any conversation here. Could you share it?",
        "Please provide the transcript you would like me to summarize.",
        "- I cannot assist with that.",
        "**I can't help with this request.**",
        "很遗憾，我无法为您总结这段对话。",
        "残念ながら、この会話の要約には対応できません。",
        "К сожалению, я не могу помочь с этим.",
        "Leider kann ich dabei nicht helfen.",
        "Malheureusement, je ne peux pas vous aider.",
        "Lamentablemente no puedo ayudarte con esta solicitud.",
        "Infelizmente não consigo ajudar com esse pedido.",
        "Purtroppo non posso aiutarla.",
        "안타깝게도 이 요청을 도와드릴 수 없습니다.",
        "## Goal\nI cannot help with that.\n## Progress\nI cannot help with that.",
        "I can't do that.",
        "No, I won't do that.",
        "I must decline to produce this.",
        "I refuse.",
        "I am unable to continue.",
        "This request violates our usage policies.",
        "Request declined.",
        "As an AI language model, I do not summarise private conversations.",
        "我不能这样做。",
        "それはできません。",
        "그렇게 할 수 없습니다.",
        "Das kann ich nicht tun.",
        "Je ne peux pas faire cela.",
        "No puedo hacer eso.",
        "Não posso fazer isso.",
        "Non posso farlo.",
        "Я не могу этого сделать.",
    ],
)
def test_who_declines_says_so_first(text):
    assert is_refusal(text)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Now add the hook to the transcript container.",
        "The assistant said I'm sorry for the delay. " + "Then it fixed the bug. " * 10,
        "The assistant declined: it cannot help with the request of the user.",
        '"I can\'t help with that," it said, and the user left.',
        "I can't help with that part, it said.\n## Goal\nFix the login as soon as the tests are green.",
        "No conversation partner was found by the matcher; the fix is in the queue.",
        "I cannot reach the server; the user will open the port.",
        "Unfortunately the build failed again, so the release waits.",
        "用户无法登录。",
        "无法连接数据库，已经重启。",
        "ユーザーはログインできません。",
        "Пользователь не может войти.",
        "Der Nutzer kann sich nicht anmelden, leider auch nicht nach dem Neustart.",
        "Le serveur ne peut pas démarrer, malheureusement.",
        "El usuario no puede entrar.",
        "O usuário não consegue entrar.",
        "L'utente non riesce a entrare.",
        "사용자가 로그인할 수 없습니다.",
        "I cannot do that before the tests pass, so the user runs them first.",
        "I could not write the file, permission denied.",
        "The request was rejected by the server with a 403.",
        "The request was blocked by CORS; the header was added.",
        "The content violates the schema: rules are missing a name.",
        "The user said that the request violates our usage policies.",
        "我不能连接数据库，已经重启服务器。",
        "No puedo abrir el archivo.",
    ],
)
def test_what_others_cannot_do_is_a_report(text):
    assert not is_refusal(text)
