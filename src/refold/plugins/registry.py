"""Loads plugins, checks what they declare, holds those in use, and calls their code.

`load_plugins` finds them by the entry points of installed packages and by files, and makes them the active
ones of this process. Every part of Refold that has a point asks `active()`. A plugin with a fault in its
declaration is left out as a whole, with a warning. `PluginGuard` calls the code of one plugin.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct, structs

from refold.core.plugin_points import PluginPoint, PluginStage, PluginTrigger, UnusableAnswer
from refold.core.policy import Moment, Policy
from refold.core.presets import PRESETS
from refold.model.errors import ConfigError, SummaryError, error_location
from refold.model.message import Message
from refold.model.tokens import CountSource, TokenCounter
from refold.plugins.plugin import API, GROUP, ChatCommand, Plugin, StoreOpener
from refold.ports.models import SummaryFunction

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
import asyncio
import threading
import time
from collections import Counter
from contextlib import suppress
from inspect import isawaitable
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from refold.model.errors import PluginError

_log = logging.getLogger("refold")

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}\Z")
SCHEME = re.compile(r"[a-z][a-z0-9+-]{1,30}\Z")
OWN_SCHEMES = frozenset(("sqlite", "memory", "postgres", "postgresql", "file", "http", "https"))
OWN_COMMANDS = frozenset(
    (
        *("/status", "/new", "/clear", "/compact", "/prune", "/prune-tools", "/resume", "/abort", "/stop"),
        *("/cancel", "/context", "/undo", "/diff", "/model", "/preset", "/recall", "/search", "/help"),
        *("/exit", "/quit"),
    )
)
"""The names and aliases in `refold.chat.commands.COMMANDS`, which is above this module."""
LOAD_S = 30.0
"""Seconds for the import of one plugin by a command. Large libraries take a few."""
MAX_TIMEOUT_S = 600.0
SUMMARY_S = 300.0
"""Seconds for a summary. Nobody waits so long: the conversation goes on meanwhile."""
MAX_SUMMARY = 1_000_000
"""Characters of a summary: no window holds a longer one."""
VARIABLE = "plugin"
"""The variable of a file that holds its plugin."""


class LoadedPlugin(Struct, frozen=True):
    """A plugin in use."""

    plugin: Plugin
    source: str
    """The distribution, or the file, that it comes from."""
    guard: PluginGuard


class PluginProblem(Struct, frozen=True):
    """A plugin that was not loaded."""

    source: str
    reason: str
    name: str = ""
    """That of its entry point; none for a file."""


class Plugins:
    """The plugins in use, in their order: by name, then those of files as they were given."""

    def __init__(self, loaded: Sequence[LoadedPlugin] = (), problems: Sequence[PluginProblem] = ()) -> None:
        self.loaded, self.problems = tuple(loaded), tuple(problems)
        self.has_request_filters = any(one.plugin.on_request is not None for one in self.loaded)
        self.has_response_filters = any(one.plugin.on_response is not None for one in self.loaded)

    def __iter__(self) -> Iterator[LoadedPlugin]:
        return iter(self.loaded)

    def __len__(self) -> int:
        return len(self.loaded)

    @property
    def presets(self) -> dict[str, Policy]:
        """The presets of Refold and of the plugins."""
        own = {name: policy for one in self.loaded for name, policy in one.plugin.presets.items()}
        return {**PRESETS, **own}

    def extended(self, policy: Policy) -> Policy:
        """A policy with the stages and triggers of the plugins."""
        if policy.runs_plugins or not self.loaded:
            return policy
        stages = [PluginStage(one.plugin.name, each, one.guard) for one in self for each in one.plugin.stages]
        triggers = [
            PluginTrigger(one.plugin.name, moment, each, one.guard)
            for one in self
            for moment, each in one.plugin.triggers.items()
        ]
        if not stages and not triggers:
            return policy
        return structs.replace(policy, plugin_stages=tuple(stages), plugin_triggers=tuple(triggers))

    def counter(self, model: str, own: Callable[[], TokenCounter]) -> TokenCounter | None:
        """The counter of the first plugin with a pattern for a model; None if there is none. `own` counts instead of one that fails."""
        name = model.lower()
        for one in self:
            for pattern, counter in one.plugin.counters.items():
                if fnmatchcase(name, pattern.lower()):
                    return GuardedCounter(counter, one.guard, own)
        return None

    def store_opener(self, scheme: str) -> StoreOpener | None:
        return next((one.plugin.stores[scheme] for one in self if scheme in one.plugin.stores), None)

    def summariser(self, name: str) -> SummaryFunction:
        """The summariser of this name.

        Raises:
            ConfigError: no plugin has one.
        """
        found = {key: (each, one.guard) for one in self for key, each in one.plugin.summarisers.items()}
        if name not in found:
            known = f"there are: {', '.join(found)}" if found else "`refold plugins list` shows the plugins"
            raise ConfigError(f"no plugin has a summariser {name[:40]!r}", hint=known)
        return _guarded_writer(*found[name])

    @property
    def commands(self) -> list[tuple[str, ChatCommand]]:
        """The commands, each with the name of its plugin."""
        return [(one.plugin.name, command) for one in self for command in one.plugin.commands]

    @property
    def counts(self) -> dict[tuple[str, PluginPoint, PluginOutcome], int]:
        """The calls since the start, by plugin, point and outcome."""
        return {(one.plugin.name, *key): count for one in self for key, count in one.guard.counts.items()}


def _guarded_writer(function: SummaryFunction, guard: PluginGuard) -> SummaryFunction:
    async def write(messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int) -> str:
        ask = partial(function, messages, previous=previous, max_tokens=max_tokens)
        found = await guard.call("summariser", ask, _checked_summary, timeout_s=SUMMARY_S)
        if found is None:
            raise SummaryError("the plugin wrote no summary")
        return found

    return write


def _checked_summary(answer: object) -> str:
    if not isinstance(answer, str) or len(answer) > MAX_SUMMARY:
        raise UnusableAnswer("a summariser returns a text of a possible length")
    try:
        answer.encode()
    except UnicodeEncodeError:
        raise UnusableAnswer("a summary is not valid Unicode") from None
    return answer


class GuardedCounter:
    """A plugin's counter. Once it fails, Refold's own counts from then on."""

    def __init__(self, counter: TokenCounter, guard: PluginGuard, own: Callable[[], TokenCounter]) -> None:
        self._counter: TokenCounter | None = counter
        self._guard, self._own = guard, own
        self.source: CountSource = "estimated" if getattr(counter, "source", "") == "estimated" else "counted"

    def text(self, text: str, /) -> int:
        found = self._count(lambda counter: counter.text(text), len(text), is_blank=text.isspace())
        return self._own().text(text) if found is None else found

    def message(self, message: Message, /) -> int:
        found = self._count(lambda counter: counter.message(message), message.characters)
        return self._own().message(message) if found is None else found

    def _count(
        self, count: Callable[[TokenCounter], object], characters: int, *, is_blank: bool = False
    ) -> int | None:
        if self._counter is None:
            return None
        try:
            found = count(self._counter)
        except Exception as error:  # noqa: BLE001  # code of others
            self._guard.fault("counter", "raised", error_location(error))
        else:
            # No token is longer than a thousand characters, so a text has one at least; some vocabularies have none for spaces.
            # And no message has more than a few tokens for each character.
            least = 0 if is_blank else -(-characters // 1_000)
            if type(found) is int and least <= found <= 16 * characters + 10_000:
                return found
            self._guard.fault("counter", "unusable", "it returned no possible number of tokens")
        self._counter = None
        return None


# Loading

_active = Plugins()


def active() -> Plugins:
    """The plugins in use in this process."""
    return _active


def use(plugins: Plugins) -> None:
    """Use these plugins from now on, for what is opened from now on."""
    global _active  # noqa: PLW0603  # plugins are code, and belong to the process as imported modules do
    _active = plugins


def load_plugins(
    *files: str | PathLike[str],
    installed: bool = True,
    off: Iterable[str] = (),
    required: Iterable[str] = (),
    timeout_s: float | None = None,
) -> Plugins:
    """Load plugins and use them in this process: those of files, and those of installed packages.

    Args:
        files: Python files with a variable `plugin`.
        installed: load those of installed packages too.
        off: names of plugins, or of their entry points, to leave out.
        required: names of plugins without which Refold must not run.
        timeout_s: seconds for the import of each, in a thread of its own; by default it is imported here, and waited for.

    Raises:
        ConfigError: a file has no plugin that can be used, or a required plugin is missing.
    """
    plugins = find_plugins(files, installed=installed, off=off, timeout_s=timeout_s)
    for problem in plugins.problems:
        _log.warning("no plugin of %s: %s", problem.source, problem.reason)
    broken = {str(file) for file in files} & {problem.source for problem in plugins.problems}
    for problem in plugins.problems:
        if problem.source in broken:
            raise ConfigError(
                f"the plugin file {problem.source} cannot be used: {problem.reason}",
                hint="`refold plugins check FILE` says more",
            )
    missing = {*required} - {one.plugin.name for one in plugins}
    if missing:
        raise ConfigError(
            f"the required plugin {min(missing)[:40]!r} is not loaded",
            hint="`refold plugins list` shows the plugins, and why one is left out",
        )
    use(plugins)
    return plugins


def find_plugins(
    files: Iterable[str | PathLike[str]] = (),
    *,
    installed: bool = True,
    off: Iterable[str] = (),
    timeout_s: float | None = None,
) -> Plugins:
    """Load plugins without using them. The arguments are those of `load_plugins`."""
    left_out, loaded, problems = {*off}, dict[str, LoadedPlugin](), list[PluginProblem]()
    for source, name, load in _sources(files, installed=installed):
        if name in left_out:  # its code does not run
            continue
        try:
            plugin = _loaded(load, timeout_s)
            if plugin.name in left_out:
                continue
            _check_names(plugin, loaded)
        except ConfigError as error:
            problems.append(PluginProblem(source, error.message, name))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # code of others runs when it is imported
            reason = f"it cannot be imported: {error_location(error)}"
            problems.append(PluginProblem(source, reason, name))
        else:
            loaded[plugin.name] = LoadedPlugin(plugin, source, PluginGuard(plugin))
    return Plugins([*loaded.values()], problems)


def _loaded(load: Callable[[], object], timeout_s: float | None) -> Plugin:
    """Import a plugin and check it.

    Raises:
        ConfigError: it cannot be used, or its import has not ended in time.
    """
    if timeout_s is None:
        return check_plugin(load())
    done = threading.Event()
    made = _Call(lambda: check_plugin(load()), done.set)
    threading.Thread(target=made.run, name="refold-plugin-import", daemon=True).start()
    if not done.wait(timeout_s):
        raise ConfigError(
            f"its import has not ended after {timeout_s:g} s",
            hint="leave work and connections to the functions of the plugin",
        )
    if made.error is not None:
        raise made.error
    assert isinstance(made.answer, Plugin)
    return made.answer


def _sources(
    files: Iterable[str | PathLike[str]], *, installed: bool
) -> Iterator[tuple[str, str, Callable[[], object]]]:
    if installed:
        from importlib.metadata import entry_points  # here: it takes longer to import than this module

        for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
            yield _source(point), point.name, point.load
    for file in files:
        yield str(file), "", partial(load_file, file)


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def load_file(file: str | PathLike[str]) -> object:
    """The variable `plugin` of a Python file.

    Raises:
        ConfigError: there is no such file, or it has no such variable.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError("there is no such file", hint="give the path of a Python file")
    name = f"refold_plugin_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("it is no Python file", hint="its name ends in .py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # classes of the module look it up
    spec.loader.exec_module(module)
    if not hasattr(module, VARIABLE):
        raise ConfigError("it has no variable `plugin`", hint="write plugin = refold.Plugin(...)")
    return getattr(module, VARIABLE)


