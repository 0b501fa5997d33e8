"""The settings of Refold as one tree of sections and typed fields, and the names of each.

A setting is declared once. Its type, its range and its description are here, and everything else is derived
from them: the key in the file, the variable, the flag, the schema, the commented file and the table in
docs/configuration.md. The docstring below a setting gives the reason for its default.

A number of tokens and a share of the window are different types, and `parse` reads both, so a percent is
never taken for tokens. None leaves the choice to the preset, the model or the client; `unset` says to which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta, Struct, structs

from refold.model.errors import MAX_TOKENS, MIN_WINDOW
from refold.model.mask import (
    HIDDEN,
    mask_command,
    mask_model,
    mask_store,
    mask_url,
    mask_values,
    mask_variable,
)
from refold.model.message import DialectName
from refold.model.tokens import Share, Tokens

# Masks of settings that take free text
#
# Every setting whose type holds a `str` carries one of these masks, and `_mask` refuses a tree
# in which one is missing. So the author of a new setting decides here whether a secret may be in it,
# and all code that shows settings uses the mask: `refold config show`, the start notice and the
# gateway's responses.


class TokenNumber(Struct, frozen=True):
    """Marks a number in the tree that counts tokens, so that `4k` is understood; `words` stand for numbers."""

    words: tuple[tuple[str, int], ...] = ()


class SettingMask(Struct, frozen=True):
    """How a text is shown: `show` returns it without its secrets."""

    show: Callable[[Any], Any]
    hides: bool = True
    """Whether a secret may be in it at all."""


def _show_models(specs: Sequence[str]) -> list[str]:
    return [mask_model(spec) for spec in specs]


def _show_count(texts: Sequence[str]) -> list[str]:
    return [HIDDEN for _ in texts]


def _show_all(value: Any) -> Any:
    return value


def _show_block(block: dict[str, object]) -> dict[str, object]:
    given = block.get("parameters")
    return {**block, "parameters": mask_values(given)} if isinstance(given, dict) else block


ADDRESS = SettingMask(mask_url)
STORE = SettingMask(mask_store)
COMMAND = SettingMask(mask_command)
VARIABLE = SettingMask(mask_variable)
HEADERS = SettingMask(mask_values)
BLOCK = SettingMask(_show_block)
"""Its parameters go to a model, and may hold a key."""
MODELS = SettingMask(_show_models)
PATTERNS = SettingMask(_show_count)
"""Only their number is shown: the patterns themselves tell what a user wants to hide."""
PLAIN = SettingMask(_show_all, hides=False)
"""Names and words that everybody may see."""


def takes_text(annotated: Any) -> bool:
    """Whether a type holds free text anywhere. A `Literal` does not: all its words are known."""
    if annotated is str:
        return True
    return get_origin(annotated) is not Literal and any(map(takes_text, get_args(annotated)))


VARIABLE_NAME = r"^([A-Za-z_][A-Za-z0-9_]*)?$"
HOST_NAME = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"
STORE_URL = (
    r"^((sqlite|memory|postgres|postgresql):|[a-z][a-z0-9+-]+://"
    r"|[/~]|\.\.?/|(?!(sqlite|memory|postgres|postgresql)$)[^:=]*$)"
)
"""A URL, also of a plugin's store, or a plain path. A path with a colon or an equals sign has to begin like a path, as in
`refold.stores.url`."""
UPSTREAM_NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
"""No underscores: in the name of a variable they stand for the hyphens."""

CALL_PATTERN = r"^(\*|([A-Z]+ )?/v1/[^ ]+)$"
"""A call below /v1/, with or without a method, with * for any characters."""

PLUGIN_NAME = r"^[a-z0-9][a-z0-9_-]{0,39}$"

TOOL_NAME = r"^[A-Za-z0-9_.:/-]{1,128}$"

MAX_MESSAGES = 1_000_000
"""No conversation has so many messages: a larger number is a mistake."""

EFFORTS = {"low": 1_024, "medium": 4_096, "high": 16_384}
"""Tokens for thinking. Fewer than 1,024 are refused by the provider that takes a number."""
WindowTokens: TypeAlias = Annotated[int, Meta(ge=MIN_WINDOW, le=MAX_TOKENS), TokenNumber()]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKENS), TokenNumber()]
SectionLength: TypeAlias = Annotated[int, Meta(ge=64, le=MAX_TOKENS), TokenNumber()]
Effort: TypeAlias = Annotated[
    int, Meta(ge=EFFORTS["low"], le=MAX_TOKENS), TokenNumber(tuple(EFFORTS.items()))
]
SettingText: TypeAlias = Annotated[str, Meta(min_length=1)]
ToolPolicy: TypeAlias = Literal["auto", "keep_all", "keep_none"]
SummaryStrategy: TypeAlias = Literal["abstractive", "hierarchical", "selective", "extractive", "truncate"]
ToolRuleName: TypeAlias = Literal["prune", "summarise"]


class Section(Struct, frozen=True):
    """A table of settings. Its `repr` shows the name only, because there may be a secret in it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__.removesuffix('Settings').lower() or 'settings'}>"


