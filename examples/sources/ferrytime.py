"""The imaginary project that the coding agent of `coding_agent.py` works on: a small timetable library for ferries."""

from __future__ import annotations

import random

from examples.sources import ferrytime_tests as tests

INIT = '''\
"""Sailings from timetables."""

from ferrytime.board import render_board
from ferrytime.expand import expand
from ferrytime.model import Sailing, Service, Timetable
from ferrytime.timetable import load_timetable

__all__ = ["Sailing", "Service", "Timetable", "expand", "load_timetable", "render_board"]
__version__ = "2.4.1"
'''

MODEL = '''\
"""Values: a timetable has services, a service has sailings."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta


@dataclass(frozen=True)
class Service:
    """One departure that repeats: the 02:30 from Vik on weekdays, say."""

    id: str
    route: str
    origin: str
    destination: str
    departs: time
    crossing: timedelta
    weekdays: frozenset[int]
    first_day: date
    last_day: date
    vessel: str = ""
    notes: tuple[str, ...] = ()

    def runs_on(self, day: date) -> bool:
        return self.first_day <= day <= self.last_day and day.weekday() in self.weekdays


@dataclass(frozen=True, order=True)
class Sailing:
    """One departure on one day. Both moments are aware."""

    departs: datetime
    arrives: datetime
    service_id: str
    route: str = field(compare=False)
    origin: str = field(compare=False)
    destination: str = field(compare=False)


@dataclass(frozen=True)
class Timetable:
    name: str
    zone: str
    services: tuple[Service, ...]
    closed_days: frozenset[date] = frozenset()
'''

CLOCK = '''\
"""Local time: from what the timetable prints to a moment that exists.

Timetables are printed in local time. Twice a year that is not enough: one hour happens twice, another
one never happens.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo


def localise(day: date, clock: time, zone: str) -> datetime:
    """The moment at which a clock in `zone` shows `clock` on `day`."""
    return datetime.combine(day, clock, tzinfo=ZoneInfo(zone))


def candidates(day: date, clock: time, zone: str) -> list[datetime]:
    """Every moment at which a clock in `zone` shows `clock` on `day`: usually one."""
    first = localise(day, clock, zone)
    second = first.replace(fold=1)
    if first.utcoffset() == second.utcoffset():
        return [first]
    return [first, second]


def to_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def same_instant(a: datetime, b: datetime) -> bool:
    return to_utc(a) == to_utc(b)
'''

EXPAND = '''\
"""From services to sailings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta

from ferrytime.clock import candidates
from ferrytime.model import Sailing, Service, Timetable


def expand(timetable: Timetable, first: date, last: date) -> list[Sailing]:
    """Every sailing between two days, both included, in order of departure."""
    if last < first:
        raise ValueError(f"the last day ({last}) is before the first ({first})")
    sailings: list[Sailing] = []
    for service in timetable.services:
        for day in days(first, last):
            if is_closed(timetable, day):
                continue
            if not service.runs_on(day):
                continue
            sailings.extend(sailings_of(service, day, timetable.zone))
    return sorted(sailings)


def sailings_of(service: Service, day: date, zone: str) -> Iterator[Sailing]:
    """What one service does on one day."""
    for departs in candidates(day, service.departs, zone):
        yield Sailing(
            departs=departs,
            arrives=departs + service.crossing,
            service_id=service.id,
            route=service.route,
            origin=service.origin,
            destination=service.destination,
        )


def is_closed(timetable: Timetable, day: date) -> bool:
    return day in set(timetable.closed_days)


def days(first: date, last: date) -> Iterator[date]:
    day = first
    while day <= last:
        yield day
        day += timedelta(days=1)


def next_sailing(timetable: Timetable, origin: str, after) -> Sailing | None:
    """The next departure from a quay, looking at most two weeks ahead."""
    start = after.date()
    for sailing in expand(timetable, start, start + timedelta(days=14)):
        if sailing.origin == origin and sailing.departs >= after:
            return sailing
    return None
'''

TIMETABLE = '''\
"""Reading timetables from TOML."""

from __future__ import annotations

import tomllib
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any

from ferrytime.model import Service, Timetable

WEEKDAYS = {"mon": 0, "tue": 1, "wed": 2, "thu": 3, "fri": 4, "sat": 5, "sun": 6}
GROUPS = {"daily": range(7), "weekdays": range(5), "weekend": (5, 6)}


class TimetableError(ValueError):
    """A timetable that cannot be read; says which service and which field."""


def load_timetable(path: Path) -> Timetable:
    """Read a timetable from a TOML file."""
    with path.open("rb") as file:
        data = tomllib.load(file)
    services = tuple(read_service(entry, data) for entry in data.get("service", ()))
    closed = frozenset(date.fromisoformat(day) for day in data.get("closed", ()))
    return Timetable(data["name"], data["zone"], services, closed)


def read_service(entry: dict[str, Any], data: dict[str, Any]) -> Service:
    try:
        return Service(
            id=entry["id"],
            route=entry["route"],
            origin=entry["from"],
            destination=entry["to"],
            departs=time.fromisoformat(entry["departs"]),
            crossing=timedelta(minutes=entry["minutes"]),
            weekdays=read_weekdays(entry.get("runs", "daily")),
            first_day=date.fromisoformat(data["valid_from"]),
            last_day=date.fromisoformat(data["valid_to"]),
            vessel=entry.get("vessel", ""),
            notes=tuple(entry.get("notes", ())),
        )
    except KeyError as error:
        raise TimetableError(f"service {entry.get('id', '?')}: {error} is missing") from error
    except ValueError as error:
        raise TimetableError(f"service {entry.get('id', '?')}: {error}") from error


def read_weekdays(text: str) -> frozenset[int]:
    if text in GROUPS:
        return frozenset(GROUPS[text])
    try:
        return frozenset(WEEKDAYS[name] for name in text.split())
    except KeyError as error:
        raise ValueError(f"unknown weekday {error}") from error
'''