def check_plugin(value: object) -> Plugin:
    """The plugin, if what it declares can work. A function is called first: it returns the plugin.

    Raises:
        ConfigError: it cannot.
    """
    if callable(value) and not isinstance(value, Plugin):
        value = value()
    if not isinstance(value, Plugin):
        raise ConfigError("it is no refold.Plugin: name one, or a function that returns one")
    if value.api != API:
        raise ConfigError(
            f"it was written for version {value.api!r} of the plugin protocols, and this is {API}"
        )
    for is_right, problem in _declaration(value):
        if not is_right:
            raise ConfigError(problem)
    return value


def _declaration(plugin: Plugin) -> Iterator[tuple[bool, str]]:
    """What must hold for each member, and what is wrong otherwise. Types are checked before values."""
    seconds = plugin.timeout_s
    yield is_name(plugin.name), "its name is not made of lower-case letters, digits, - and _"
    yield plugin.fails in ("open", "closed"), "`fails` is neither open nor closed"
    is_time = type(seconds) in (int, float) and 0 < seconds <= MAX_TIMEOUT_S
    yield is_time, f"`timeout_s` is no number of seconds up to {MAX_TIMEOUT_S:g}"
    for member in ("on_request", "on_response"):
        function = getattr(plugin, member)
        yield function is None or callable(function), f"`{member}` is no function"
    yield _are(plugin.stages, callable), "`stages` is a list of functions"
    yield _are(plugin.commands, _is_command), "`commands` is a list of refold.Command"
    yield _maps(plugin.triggers, get_args(Moment).__contains__, callable), _MOMENTS
    yield _maps(plugin.summarisers, is_name, callable), "`summarisers` maps names to functions"
    yield (
        _maps(plugin.counters, bool, _is_counter),
        "`counters` maps patterns to counters with `text` and `message`",
    )
    yield _maps(plugin.stores, is_scheme, callable), "`stores` maps schemes of URLs to functions"
    yield _maps(plugin.presets, is_name, _is_policy), "`presets` maps names to policies"