class ServerSettings(Section, frozen=True):
    """The address of the gateway, and its limits for requests."""

    host: Annotated[
        str, Meta(min_length=1, description="The address that the gateway listens on."), PLAIN
    ] = "127.0.0.1"
    """No other machine reaches it. To change that is a deliberate step, for which keys are made first."""
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="The port that it listens on; 0 takes any that is free.")
    ] = 7336
    """REFO on the keys of a telephone. Model servers and other gateways use other ports: 1234, 4000, 8000,
    8080, 11434."""
    names: Annotated[
        tuple[Annotated[str, Meta(pattern=HOST_NAME)], ...],
        Meta(description="Names, besides those of this machine itself, under which clients may call it."),
        PLAIN,
    ] = ()
    """A web page can make a browser call any host name that resolves to this machine; names that are not
    listed are refused."""
    max_body_mb: Annotated[int, Meta(ge=1, le=1_024, description="The largest request, in MiB.")] = 64
    """Twice the size that any provider is known to take."""
    max_depth: Annotated[
        int, Meta(ge=16, le=900, description="How deep the JSON of a request may be nested.")
    ] = 256
    """Schemas of tools reach a few dozen; JSON parsers give up near 1,000."""
    max_in_flight_mb: Annotated[
        int,
        Meta(
            ge=1,
            description="How large the requests that one process serves at the same time may be together, in MiB.",
        ),
    ] = 256
    """While it is read, a request takes several times its own size of memory: four of the largest fit into 2 GB."""
    max_owner_in_flight_mb: Annotated[
        int, Meta(ge=1, description="The same for the requests of one owner, in MiB.")
    ] = 128
    """Half of the room: one owner alone does not shut out the others."""
    max_requests_per_owner: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="How many requests of one owner a process serves at the same time.",
            extra={"unset": "no limit"},
        ),
    ] = None
    """A request waits for its provider most of the time, and takes little here."""
    max_requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="How many requests one owner may send to a process in a minute; as many may come at once.",
            extra={"unset": "no limit"},
        ),
    ] = None
    """Providers have limits of their own, which a client knows how to meet."""
    log: Annotated[Literal["text", "json"], Meta(description="The form of the log: text or json.")] = "text"
    """It is read by people first."""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The lowest level that is logged: debug, info, warning or error."),
    ] = "info"
    """One line for a request and one for a compaction."""
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="A port of its own for /metrics, which needs no key there; 0 takes any that is free.",
            extra={"unset": "the gateway's own"},
        ),
    ] = None
    """Without one, /metrics is at the gateway's own port, and needs an admin key if there are keys."""
    workers: Annotated[
        int,
        Meta(ge=1, le=256, description="Processes that serve the port, on one store; see docs/cluster.md."),
    ] = 1
    """One process serves a few hundred requests per second, more than one person's agents send."""
    drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds after SIGTERM in which new requests are still answered while /readyz says draining.",
        ),
    ] = 0.0
    """Clients of a single gateway gain nothing by it. Behind a load balancer: two intervals of its health check."""
    stop_s: Annotated[
        float,
        Meta(ge=0, le=3_600, description="Seconds after that in which answers in progress may end."),
    ] = 25.0
    """Long enough for most answers of a model, and with the time to store the rest less than the 30 seconds after which
    Kubernetes kills a process."""


