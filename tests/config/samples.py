"""Two values for every setting, as a file has them and as a variable has them, in a place where both are fine."""

from __future__ import annotations

from refold.config.layers import Layer, environment_layer, flag_layer, runtime_layer
from refold.config.tree import KEYS, UPSTREAM_KEYS, SettingKey

BOX = "my-box"
SAMPLES: dict[str, tuple[tuple[object, str], tuple[object, str]]] = {
    "server.host": (("0.0.0.0", "0.0.0.0"), ("::1", "::1")),
    "server.port": ((1, "1"), (0, "0")),
    "server.names": ((["a.example"], "a.example"), (["b", "c.d"], "b, c.d")),
    "server.max_body_mb": ((1, "1"), (1024, "1024")),
    "server.max_depth": ((16, "16"), (900, "900")),
    "server.max_in_flight_mb": ((1, "1"), (512, "512")),
    "server.max_owner_in_flight_mb": ((1, "1"), (64, "64")),
    "server.max_requests_per_owner": ((1, "1"), (20, "20")),
    "server.max_requests_per_minute": ((1, "1"), (600, "600")),
    "plugins.installed": ((False, "false"), (True, "true")),
    "plugins.files": ((["a.py"], "a.py"), (["b.py", "c.py"], "b.py, c.py")),
    "plugins.off": ((["tides"], "tides"), (["a", "b-c"], "a, b-c")),
    "plugins.required": ((["tides"], "tides"), (["a", "b-c"], "a, b-c")),
    "server.log": (("json", "json"), ("text", "text")),
    "server.log_level": (("debug", "debug"), ("error", "error")),
    "server.metrics_port": ((9_464, "9464"), (0, "0")),
    "server.drain_s": ((5.0, "5"), (0.0, "0")),
    "server.stop_s": ((120.0, "120"), (0.5, "0.5")),
    "server.workers": ((2, "2"), (256, "256")),
    "store.url": (("memory:", "memory:"), ("sqlite:///x.db", "sqlite:///x.db")),
    "store.keep_days": ((1, "1"), (90, "90")),
    "store.max_expired_share": ((0.25, "0.25"), (1.0, "1.0")),
    "store.embedder": (("static", "static"), ("off", "off")),
    "store.content": ((False, "off"), (True, "yes")),
    "compaction.enabled": ((False, "0"), (True, "True")),
    "compaction.preset": (("lis", "lis"), ("opal", "opal")),
    "compaction.variant": (("clean-slate", "clean-slate"), ("across-runs", "across-runs")),
    "compaction.summarization": (
        ({"reserveRatio": 0.1}, "{ reserveRatio = 0.1 }"),
        (
            {"enabled": False, "contextPruning": {"enabled": True}},
            "{ enabled = false, contextPruning = { enabled = true } }",
        ),
    ),
    "compaction.extra_triggers": (
        ({"turn_start": {"type": "age", "seconds": 60}}, '{ turn_start = { type = "age", seconds = 60 } }'),
        (
            {"after_call": {"type": "message_count", "messages": 9}},
            '{ after_call = { type = "message_count", messages = 9 } }',
        ),
    ),
    "compaction.max_messages": ((30, "30"), (1, "1")),
    "compaction.keep_messages": ((6, "6"), (0, "0")),
    "compaction.resume_budget": (("50%", "0.5"), (4000, "4k")),
    "compaction.window": ((8000, "8k"), ("1m", "1_000_000")),
    "compaction.max_output": ((64, "64"), ("4k", "4000")),
    "compaction.limit": ((0.5, "50%"), (100_000, "100k")),
    "compaction.trigger": ((0.55, "55%"), ("100%", "1.0")),
    "compaction.keep_recent": (("30%", "0.3"), (4000, "4k")),
    "compaction.tool_prune_threshold": ((9000, "9k"), (0, "0")),
    "compaction.tool_keep_threshold": ((100, "100"), ("1.5k", "1500")),
    "compaction.tool_policy": (("keep_all", "keep_all"), ("auto", "auto")),
    "compaction.tools": (
        ({"bash": "prune"}, "bash=prune"),
        ({"a": "summarise", "b": "prune"}, "a=summarise, b=prune"),
    ),
    "compaction.read_tools": ((["load_doc"], "load_doc"), (["a", "mcp__b__c"], "a,mcp__b__c")),
    "compaction.write_tools": ((["save_doc"], "save_doc"), (["d", "e.f"], "d, e.f")),
    "compaction.allow_system_summary": ((True, "on"), (False, "no")),
    "compaction.include_usage": ((True, "1"), (False, "OFF")),
    "compaction.recall_tool": ((True, "on"), (False, "0")),
    "compaction.recoveries": ((0, "0"), (1, "1")),
    "compaction.prompt": (("Say it.", "Say it."), ("a, b", "a, b")),
    "compaction.update_prompt": (("Again.", "Again."), ("More.", "More.")),
    "compaction.sensitive": ((["[0-9]{3,4}"], "[0-9]{3,4}"), (["a", "b,c"], '["a", "b,c"]')),
    "compaction.thinking": (("high", "high"), (5000, "5k")),
    "cache.ttl": (("1h", "1h"), ("off", "off")),
    "summariser.enabled": ((False, "false"), (True, "true")),
    "summariser.strategy": (("hierarchical", "hierarchical"), ("truncate", "truncate")),
    "summariser.models": (
        (["openai:gpt-4o-mini"], "openai:gpt-4o-mini"),
        (["ollama:qwen3:8b", f"{BOX}:m"], f"ollama:qwen3:8b,{BOX}:m"),
    ),
    "summariser.temperature": (("off", "off"), (1, "1.0")),
    "summariser.max_tokens": ((64, "64"), ("1k", "1000")),
    "summariser.max_spend": ((0, "0"), (1.5, "1.5")),
    "summariser.timeout_s": ((5, "5"), (600, "600")),
    "cluster.jobs": ((True, "yes"), (False, "no")),
    "cluster.concurrency": ((1, "1"), (256, "256")),
    "cluster.lease_s": ((1.0, "1.0"), (3_600.0, "3600.0")),
    "cluster.grace_s": ((1.0, "1.0"), (600.0, "600.0")),
    "notify.pruning": ((False, "no"), (True, "yes")),
    "notify.compaction": ((False, "no"), (True, "yes")),
    "notify.marker": ((True, "yes"), (False, "no")),
    "upstreams.NAME.url": (("http://h/v1", "http://h/v1"), ("https://[::1]:8", "https://[::1]:8")),
    "upstreams.NAME.formats": ((["anthropic"], "anthropic"), (["chat", "responses"], "chat,responses")),
    "upstreams.NAME.key_env": (("A_KEY", "A_KEY"), ("_B2", "_B2")),
    "upstreams.NAME.key_command": (("pass a", "pass a"), ("vault -x", "vault -x")),
    "upstreams.NAME.pass_key": ((False, "false"), (True, "true")),
    "upstreams.NAME.headers": (({"X-A": "b, c"}, "X-A=b, c"), ({"X-B": "d=e"}, '{ X-B = "d=e" }')),
    "upstreams.NAME.models": ((["gpt-*"], "gpt-*"), (["a", "b"], "a,b")),
    "upstreams.NAME.private": ((True, "true"), (False, "false")),
    "upstreams.NAME.window": ((8192, "8192"), ("128k", "128000")),
    "upstreams.NAME.alternation": ((True, "true"), (False, "false")),
    "upstreams.NAME.fallback": ((["other"], "other"), ([], "[]")),
    "upstreams.NAME.allow": ((["GET /v1/files"], "GET /v1/files"), (["/v1/a/*", "*"], "/v1/a/*,*")),
}