_MOMENTS = f"`triggers` maps moments ({', '.join(get_args(Moment))}) to functions"


def is_name(text: object) -> bool:
    return isinstance(text, str) and NAME.match(text) is not None


def is_scheme(text: object) -> bool:
    return isinstance(text, str) and SCHEME.match(text) is not None


def _is_policy(value: object) -> bool:
    return isinstance(value, Policy)


def _is_counter(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("text", "message"))


def _is_command(value: object) -> bool:
    texts = (getattr(value, name, None) for name in ("name", "summary", "usage"))
    return (
        all(isinstance(text, str) for text in texts)
        and _are(getattr(value, "aliases", None), lambda name: isinstance(name, str))
        and callable(getattr(value, "run", None))
    )


def _are(values: object, check: Callable[[object], bool]) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(map(check, values))


def _maps(table: object, is_key: Callable[[str], bool], is_value: Callable[[object], bool]) -> bool:
    return isinstance(table, Mapping) and all(
        isinstance(key, str) and is_key(key) and is_value(value) for key, value in table.items()
    )


def _check_names(plugin: Plugin, loaded: Mapping[str, LoadedPlugin]) -> None:
    """Refuse names that are taken: a plugin replaces nothing of Refold, and nothing of another plugin."""
    if plugin.name in loaded:
        raise ConfigError(f"{loaded[plugin.name].source} has a plugin of the same name")
    known = [one.plugin for one in loaded.values()]
    taken = {
        "preset": ({*plugin.presets}, {*PRESETS, *(name for one in known for name in one.presets)}),
        "store": ({*plugin.stores}, {*OWN_SCHEMES, *(name for one in known for name in one.stores)}),
        "summariser": ({*plugin.summarisers}, {name for one in known for name in one.summarisers}),
        "command": ({*_typed(plugin)}, {*OWN_COMMANDS, *(name for one in known for name in _typed(one))}),
    }
    for kind, (own, theirs) in taken.items():
        if both := own & theirs:
            raise ConfigError(f"there is a {kind} {min(both)!r} already")


