"""What a name before it gives away, and what only looks like that."""

from __future__ import annotations

import random

import pytest

from refold.core import regex_safety, secrets
from refold.core.secrets import find_secrets, redact

P, R = "hunter2222", "a8f5f167f44f4964e6c998dee827110c"
SECRETS = [
    rf'{{"content": "PASSWORD=\"{P}\""}}',
    rf'{{"body": "{{\"password\": \"{P}\"}}"}}',
    rf'{{"a": "{{\"b\": \"{{\\\"password\\\": \\\"{P}\\\"}}\"}}"}}',
    rf'{{"content": "USER=bob\nPASSWORD={P}\nX=1"}}',
    rf'{{"content": "x\nGITHUB_TOKEN={R}"}}',
    f"SECRET_KEY = '{P}-xyz'",
    f"GITHUB_TOKEN={R}",
    f'"token": "{R}"',
    f"dbPassword={P}",
    f"secretKey: {P}",
    f"DB_PASS={P}",
    f'password="ab({P})"',
    f'password="${P}"',
    f"PASSWORD=ab,cd;{P}(x)",
    f"password={P}!",
    f"--password {P}",
    f"--api-key={P}",
    f"<password>{P}</password>",
    f'<add key="Password" value="{P}"/>',
    f'{{"name": "DB_PASSWORD", "value": "{P}"}}',
    f"- name: DB_PASSWORD\n  value: {P}",
    f"password: |\n  {P}",
    f"Here is the password:\n{P}",
    f"machine x login bob password {P}",
    f"login: bob / {P}",
    f"Sign in as bob: {P}",
    f"creds bob:{P}",
    f"LOGİN: bob / {P}",
    f"logın: bob / {P}",
    f"//registry.npmjs.org/:_authToken={R}",
    f"spring.datasource.password={P}",
    f"Server=x;Password={P};Database=z",
    f"AccountName=a;AccountKey={P}abc==;EndpointSuffix=x",
    f"https://x/?api_key={P}&page=1",
    f"x-api-key: {P}",
    f"CREATE USER bob WITH PASSWORD '{P}'",
    f"IDENTIFIED BY '{P}'",
    f"define('DB_PASSWORD', '{P}');",
    f'page.fill("#password", "{P}")',
    f'user.set_password("{P}")',
    f'password: str = "{P}"',
    f'const apiKey: string = "{P}";',
    f"os.environ['DB_PASSWORD'] = '{P}'",
    f':password => "{P}"',
    f'password := "{P}"',
    f'if password == "{P}":',
    f"PASSWORD_1={P}",
    f"password_prod: {P}",
    f"kubectl create secret generic db --from-literal=password={P}",
    f"the password is {P}",
    f"my password for prod is {P}",
    f"set the password to {P}",
    f"Change the password from {P} to {P[:-1]}3",
    f"change the db password for prod from `{P}` to something better",
    f"The new password will be {P}!",
    f"the password ({P}) works",
    f"| user | bob |\n| password | {P} |",
    f"| **Password** | {P} | rotate |",
    f"{P} is my password",
    f"use {P} as the password",
    f"credentials are bob / {P}",
    f"creds: bob:{P}",
    f"Wi-Fi password – {P}",
    f"Passwort: {P}",
    f"la contraseña es {P}",
    f"mot de passe : {P}",
    f"senha: {P}",
    f"пароль: {P}",
    f"密码是{P}",
    f"パスワードは{P}です",
    f"비밀번호는 {P}",
]
HARMLESS = """
the token is required
error: password is incorrect
Never assume that the token is valid.
max_tokens: 4096
token count: 128000
next_page_token: "EAAaHlBUOkNBVXFEa12345abc"
password: str
password: string;
password: Optional[str] = None
password = os.environ["API_KEY"]
os.environ["API_KEY"]
password: ${SECRET}
password: $DB_PASSWORD
secret_name: my-secret
password: <your password>
password=new_password,
password = getpass()
token = tokens[0]
{"token": "hello", "score": 0.5}
"token": "COMMA_SEPARATED_VALUES"
password = request.form['password']
password: z.string().min(8)
sec_key = base64.b64encode(x)
"password": {"type": "string"}
Password: must contain at least one digit
Password: required
PASS: tests/test_x.py::test_y2
If I pass `--ignore=.a2`, it works
PWD=/home/user1/x
password is SHA-256 hashed
min_password_length: 8
credentials: "same-origin"
password: "Enter your password"
PASSWORD_RESET_TIMEOUT=259200
"token_type": "Bearer"
The secret is to keep it simple.
get_secret("prod/db")
the secret `postgres-conf` is mounted
docker run -u 1000:1000 x
["password", "email1234"]
password changed at 2024-01-01
the password for the database is stored in vault
password: "{{ db_password }}"
password: ****
pin: 13
the password is 12 characters long
""".strip().splitlines()


@pytest.mark.feature("X19")
@pytest.mark.parametrize("said", SECRETS)
def test_a_secret_is_known_by_its_name_however_that_is_written(said):
    kept = redact(said, "#m4")
    assert P not in kept
    assert R not in kept
    assert "[secret in #m4]" in kept


@pytest.mark.feature("X19")
def test_what_stands_around_a_secret_stays():
    assert redact(SECRETS[3]) == r'{"content": "USER=bob\nPASSWORD=[secret]\nX=1"}'
    assert redact(f"https://x/?api_key={P}&page=1") == "https://x/?api_key=[secret]&page=1"
    assert redact(f"Server=x;Password={P};Database=z") == "Server=x;Password=[secret];Database=z"
    assert redact(f"my password for prod is {P}, and go on") == "my password for prod is [secret], and go on"


@pytest.mark.feature("X19")
def test_words_are_a_secret_where_their_name_says_so():
    phrase = "correct horse battery staple"
    assert redact(f'password = "{phrase}"') == 'password = "[secret]"'
    assert redact(f"passphrase: {phrase}.") == "passphrase: [secret]."
    wallet = "abandon ability able about above absent absorb that"
    assert redact(f"seed phrase: {wallet}") == "seed phrase: [secret]"
    assert redact(f'"mnemonic": "{wallet}"') == '"mnemonic": "[secret]"'
    assert redact(f"I said {phrase}") == f"I said {phrase}"


@pytest.mark.feature("X19")
@pytest.mark.parametrize("said", ["the pin is 4821", "PIN: 4821", "password: 4821"])
def test_a_number_is_a_secret_where_people_type_one(said):
    assert "4821" not in redact(said)
    assert redact("the port is 4821") == "the port is 4821"


@pytest.mark.parametrize("said", HARMLESS)
def test_code_and_prose_about_secrets_stay(said):
    assert redact(said) == said


@pytest.mark.parametrize("portion", [23, 41])
def test_logins_in_a_long_text_are_found_in_portions(monkeypatch, portion):
    chance = random.Random(portion)
    said = [
        "login as bob / hunter22x",
        "credentials: root,abc123def",
        "creds are x|yyyyyy1",
        "log in",
        "word",
        "login: ",
        "/",
        "\n",
    ]
    texts = [
        "".join(f"{one}{chance.choice(['', ' '])}" for one in chance.choices(said, k=40)) for _ in range(50)
    ]
    whole = [find_secrets(text) for text in texts]
    monkeypatch.setattr(secrets, "_PORTION", portion)
    monkeypatch.setattr(regex_safety, "PORTION", portion)

    assert [find_secrets(text) for text in texts] == whole
    assert all(whole)