PRESET_OF = {
    "compaction.variant": "librechat",
    "compaction.summarization": "librechat",
    "compaction.max_messages": "picoclaw",
    "compaction.keep_messages": "picoclaw",
}
"""The presets that take these settings."""


def name_of(key: SettingKey) -> str:
    return key.name.replace("NAME", BOX)


def base_for(key: SettingKey) -> Layer:
    """What has to be there for the setting to make sense, in the weakest layer; never the setting itself."""
    values: dict[str, object] = {
        "compaction.preset": PRESET_OF.get(key.name, "lis"),
        "compaction.allow_system_summary": key.name in PRESET_OF,
        f"upstreams.{BOX}.url": "http://box/v1",
        "upstreams.other.url": "http://other/v1",
    }
    return Layer("user", {name: value for name, value in values.items() if name != name_of(key)})


def layer_for(key: SettingKey, source: str, sample: tuple[object, str]) -> Layer:
    """A layer of this source that says this about the setting."""
    typed, text = sample
    match source:
        case "environment":
            return environment_layer({key.variable.replace("<NAME>", "MY_BOX"): text})
        case "flag":
            return flag_layer({key.name: _flag(key, text)})
        case "runtime":
            return runtime_layer({name_of(key): typed})
        case _:
            return Layer(source, {name_of(key): typed}, path=f"{source}.toml")


def _flag(key: SettingKey, text: str) -> object:
    given = f"{BOX}={text}" if key.is_upstream else text
    return [given] if key.is_upstream or key.kind in ("list", "table") else given


ALL = [*KEYS.values(), *UPSTREAM_KEYS.values()]