def _typed(plugin: Plugin) -> Iterator[str]:
    """The names and aliases of the commands."""
    for command in plugin.commands:
        yield from (command.name, *command.aliases)


T = TypeVar("T")
PluginOutcome: TypeAlias = Literal["ok", "raised", "late", "unusable", "off", "refused"]
"""How a call ended: `late` passed its deadline, `off` was not made because an earlier one has not ended, `unusable`
returned something that is not used, `refused` ended the request by the plugin's own wish."""


class _Call:
    """One call in a thread."""

    def __init__(self, function: Callable[[], object], done: Callable[[], None]) -> None:
        self.answer: object = None
        self.error: BaseException | None = None
        self._function, self._done = function, done

    def run(self) -> None:
        try:
            answer = self._function()
            self.answer = asyncio.run(_awaited(answer)) if isawaitable(answer) else answer
        except BaseException as error:  # noqa: BLE001  # code of others: also SystemExit
            self.error = error
        finally:
            self._done()


async def _awaited(answer: Any) -> object:
    return await answer


class _LeftCall(NamedTuple):
    """A call whose caller was cancelled before the deadline."""

    point: PluginPoint
    thread: threading.Thread
    ends: float
    """The deadline, by the monotonic clock."""


class PluginGuard:
    """Calls one plugin with a deadline, never in the event loop, and counts the outcomes by point.

    Each call runs in a daemon thread of its own; a coroutine gets an event loop there. After the deadline the
    caller goes on, and the plugin is not called again until the thread has ended. So a plugin that hangs costs one
    deadline for each call that was in progress, and as many threads. A call whose caller is cancelled keeps its
    deadline. Python cannot stop a thread: code that holds the interpreter lock (a regular expression without end)
    or takes all memory stops the process, whatever is done here.
    """

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.counts: Counter[tuple[PluginPoint, PluginOutcome]] = Counter()
        self._late: list[threading.Thread] = []
        self._left: list[_LeftCall] = []
        self._lock = threading.Lock()

    def __call__(self, point: PluginPoint, call: Callable[[], object], check: Callable[[Any], T]) -> T | None:
        """Call it, and wait. See `refold.core.plugin_points.Guard`."""
        if self.is_stuck:
            self.fault(point, "off", "an earlier call has not ended")
            return None
        done = threading.Event()
        made = _Call(call, done.set)
        thread = self._start(made, point)
        if not done.wait(self.plugin.timeout_s):
            self._give_up(point, thread)
            return None
        return self._read(point, made, check)

    async def call(
        self,
        point: PluginPoint,
        call: Callable[[], object],
        check: Callable[[Any], T],
        *,
        timeout_s: float | None = None,
    ) -> T | None:
        """The same without blocking the event loop; `timeout_s` replaces the plugin's own."""
        if self.is_stuck:
            self.fault(point, "off", "an earlier call has not ended")
            return None
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the event loop was closed: nobody waits
                loop.call_soon_threadsafe(done.set)

        made = _Call(call, tell)
        limit_s = timeout_s or self.plugin.timeout_s
        ends = time.monotonic() + limit_s
        thread = self._start(made, point)
        try:
            async with asyncio.timeout(limit_s):
                await done.wait()
        except asyncio.CancelledError:  # the client has gone, and the thread may hang
            with self._lock:
                self._left.append(_LeftCall(point, thread, ends))
            loop.call_later(max(0.0, ends - time.monotonic()), self._note_left)
            raise
        except TimeoutError:
            self._give_up(point, thread, timeout_s)
            return None
        return self._read(point, made, check)

    @property
    def is_stuck(self) -> bool:
        """Whether a call that passed its deadline is still running."""
        self._note_left()
        with self._lock:
            self._late = [thread for thread in self._late if thread.is_alive()]
            return bool(self._late)

    def fault(self, point: PluginPoint, outcome: PluginOutcome, why: str) -> None:
        """Count and log a call that failed.

        Raises:
            PluginError: the plugin fails closed.
        """
        with self._lock:
            self.counts[point, outcome] += 1
        is_closed = self.plugin.fails == "closed" and point in ("request", "response", "stage", "trigger")
        follows = "the request ends" if is_closed else "it is skipped"
        _log.warning("plugin %s, %s: %s; %s", self.plugin.name, point, why, follows)
        if is_closed:
            raise PluginError(f"the plugin {self.plugin.name} failed, and no request is sent without it")

    def note(self, point: PluginPoint, outcome: PluginOutcome = "ok") -> None:
        """Count a call that was made elsewhere."""
        with self._lock:
            self.counts[point, outcome] += 1

    def take_back(self, point: PluginPoint) -> None:
        """Count a call no longer as `ok`: its answer refuses, or a later check has found it unusable."""
        with self._lock:
            self.counts[point, "ok"] -= 1
            if not self.counts[point, "ok"]:
                del self.counts[point, "ok"]

    def _start(self, made: _Call, point: PluginPoint) -> threading.Thread:
        thread = threading.Thread(
            target=made.run, name=f"refold-plugin-{self.plugin.name}-{point}", daemon=True
        )
        thread.start()
        return thread

    def _give_up(self, point: PluginPoint, thread: threading.Thread, timeout_s: float | None = None) -> None:
        with self._lock:
            self._late.append(thread)
        self.fault(point, "late", f"no answer within {timeout_s or self.plugin.timeout_s:g} s")

    def _note_left(self) -> None:
        """Count the calls that were left by their callers and have passed their deadlines as late. No request ends: none waits."""
        now = time.monotonic()
        with self._lock:
            running = [one for one in self._left if one.thread.is_alive()]
            self._left = [one for one in running if one.ends > now]
            late = [one for one in running if one.ends <= now]
            self._late += [one.thread for one in late]
            for one in late:
                self.counts[one.point, "late"] += 1
        for one in late:
            _log.warning(
                "plugin %s, %s: no answer in time, and its caller has gone", self.plugin.name, one.point
            )

    def _read(self, point: PluginPoint, made: _Call, check: Callable[[Any], T]) -> T | None:
        if made.error is not None:
            self.fault(point, "raised", error_location(made.error))
            return None
        try:
            found = check(made.answer)
        except UnusableAnswer as error:
            self.fault(point, "unusable", str(error))
            return None
        except Exception as error:  # noqa: BLE001  # an answer of others may break any reading of it
            self.fault(point, "unusable", f"its answer cannot be read ({type(error).__name__})")
            return None
        self.note(point)
        return found