BOARD = '''\
"""The departure board: sailings as lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from ferrytime.model import Sailing

HEADER = "departs  arrives  route                          service"


def render_board(sailings: Iterable[Sailing], day: date) -> str:
    """The board of one day, as printed at the quay."""
    lines = [HEADER]
    for sailing in sailings:
        if sailing.departs.date() == day:
            lines.append(render_line(sailing, day))
    if len(lines) == 1:
        lines.append("no sailings today")
    return "\\n".join(lines)


def render_line(sailing: Sailing, day: date) -> str:
    arrives = f"{sailing.arrives:%H:%M}{day_mark(sailing, day)}"
    route = f"{sailing.origin} - {sailing.destination}"
    return f"{sailing.departs:%H:%M}    {arrives:<8} {route:<30} {sailing.service_id}"


def day_mark(sailing: Sailing, day: date) -> str:
    """"+1" where the boat arrives on the day after."""
    return "+1" if sailing.arrives.day > day.day else ""
'''

PYPROJECT = """\
[project]
name = "ferrytime"
version = "2.4.1"
requires-python = ">=3.11"
dependencies = ["tzdata; sys_platform == 'win32'"]

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "-ra"

[tool.mypy]
strict = true
files = ["src"]
"""

CHANGELOG = """\
# Changelog

## 2.4.1
- The board is aligned when a route name is long.

## 2.4.0
- `render_board` takes any iterable of sailings.
- Timetables may close on single days (`closed`).
"""

QUAYS = ("Vik", "Sandholm", "Kvalnes", "Torsund", "Ytterhamn", "Lysø", "Brattvik", "Store Måsøy")
VESSELS = ("Havørn", "Lunde", "Tjeld", "Skarv")
RUNS = ("daily", "weekdays", "weekend", "mon wed fri", "tue thu", "sat")
NOTES = ("no heavy vehicles", "book until 18:00 the day before", "calls on request", "kiosk closed")


def north_timetable(rng: random.Random, services: int = 64) -> str:
    """A timetable file long enough to hurt when it is read whole."""
    lines = [
        'name = "North fjord"',
        'zone = "Europe/Oslo"',
        'valid_from = "2025-01-06"',
        'valid_to = "2025-12-21"',
        'closed = ["2025-04-18", "2025-05-17"]',
    ]
    for number in range(1, services + 1):
        lines += ["", *_service(rng, "N-77" if number == 41 else f"N-{number:02}", is_night=number == 41)]
    return "\n".join(lines) + "\n"


def _service(rng: random.Random, name: str, *, is_night: bool) -> list[str]:
    origin, destination = ("Vik", "Sandholm") if is_night else rng.sample(QUAYS, 2)
    departs = "02:30" if is_night else f"{rng.randrange(5, 24):02}:{rng.choice(('00', '15', '20', '45'))}"
    lines = [
        "[[service]]",
        f'id = "{name}"',
        f'route = "{origin.split()[-1].lower()}-{destination.split()[-1].lower()}"',
        f'from = "{origin}"',
        f'to = "{destination}"',
        f'departs = "{departs}"',
        f"minutes = {50 if is_night else rng.randrange(15, 95, 5)}",
        f'runs = "{"daily" if is_night else rng.choice(RUNS)}"',
        f'vessel = "{rng.choice(VESSELS)}"',
    ]
    return [*lines, f'notes = ["{rng.choice(NOTES)}"]'] if rng.random() < 0.3 else lines


def files(rng: random.Random) -> dict[str, str]:
    return {
        "CHANGELOG.md": CHANGELOG,
        "data/north.toml": north_timetable(rng),
        "pyproject.toml": PYPROJECT,
        "src/ferrytime/__init__.py": INIT,
        "src/ferrytime/board.py": BOARD,
        "src/ferrytime/clock.py": CLOCK,
        "src/ferrytime/expand.py": EXPAND,
        "src/ferrytime/model.py": MODEL,
        "src/ferrytime/timetable.py": TIMETABLE,
        "tests/test_board.py": tests.BOARD,
        "tests/test_clock.py": tests.CLOCK,
        "tests/test_expand.py": tests.EXPAND,
    }