LOCAL_EMBEDDERS = ("auto", "static", "onnx", "off")
"""Values of `store.embedder` by which no text leaves this machine."""


class StoreSettings(Section, frozen=True):
    """The store of conversations."""

    url: Annotated[
        str,
        Meta(
            pattern=STORE_URL,
            description="A path, sqlite:///relative/path, sqlite:////absolute/path, postgresql://... or memory:; empty for a file in your data folder.",
        ),
        STORE,
    ] = ""
    """One person on one machine needs no database server."""
    keep_days: Annotated[
        Annotated[int, Meta(ge=1, le=36_500)] | None,
        Meta(
            description="Delete conversations that were idle for so many days.",
            extra={"unset": "for ever"},
        ),
    ] = None
    """Nothing is deleted without a request to delete it."""
    max_expired_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="How much of all conversations keep_days may delete at once, as a fraction; the rest is deleted a day later.",
        ),
    ] = 0.1
    """Few conversations expire in an hour: a tenth of all is more often than not a mistake in the settings or
    the clock."""
    content: Annotated[
        bool, Meta(description="Store the text of messages; off stores sizes, costs and decisions only.")
    ] = True
    """Recall, search and continuing after a restart need the text."""
    embedder: Annotated[
        str,
        Meta(
            min_length=1,
            description="What finds messages by meaning: auto, static (extra `search`), onnx (extra `onnx`), off, or a model behind an embeddings endpoint, such as openai:text-embedding-3-small.",
        ),
        PLAIN,
    ] = "auto"
    """The static vectors, if they are installed: they need no key, and take a tenth of a millisecond for a message."""


