from __future__ import annotations

from pathlib import Path

import pytest

from refold.config.layers import file_layer, file_layers, line_of, project_file, user_file
from refold.config.resolution import resolve
from refold.model.errors import ConfigError, SettingError

HOME = Path("/home/me")


@pytest.mark.parametrize(
    ("environ", "platform", "path"),
    [
        ({}, "linux", "/home/me/.config/refold/config.toml"),
        ({"XDG_CONFIG_HOME": "/cfg"}, "linux", "/cfg/refold/config.toml"),
        ({"XDG_CONFIG_HOME": "cfg"}, "linux", "/home/me/.config/refold/config.toml"),
        ({}, "darwin", "/home/me/Library/Application Support/refold/config.toml"),
        ({"XDG_CONFIG_HOME": "/cfg"}, "darwin", "/cfg/refold/config.toml"),
        ({"APPDATA": "/roaming"}, "win32", "/roaming/refold/config.toml"),
        ({"REFOLD_CONFIG": "/my.toml", "XDG_CONFIG_HOME": "/cfg"}, "linux", "/my.toml"),
    ],
)
def test_the_user_s_file_is_where_the_platform_keeps_such_things(environ, platform, path):
    assert user_file(environ, platform, HOME) == Path(path)


def test_the_project_s_file_is_found_up_to_the_root_of_the_repository(tmp_path):
    (tmp_path / "refold.toml").touch()
    repository = tmp_path / "repository"
    inner = repository / "a" / "b"
    inner.mkdir(parents=True)
    (repository / ".git").mkdir()
    assert project_file(inner) is None
    (repository / "refold.toml").touch()
    assert project_file(inner) == repository / "refold.toml"
    (repository / "a" / "refold.toml").touch()
    assert project_file(inner) == repository / "a" / "refold.toml"


def test_outside_of_a_repository_only_the_folder_itself_counts(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "refold.toml").touch()
    assert project_file(inner) is None
    assert project_file(tmp_path) == tmp_path / "refold.toml"


@pytest.mark.feature("X1")
def test_a_project_s_file_wins_over_the_user_s(tmp_path):
    mine, project = tmp_path / "mine.toml", tmp_path / "refold.toml"
    mine.write_text("[server]\nport = 1\nlog = 'json'\n")
    project.write_text("[server]\nport = 2\n")
    resolved = resolve(file_layers({"REFOLD_CONFIG": str(mine)}, tmp_path))
    assert (resolved.settings.server.port, resolved.settings.server.log) == (2, "json")
    assert resolved.origins["server.port"].place == str(project)
    assert resolved.origins["server.log"].source == "user"


def test_a_file_that_is_named_must_be_there(tmp_path):
    assert file_layers({}, tmp_path, home=tmp_path) == []
    with pytest.raises(ConfigError, match=r"nope\.toml cannot be read"):
        file_layers({"REFOLD_CONFIG": str(tmp_path / "nope.toml")}, tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a = = 3\n", "line 1, column 5"),
        (b"[server]\nport = 1\n[server]\n", "line 3"),
        (b"[server]\nhost = '\xff'\n", "line 2: this is no UTF-8"),
        (b"x = " + b"[" * 5_000, "nested too deep|line 1"),
        (b"#" * 1_000_001, "too large"),
    ],
)
def test_what_is_no_toml_is_told_with_its_line(tmp_path, data, words):
    path = tmp_path / "refold.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words) as error:
        file_layer(path, "project")
    assert str(path) in error.value.message
    assert error.value.hint


def test_a_byte_order_mark_does_not_matter(tmp_path):
    path = tmp_path / "refold.toml"
    path.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert resolve([file_layer(path, "project")]).settings.server.port == 1


FILE = '''\
# [server] port = 1
[compaction]
prompt = """
[server]
port = 3
"""
sensitive = [
    "a",
]

[server]
log = "text"
port = 2

[upstreams.openai]
[upstreams]
work.url = "http://work"
'''


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("compaction.prompt", 3),
        ("compaction.sensitive", 7),
        ("server.port", 13),
        ("upstreams.openai", 15),
        ("upstreams.work.url", 17),
        ("server.host", None),
    ],
)
def test_the_line_of_a_setting_is_found_whatever_stands_in_texts(name, line):
    assert line_of(FILE, name) == line


@pytest.mark.feature("X1")
def test_a_mistake_is_told_with_file_line_key_and_hint(tmp_path):
    path = tmp_path / "refold.toml"
    path.write_text("[server]\n\nport = 70000\n")
    with pytest.raises(SettingError) as error:
        resolve([file_layer(path, "project")])
    assert error.value.located == f"{path}, line 3: server.port: it is out of range"
    assert str(error.value) == "server.port: it is out of range\nhint: it takes 0 to 65,535"
    assert error.value.key == "server.port"


def test_a_project_s_file_that_the_user_names_is_the_user_s_own(tmp_path):
    path = tmp_path / "refold.toml"
    path.write_text('[upstreams.openai]\nkey_command = "pass openai"\n')
    with pytest.raises(SettingError, match="must not choose the programs"):
        resolve(file_layers({}, tmp_path, home=tmp_path))
    assert [layer.source for layer in file_layers({"REFOLD_CONFIG": str(path)}, tmp_path)] == ["user"]
