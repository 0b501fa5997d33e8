"""The tests of the imaginary project in `ferrytime.py`."""

from __future__ import annotations

CLOCK = """\
from datetime import date, time, timedelta

import pytest

from ferrytime.clock import candidates, localise, same_instant, to_utc

ZONE = "Europe/Oslo"


@pytest.mark.parametrize("month", range(1, 13))
def test_the_first_of_the_month_is_ordinary(month):
    assert len(candidates(date(2025, month, 1), time(2, 30), ZONE)) == 1


def test_winter_is_one_hour_ahead_of_utc():
    assert localise(date(2025, 1, 10), time(12), ZONE).utcoffset() == timedelta(hours=1)


def test_summer_is_two_hours_ahead_of_utc():
    assert localise(date(2025, 7, 10), time(12), ZONE).utcoffset() == timedelta(hours=2)


def test_to_utc_keeps_the_instant():
    moment = localise(date(2025, 7, 10), time(12), ZONE)
    assert same_instant(moment, to_utc(moment))
"""

EXPAND = """\
from datetime import date, time, timedelta

import pytest

from ferrytime.expand import days, expand, next_sailing
from ferrytime.model import Service, Timetable


def service(id="N-77", departs=time(2, 30), weekdays=frozenset(range(7))):
    return Service(
        id=id,
        route="north",
        origin="Vik",
        destination="Sandholm",
        departs=departs,
        crossing=timedelta(minutes=50),
        weekdays=weekdays,
        first_day=date(2025, 1, 1),
        last_day=date(2025, 12, 31),
    )


def timetable(*services, closed=()):
    return Timetable("north", "Europe/Oslo", services, frozenset(closed))


@pytest.mark.parametrize("hour", range(24))
def test_one_service_sails_once_a_day(hour):
    table = timetable(service(departs=time(hour, 15)))
    assert len(expand(table, date(2025, 5, 1), date(2025, 5, 31))) == 31


def test_closed_days_have_no_sailings():
    table = timetable(service(), closed=[date(2025, 5, 17)])
    assert len(expand(table, date(2025, 5, 16), date(2025, 5, 18))) == 2


def test_sailings_come_in_order():
    table = timetable(service("A", time(9)), service("B", time(7)))
    assert [s.service_id for s in expand(table, date(2025, 5, 1), date(2025, 5, 1))] == ["B", "A"]


def test_a_reversed_range_is_refused():
    with pytest.raises(ValueError, match="before"):
        expand(timetable(service()), date(2025, 5, 2), date(2025, 5, 1))


def test_days_are_inclusive():
    assert len(list(days(date(2025, 5, 1), date(2025, 5, 3)))) == 3


def test_next_sailing_gives_up_after_two_weeks():
    table = timetable(service(weekdays=frozenset()))
    assert next_sailing(table, "Vik", expand(timetable(service()), date(2025, 5, 1), date(2025, 5, 1))[0].departs) is None
"""

BOARD = """\
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ferrytime.board import HEADER, render_board
from ferrytime.model import Sailing

OSLO = ZoneInfo("Europe/Oslo")


def sailing(departs, minutes=50):
    moment = departs.replace(tzinfo=OSLO)
    return Sailing(moment, moment + timedelta(minutes=minutes), "N-77", "north", "Vik", "Sandholm")


def test_an_empty_board_says_so():
    assert render_board([], date(2025, 5, 1)) == f"{HEADER}\\nno sailings today"


@pytest.mark.parametrize("hour", range(0, 23))
def test_a_line_shows_both_times(hour):
    board = render_board([sailing(datetime(2025, 5, 1, hour, 5))], date(2025, 5, 1))
    assert f"{hour:02}:05    {hour:02}:55" in board


def test_arrival_on_the_next_day_is_marked():
    board = render_board([sailing(datetime(2025, 5, 1, 23, 30))], date(2025, 5, 1))
    assert "00:20+1" in board
"""