class CompactionSettings(Section, frozen=True):
    """When and how conversations are compacted."""

    enabled: Annotated[
        bool, Meta(description="Off: nothing is ever compacted, not even after an overflow.")
    ] = True
    """It is the purpose of Refold."""
    preset: Annotated[str, Meta(description="The policy to begin with; see docs/presets.md."), PLAIN] = (
        "refold"
    )
    """No other preset keeps more for less money on the recorded sessions (docs/evaluation.md)."""
    variant: Annotated[
        str | None,
        Meta(
            description="A variant of the preset; see docs/presets.md.", extra={"unset": "the preset itself"}
        ),
        PLAIN,
    ] = None
    """The preset itself."""
    summarization: Annotated[
        dict[str, Any],
        Meta(
            description="The settings block of LibreChat, with its own keys, for the preset that takes it; see docs/summaries.md."
        ),
        BLOCK,
    ] = {}
    """For users who bring such a block along."""
    window: Annotated[
        WindowTokens | None,
        Meta(
            description="The model's window in tokens, if you know better than the catalogue.",
            extra={"unset": "looked up"},
        ),
    ] = None
    """The upstream, its errors and the catalogue know most models' windows."""
    max_output: Annotated[
        SectionLength | None,
        Meta(
            description="Tokens that are kept free for the reply, if a request does not state them.",
            extra={"unset": "the most that the model can write, at most 4,096 and an eighth of the window"},
        ),
    ] = None
    """The most that the model can write, up to 4,096 tokens and an eighth of the window."""
    limit: Annotated[
        Tokens | Share | None,
        Meta(
            description="How much of the window may be used: tokens, or a share of it.",
            extra={"unset": "all of it"},
        ),
    ] = None
    """All of it: the window was paid for."""
    trigger: Annotated[
        Share | None,
        Meta(
            description="The fill level at which a conversation is compacted, for presets with such a trigger.",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, mostly 80%."""
    extra_triggers: Annotated[
        dict[Literal["turn_start", "before_call", "after_call"], Any],
        Meta(
            description="Triggers besides the preset's own, by the moment at which each is evaluated; see docs/presets.md."
        ),
        PLAIN,
    ] = {}
    """None: the preset's own triggers are what was measured."""
    keep_recent: Annotated[
        Tokens | Share | None,
        Meta(
            description="How much of the newest messages stays word for word: tokens, or a share.",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own."""
    max_messages: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_MESSAGES)] | None,
        Meta(
            description="The number of messages above which a conversation is compacted, for presets that count them.",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, 20."""
    keep_messages: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_MESSAGES)] | None,
        Meta(
            description="How many of the newest messages stay, for presets that count them.",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, 4 or 2."""
    resume_budget: Annotated[
        Tokens | Share | None,
        Meta(
            description="The largest earlier session that is resumed with all its messages: tokens, or a share of the limit.",
            extra={"unset": "70%"},
        ),
    ] = None
    """70%: the rest is room to go on."""
    tool_prune_threshold: Annotated[
        Amount | None,
        Meta(
            description="Tokens of tool output from which old output is pruned, for presets that prune.",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, 8,000: a few files and a test run."""
    tool_keep_threshold: Annotated[
        Amount | None,
        Meta(
            description="Tokens of the newest tool output that pruning leaves alone.",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, 2,000: the usual read-edit-check loop."""
    tool_policy: Annotated[
        ToolPolicy | None,
        Meta(
            description="Prune by each tool's rule (auto), only under force (keep_all), or everything (keep_none).",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, auto."""
    tools: Annotated[
        dict[str, ToolRuleName],
        Meta(
            description="Rules for single tools: prune, or summarise to keep the output until a summary covers it."
        ),
        PLAIN,
    ] = {}
    """The output of most tools can be had again."""
    read_tools: Annotated[
        tuple[Annotated[str, Meta(pattern=TOOL_NAME)], ...],
        Meta(
            description="Tools that read a file, besides the known ones; for the lists of files and for outdated reads."
        ),
        PLAIN,
    ] = ()
    """The tools of the common coding agents are known, with the prefix of any MCP server."""
    write_tools: Annotated[
        tuple[Annotated[str, Meta(pattern=TOOL_NAME)], ...],
        Meta(description="Tools that change a file, besides the known ones."),
        PLAIN,
    ] = ()
    """Likewise."""
    allow_system_summary: Annotated[
        bool, Meta(description="Let presets that do so put a summary into the system prompt.")
    ] = False
    """A summary is made from texts of tools and strangers; it should not have the authority of the operator."""
    include_usage: Annotated[
        bool, Meta(description="Ask for usage in Chat streams; the extra chunk is not passed on.")
    ] = False
    """A request is forwarded as it came unless a setting changes that."""
    recall_tool: Annotated[
        bool,
        Meta(
            description="Offer every model the recall tool and run its calls in the gateway; see docs/recall.md."
        ),
    ] = False
    """A request is forwarded as it came unless a setting changes that; and each call of the tool costs a request."""
    recoveries: Annotated[
        int, Meta(ge=0, le=2, description="How often a request that is refused as too long is made smaller.")
    ] = 2
    """The first smaller window should be enough; a second covers a wrong limit; more would only cost money."""
    prompt: Annotated[
        SettingText | None,
        Meta(
            description="The instructions for the model that writes a summary; {words} is replaced by the length allowed.",
            extra={"unset": "the preset's"},
        ),
        PLAIN,
    ] = None
    """The preset's own."""
    update_prompt: Annotated[
        SettingText | None,
        Meta(
            description="The instructions for updating an earlier summary; if you set only the prompt, it is used for both.",
            extra={"unset": "the preset's"},
        ),
        PLAIN,
    ] = None
    """The preset's own, or the prompt above."""
    sensitive: Annotated[
        tuple[str, ...],
        Meta(
            description="Regular expressions: a message that one of them matches stays out of every summary."
        ),
        PATTERNS,
    ] = ()
    """Secrets of a known form are removed anyway; only you know which other texts are sensitive."""
    thinking: Annotated[
        Effort | None,
        Meta(
            description="Tokens for thinking: low (1,024), medium (4,096), high (16,384) or a number.",
            extra={"unset": "as the client asks"},
        ),
    ] = None
    """As the client asks for it."""


class Cache(Section, frozen=True):
    """The provider's prompt cache."""

    ttl: Annotated[
        Literal["5m", "1h", "off"],
        Meta(
            description="How long a provider caches the prompt, for providers that take cache breakpoints: 5m, 1h or off."
        ),
    ] = "5m"
    """An hour costs more to write, and most replies follow within minutes."""


class SummariserSettings(Section, frozen=True):
    """The models that write summaries."""

    enabled: Annotated[
        bool, Meta(description="Off: no model is asked; digests are made of the messages' own words.")
    ] = True
    """A model's summary reads better."""
    strategy: Annotated[
        SummaryStrategy | None,
        Meta(
            description="How a summary is made: a model reads everything at once (abstractive), in parts (hierarchical), or only texts and failures (selective); without a model, quotations (extractive), or counts and lists of files (truncate).",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, mostly abstractive."""
    models: Annotated[
        tuple[str, ...],
        Meta(
            description="The models that write, in this order: PROVIDER:MODEL or MODEL@URL; empty for the conversation's own. With native before them, the conversation's own provider compacts, if it can."
        ),
        MODELS,
    ] = ()
    """No other key is needed, and no other provider reads the conversation."""
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | Literal["off"],
        Meta(description="The sampling temperature; off sends none, for models that do not take one."),
    ] = 0.3
    """Low: a checkpoint should say the same each time."""
    max_tokens: Annotated[
        SectionLength | None,
        Meta(
            description="The most tokens of a summary, within the room that the window leaves for it.",
            extra={"unset": "the preset's"},
        ),
    ] = None
    """The preset's own, 2,048: a longer checkpoint is hardly read."""
    max_spend: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="Dollars that the summaries of one conversation may cost; after that, digests.",
            extra={"unset": "no limit"},
        ),
    ] = None
    """The cost of each summary is shown with it."""
    timeout_s: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600,
            description="Seconds that a request waits for a summary, in presets that wait for one.",
        ),
    ] = 60
    """Longer than models take for a summary; a client waits about so long for its first byte."""


class Notify(Section, frozen=True):
    """Notices about changes to a conversation."""

    pruning: Annotated[bool, Meta(description="Report when tool output is pruned.")] = True
    """Nothing should happen to a conversation unannounced."""
    compaction: Annotated[bool, Meta(description="Report when a conversation is compacted.")] = True
    """Likewise."""
    marker: Annotated[
        bool,
        Meta(
            description="Add a line to the first reply in words after a compaction, for clients that show no headers."
        ),
    ] = False
    """A reply is passed on as it came unless a setting changes that."""


class PluginSettings(Section, frozen=True):
    """Code of others that runs in Refold; not in a project's file. See docs/plugins.md."""

    installed: Annotated[bool, Meta(description="Load the plugins of installed packages.")] = True
    """Who installs a package with a plugin wants it to be used."""
    files: Annotated[
        tuple[str, ...],
        Meta(description="Python files with a plugin."),
        PLAIN,
    ] = ()
    """None: a file is code, and only you know which to trust."""
    off: Annotated[
        tuple[Annotated[str, Meta(pattern=PLUGIN_NAME)], ...],
        Meta(description="Names of plugins that are not loaded."),
        PLAIN,
    ] = ()
    """All are loaded."""
    required: Annotated[
        tuple[Annotated[str, Meta(pattern=PLUGIN_NAME)], ...],
        Meta(description="Names of plugins without which Refold does not start."),
        PLAIN,
    ] = ()
    """A plugin that cannot be loaded is left out with a warning. Name one here that protects your data."""


class ClusterSettings(Section, frozen=True):
    """Several processes on one PostgreSQL; see docs/cluster.md."""

    jobs: Annotated[
        bool,
        Meta(
            description="Let `refold worker` write summaries and clean up, by jobs in the store; PostgreSQL only."
        ),
    ] = False
    """One process needs no worker, and with this setting and no worker no model would write summaries."""
    concurrency: Annotated[
        int, Meta(ge=1, le=256, description="Jobs that one worker runs at the same time.")
    ] = 32
    """A job mostly waits for a model: it takes some 30 ms of CPU, and holds no connection to the database meanwhile."""
    lease_s: Annotated[
        float,
        Meta(
            ge=1,
            le=3_600,
            description="Seconds after which the job of a process that gives no sign is free for another.",
        ),
    ] = 60.0
    """Longer than a pause of the machine. A process gives three signs in this time."""
    grace_s: Annotated[
        float,
        Meta(ge=0, le=600, description="Seconds for the jobs in progress when a worker is told to stop."),
    ] = 25.0
    """Most summaries are written within it; container platforms kill a process after 30 seconds."""


class UpstreamSettings(Section, frozen=True):
    """A provider, or a server of your own. A well-known name needs no other settings."""

    url: Annotated[
        str,
        Meta(description="Its address, such as http://localhost:8000/v1; empty for a well-known name."),
        ADDRESS,
    ] = ""
    """A well-known name has one."""
    formats: Annotated[
        tuple[DialectName, ...],
        Meta(description="The formats that it speaks: chat, responses, anthropic."),
    ] = ()
    """Those of the well-known name, chat for any other."""
    key_env: Annotated[
        str, Meta(pattern=VARIABLE_NAME, description="The environment variable that holds its key."), VARIABLE
    ] = ""
    """The variable of the well-known name, for clients that send no key, if the address is that of the
    well-known name too: no key goes to a host it was not named for."""
    key_command: Annotated[
        str,
        Meta(description="A command that prints its key, for keys in a vault; no shell runs it."),
        COMMAND,
    ] = ""
    """Most keys are in the environment."""
    pass_key: Annotated[
        bool | None,
        Meta(
            description="Send the client's own key if it sends one; `true` also if this upstream is the fallback of another.",
            extra={"unset": "if neither key_env nor key_command is set"},
        ),
    ] = None
    """Only the base URL of a client should have to change. A key goes to no host that the client did not
    choose."""
    headers: Annotated[
        dict[str, str], Meta(description="Headers that are sent with every request; never a key."), HEADERS
    ] = {}
    """Few providers need any."""
    models: Annotated[
        tuple[str, ...],
        Meta(description="Patterns of the models that this upstream serves, such as gpt-* or claude-*."),
        PLAIN,
    ] = ()
    """Any model that no other upstream names."""
    private: Annotated[
        bool, Meta(description="Allow its host name to resolve to an address in a private network.")
    ] = False
    """A name that suddenly resolves to an internal address is an attack on internal servers; an address in
    the URL is intended."""
    window: Annotated[
        WindowTokens | None,
        Meta(
            description="The window of its models in tokens, if you know better than the catalogue.",
            extra={"unset": "looked up"},
        ),
    ] = None
    """As for `compaction.window`."""
    alternation: Annotated[
        bool,
        Meta(
            description="Its chat templates want user and assistant in turn: a summary becomes the first part of the user "
            "message after it."
        ),
    ] = False
    """OpenAI and Anthropic accept two messages of one side in a row; templates of Mistral, Gemma and others do not."""
    fallback: Annotated[
        tuple[str, ...],
        Meta(description="Names of the upstreams to ask instead, in this order, if it cannot be reached."),
        PLAIN,
    ] = ()
    """Another provider sees the conversation only if you say so."""
    allow: Annotated[
        tuple[Annotated[str, Meta(pattern=CALL_PATTERN)], ...],
        Meta(
            description="Calls that all clients may make with the operator's key, also to objects of other clients: "
            "GET /v1/files, /v1/vector_stores/*, or * for all."
        ),
        PLAIN,
    ] = ()
    """A provider tells its customers apart by their keys; clients that share one would reach each other's
    files and responses."""


class Settings(Struct, frozen=True):
    """The whole tree: one field for each section."""

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    compaction: CompactionSettings = CompactionSettings()
    cache: Cache = Cache()
    summariser: SummariserSettings = SummariserSettings()
    notify: Notify = Notify()
    plugins: PluginSettings = PluginSettings()
    cluster: ClusterSettings = ClusterSettings()
    upstreams: dict[str, UpstreamSettings] = {}
    """By name, those of the strongest source first, each as it was written. If there is none, the gateway
    uses the providers that it finds by itself."""


# Every setting by its key, with its variable and its flag. All names follow one rule:
# `compaction.keep_recent` is `REFOLD_COMPACTION_KEEP_RECENT` and `--compaction-keep-recent`. The
# settings of an upstream have keys such as `upstreams.NAME.url`, for any name.

SettingKind: TypeAlias = Literal["switch", "tokens", "share", "size", "list", "table", "plain"]

PREFIX = "REFOLD_"
UPSTREAMS = "upstreams"
ANY_NAME = f"{UPSTREAMS}.NAME"
TUNABLE = frozenset(
    {
        *(
            f"compaction.{field}"
            for field in ("enabled", "preset", "variant", "window", "max_output", "limit")
        ),
        *(f"compaction.{field}" for field in ("trigger", "keep_recent", "tool_policy", "tools")),
        *(f"compaction.{field}" for field in ("tool_prune_threshold", "tool_keep_threshold")),
        *(f"compaction.{field}" for field in ("read_tools", "write_tools")),
        *(f"compaction.{field}" for field in ("max_messages", "keep_messages", "resume_budget")),
        *(f"compaction.{field}" for field in ("include_usage", "recall_tool", "recoveries", "thinking")),
        *(f"compaction.{field}" for field in ("prompt", "update_prompt")),
        "cache.ttl",
        *(f"summariser.{field}" for field in ("enabled", "strategy", "temperature", "max_tokens")),
        *(f"notify.{field}" for field in ("pruning", "compaction", "marker")),
    }
)
"""Settings that may be changed while the gateway runs. Addresses, keys, and settings that protect its users
(sensitive patterns, the limit of spending, summaries in the system prompt) are not among them. An explicit
list cannot forget to exclude one."""

SHORT_FLAGS = {
    "server.host": "--host",
    "server.port": "--port",
    "server.workers": "--workers",
    "store.url": "--store",
    "compaction.preset": "--preset",
    "compaction.window": "--window",
}
"""Flags that are given often, and that other commands have under these names."""


class SettingKey(Struct, frozen=True):
    """One setting. `name` is `section.field`; for upstreams it holds the word NAME."""

    name: str
    section: str
    field: str
    type: Any
    default: Any
    what: str
    kind: SettingKind
    words: dict[str, int] = {}
    """Words that stand for numbers of tokens."""
    unset: str = ""
    """The value that holds if it is not set, if that is not a default of ours."""
    mask: SettingMask = PLAIN
    """How it is shown."""

    @property
    def variable(self) -> str:
        return PREFIX + _joined(self.name, "_").upper().replace("_NAME_", "_<NAME>_")

    @property
    def flag(self) -> str:
        return f"--{_joined(self.name, '-').replace('-NAME-', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag, *([SHORT_FLAGS[self.name]] if self.name in SHORT_FLAGS else []))

    @property
    def is_optional(self) -> bool:
        """Whether the preset, the model or the client decides if it is not set."""
        return self.default is None

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes, if these are all."""
        if self.kind != "plain":
            return ()
        whole = get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type
        parts = (
            [whole]
            if get_origin(whole) is Literal
            else [one for one in get_args(whole) if one is not NoneType]
        )
        are_all = all(get_origin(one) is Literal for one in parts)
        return tuple(str(word) for one in parts for word in get_args(one)) if are_all else ()

    @property
    def is_tunable(self) -> bool:
        return self.name in TUNABLE

    @property
    def is_upstream(self) -> bool:
        return self.section == UPSTREAMS


def _joined(name: str, mark: str) -> str:
    return re.sub(r"[._-]", mark, name)


def _keys(kind: type[Struct], section: str, prefix: str) -> Iterator[SettingKey]:
    hints = get_type_hints(kind, include_extras=True)
    for field in structs.fields(kind):
        default = field.default_factory() if field.default is NODEFAULT else field.default
        form, words = _kind(hints[field.name])
        meta = next(one for one in get_args(hints[field.name]) if isinstance(one, Meta))
        name, unset = f"{prefix}.{field.name}", (meta.extra or {}).get("unset", "")
        what, mask = meta.description or "", _mask(name, hints[field.name])
        yield SettingKey(
            name, section, field.name, hints[field.name], default, what, form, words, unset, mask
        )


def _mask(name: str, annotated: Any) -> SettingMask:
    """Return the mask of a setting.

    Raises:
        TypeError: the setting takes text, but has no mask that says whether a secret may be in it.
    """
    marks = [mark for mark in get_args(annotated) if isinstance(mark, SettingMask)]
    if not marks and takes_text(annotated):
        raise TypeError(f"{name} takes text: give it a mark from refold.config.tree")
    return marks[0] if marks else PLAIN


def _kind(annotated: Any) -> tuple[SettingKind, dict[str, int]]:
    """Return how values of a type are read."""
    marks = [*parts_of(annotated)]
    if counted := next((mark for mark in marks if isinstance(mark, TokenNumber)), None):
        return "tokens", dict(counted.words)
    found: list[SettingKind] = [form for mark, form in _FORMS.items() if mark in marks]
    return (found[0] if found else "plain"), {}


def parts_of(annotated: Any) -> Iterator[Any]:
    """Yield every type and mark that a type is made of."""
    if get_origin(annotated) is Annotated:
        inner, *marks = get_args(annotated)
        yield from (*parts_of(inner), *marks)
        return
    yield get_origin(annotated) or annotated
    if get_origin(annotated) not in (tuple, dict, Literal):
        for part in get_args(annotated):
            yield from parts_of(part)


_FORMS: dict[Any, SettingKind] = {
    tuple: "list",
    dict: "table",
    bool: "switch",
    Tokens: "size",
    Share: "share",
}
"""The first of these that a type holds decides how it is read."""

SECTIONS: dict[str, type[Struct]] = {
    field.name: type(field.default) for field in structs.fields(Settings) if field.name != UPSTREAMS
}
KEYS: dict[str, SettingKey] = {
    key.name: key for name, kind in SECTIONS.items() for key in _keys(kind, name, name)
}
UPSTREAM_KEYS: dict[str, SettingKey] = {
    key.field: key for key in _keys(UpstreamSettings, UPSTREAMS, ANY_NAME)
}


def all_keys() -> tuple[SettingKey, ...]:
    return (*KEYS.values(), *UPSTREAM_KEYS.values())


def find_key(name: str) -> SettingKey | None:
    """Return the setting of a name in a file; None if there is none."""
    section, _, rest = name.partition(".")
    if section != UPSTREAMS:
        return KEYS.get(name)
    upstream, _, field = rest.partition(".")
    return UPSTREAM_KEYS.get(field) if is_upstream_name(upstream) else None


def is_upstream_name(name: str) -> bool:
    return re.fullmatch(UPSTREAM_NAME, name) is not None


def nearest(name: str) -> str:
    """Return the known name that is most similar; empty if none is."""
    section, _, rest = name.partition(".")
    field, upstream = name.rpartition(".")[2], rest.partition(".")[0]
    same = [key.name for key in KEYS.values() if key.field == field]
    known = [*KEYS, *SECTIONS, UPSTREAMS]
    if section == UPSTREAMS and is_upstream_name(upstream):
        known += [f"{UPSTREAMS}.{upstream}.{field}" for field in UPSTREAM_KEYS]
    return next(iter(get_close_matches(name, known, n=1) or same), "")
