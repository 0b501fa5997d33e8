"""What people said and programs printed in the story of `coding_agent.py`."""

from __future__ import annotations

BUG_REPORT = """
We have a complaint from the harbour office in Vik. On the night the clocks go back the departure board shows the 02:30
night boat twice, an hour apart, and people wait for a boat that never comes. It is service N-77 in data/north.toml, the
day is 2025-10-26. Please find out why and fix it.

Rules for everything you do here:
1. Never touch the public API: src/ferrytime/__init__.py and the fields of Sailing, Service and Timetable stay as they are.
   Two other teams import from there.
2. Keep it working on Python 3.11. Our servers are not moving before next summer.
3. No new dependencies.
"""

HEADER = "departs  arrives  route                          service"
DOUBLED_BOARD = f"""{HEADER}
02:30    02:20    Vik - Sandholm                 N-77
02:30    03:20    Vik - Sandholm                 N-77
08:15    08:50    Kvalnes - Torsund              N-06
09:00    10:10    Sandholm - Lysø                N-22
09:45    10:15    Ytterhamn - Vik                N-13
11:20    12:35    Brattvik - Store Måsøy         N-58
14:00    14:25    Lysø - Kvalnes                 N-31
17:45    18:40    Torsund - Sandholm             N-09
23:20    00:05+1  Vik - Brattvik                 N-47
[exit code 0]"""
SINGLE_BOARD = DOUBLED_BOARD.replace("02:30    03:20    Vik - Sandholm                 N-77\n", "")

SAILINGS_OF = "    departs = candidates(day, service.departs, zone)[0]\n    yield Sailing("
BROKEN_BODY = """\
    departs = candidates(day, service.departs, zone)[0]
    yield Sailing(
            departs=departs,
            arrives=departs + service.crossing,
            service_id=service.id,
            route=service.route,
            origin=service.origin,
            destination=service.destination,
        )
"""
FIXED_BODY = """\
    departs = candidates(day, service.departs, zone)[0]
    sailing = Sailing(
        departs=departs,
        arrives=departs + service.crossing,
        service_id=service.id,
        route=service.route,
        origin=service.origin,
        destination=service.destination,
    )
    return [sailing]
"""
AUTUMN_TEST = """

def test_the_night_boat_sails_once_when_the_clocks_go_back():
    sailings = expand(timetable(service()), date(2025, 10, 26), date(2025, 10, 26))
    assert len(sailings) == 1
    assert sailings[0].departs.utcoffset() == timedelta(hours=1)  # first of the two
"""
AUTUMN_FAILURE = (
    "tests/test_expand.py::test_the_night_boat_sails_once_when_the_clocks_go_back",
    """
    def test_the_night_boat_sails_once_when_the_clocks_go_back():
        sailings = expand(timetable(service()), date(2025, 10, 26), date(2025, 10, 26))
        assert len(sailings) == 1
>       assert sailings[0].departs.utcoffset() == timedelta(hours=1)  # first of the two
E       assert datetime.timedelta(seconds=7200) == datetime.timedelta(seconds=3600)

tests/test_expand.py:62: AssertionError
""",
)
FIRST_ANSWER = """
Fixed. **Cause:** on 26 October 02:30 happens twice, `clock.candidates` rightly returns both moments, and
`expand.sailings_of` made a sailing of each. **Change:** it takes the first one (still summer time, UTC+2).
**Proof:** a new test for that night, all tests pass, and the board lists N-77 once.

The public API is untouched. One thing I noticed: the arrival is computed on the clock face, so that night it shows 02:20
for a boat that leaves at 02:30. That is the correct local time after the change; tell me if the board should say so.
"""

SPRING_REQUEST = """
Thanks, 02:20 is right, leave it. Now the other end: in spring the hour from 02:00 to 03:00 does not exist, and N-77 is in it.
The harbour office says the boat then leaves at the first minute that exists, 03:00, not at 03:30. Make it so, also for other
zones, and write down why in the code.
"""
SPRING_BOARD = f"""{HEADER}
02:30    03:20    Vik - Sandholm                 N-77
08:15    08:50    Kvalnes - Torsund              N-06
11:20    12:35    Brattvik - Store Måsøy         N-58
17:45    18:40    Torsund - Sandholm             N-09
[exit code 0]"""
GAP_COMMAND = """python - <<'PY'
from datetime import datetime, UTC
from zoneinfo import ZoneInfo
zone = ZoneInfo("Europe/Oslo")
for fold in (0, 1):
    moment = datetime(2025, 3, 30, 2, 30, tzinfo=zone, fold=fold)
    print(fold, moment.utcoffset(), moment.astimezone(UTC), moment.astimezone(UTC).astimezone(zone))
PY"""
GAP_OUTPUT = """0 1:00:00 2025-03-30 01:30:00+00:00 2025-03-30 03:30:00+02:00
1 2:00:00 2025-03-30 00:30:00+00:00 2025-03-30 01:30:00+01:00
[exit code 0]"""
CANDIDATES_TAIL = """\
    if first.utcoffset() == second.utcoffset():
        return [first]
    return [first, second]
"""
CANDIDATES_TAIL_WITH_GAP = """\
    if first.utcoffset() == second.utcoffset():
        return [first]
    if not exists(first):
        return [after_gap(first)]
    return [first, second]
"""
AFTER_GAP = '''

def exists(moment: datetime) -> bool:
    """Does a clock ever show this time? In the hour that is skipped in spring it does not."""
    return to_utc(moment).astimezone(moment.tzinfo).replace(fold=moment.fold) == moment


def after_gap(moment: datetime) -> datetime:
    """The first moment after the gap that `moment` falls into.

    A boat planned for a time that does not exist leaves as soon as the clock runs again: waiting for the
    printed minutes (03:30 for 02:30) would delay it by half an hour for no reason.
    """
    gap = moment.replace(fold=0).utcoffset() - moment.replace(fold=1).utcoffset()
    return to_utc(moment).astimezone(moment.tzinfo) - gap
'''
AFTER_GAP_WRONG_LINE = """\
    gap = moment.replace(fold=0).utcoffset() - moment.replace(fold=1).utcoffset()
    return to_utc(moment).astimezone(moment.tzinfo) - gap
"""
AFTER_GAP_RIGHT_LINE = """\
    before = to_utc(moment.replace(fold=1))
    after = to_utc(moment.replace(fold=0))
    while after - before > timedelta(minutes=1):
        middle = before + (after - before) / 2
        if middle.astimezone(moment.tzinfo).utcoffset() == after.astimezone(moment.tzinfo).utcoffset():
            after = middle
        else:
            before = middle
    return after.astimezone(moment.tzinfo).replace(second=0, microsecond=0)
"""
SPRING_CLOCK_TESTS = """

def test_a_time_in_the_gap_becomes_the_first_one_after_it():
    (moment,) = candidates(date(2025, 3, 30), time(2, 30), ZONE)
    assert (moment.hour, moment.minute) == (3, 0)


def test_the_last_minute_before_the_gap_is_ordinary():
    (moment,) = candidates(date(2025, 3, 30), time(1, 59), ZONE)
    assert (moment.hour, moment.minute) == (1, 59)


def test_a_gap_of_half_an_hour():
    (moment,) = candidates(date(2025, 10, 5), time(2, 10), "Australia/Lord_Howe")
    assert (moment.hour, moment.minute) == (2, 30)


@pytest.mark.parametrize("minute", range(0, 60))
def test_every_minute_of_the_gap_leaves_at_three(minute):
    (moment,) = candidates(date(2025, 3, 30), time(2, minute), ZONE)
    assert (moment.hour, moment.minute) == (3, 0)
"""
SPRING_EXPAND_TEST = """

def test_the_night_boat_leaves_at_three_when_the_clocks_go_forward():
    (sailing,) = expand(timetable(service()), date(2025, 3, 30), date(2025, 3, 30))
    assert f"{sailing.departs:%H:%M}" == "03:00"
    assert sailing.arrives - sailing.departs == timedelta(minutes=50)
"""
SPRING_FAILURE = (
    "tests/test_clock.py::test_a_time_in_the_gap_becomes_the_first_one_after_it",
    """
    def test_a_time_in_the_gap_becomes_the_first_one_after_it():
        (moment,) = candidates(date(2025, 3, 30), time(2, 30), ZONE)
>       assert (moment.hour, moment.minute) == (3, 0)
E       assert (4, 30) == (3, 0)
E         At index 0 diff: 4 != 3

tests/test_clock.py:33: AssertionError
""",
)
SPRING_ANSWER = """
Done. A printed time that does not exist now becomes the first moment after the gap: N-77 leaves at 03:00 on 30 March.
`clock.after_gap` finds the end of the gap by halving, so it also works where the gap is not one hour (Lord Howe: 30 minutes);
the reason stands in its docstring. I scanned every zone for 2025 and found no gap that it gets wrong.
"""

BOARD_REQUEST = """
The office in Brattvik writes that the "+1" is missing on the last day of every month. Please have a look at the board.
And do not reformat files you do not need to change: the last review was painful.
"""
DAY_MARK_WRONG = '    return "+1" if sailing.arrives.day > day.day else ""\n'
DAY_MARK_RIGHT = '    return "+1" if sailing.arrives.date() > day else ""\n'
BOARD_TESTS = """

@pytest.mark.parametrize("month", range(1, 12))
def test_arrival_after_the_end_of_a_month_is_marked(month):
    last = date(2025, month + 1, 1) - timedelta(days=1)
    board = render_board([sailing(datetime(2025, month, last.day, 23, 30))], last)
    assert "00:20+1" in board


def test_arrival_in_the_new_year_is_marked():
    board = render_board([sailing(datetime(2025, 12, 31, 23, 30))], date(2025, 12, 31))
    assert "00:20+1" in board
"""
BOARD_ANSWER = """
`day_mark` compared days of the month, and after the 31st comes the 1st. It compares dates now. Twelve new tests cover every
end of a month and New Year's Eve; no other place compares `.day` or `.month`. One line changed in `board.py`, nothing
reformatted.
"""

SPEED_REQUEST = """
The nightly export of a whole year takes half a minute since we have 64 services. Can that be faster without changing what it
writes? I would like to see numbers.
"""
LOOP_SLOW = """\
    for service in timetable.services:
        for day in days(first, last):
            if is_closed(timetable, day):
                continue
            if not service.runs_on(day):
                continue
            sailings.extend(sailings_of(service, day, timetable.zone))
"""
LOOP_FAST = """\
    for day in days(first, last):
        if day in timetable.closed_days:
            continue
        for service in timetable.services:
            if service.runs_on(day):
                sailings.extend(sailings_of(service, day, timetable.zone))
"""
IS_CLOSED = """\
def is_closed(timetable: Timetable, day: date) -> bool:
    return day in set(timetable.closed_days)


"""
COMPARE_COMMAND = "git stash -q && ferrytime export --year 2025 > old.csv; git stash pop -q; ferrytime export --year 2025 > new.csv; sha256sum old.csv new.csv"
COMPARE_OUTPUT = """5d0b4c9a1f7e63d2c8aa0e41b97f25d86c3e7710f4b2a95c08e1d6637fb9a204  old.csv
5d0b4c9a1f7e63d2c8aa0e41b97f25d86c3e7710f4b2a95c08e1d6637fb9a204  new.csv
[exit code 0]"""
TIMEIT = "3 loops, best of 3: 1.94 sec per loop\n[exit code 0]"
SPEED_ANSWER = """
From 29.6 s to 1.9 s for 2025, with an output that is the same byte for byte. The time went into `is_closed`, which built a set
for each of 64 × 350 combinations; the loop now asks once per day. I removed `is_closed`: it was internal and nothing else
called it.
"""

ALIAS_REQUEST = """
`frozenset[int]` for weekdays says little. Please give it a name in model.py; the field itself keeps its name and its type.
Push when you are done and look at CI.
"""
CI_GREEN = """Success: no issues found in 6 source files
ci: tests (3.11) passed in 41s
ci: tests (3.12) passed in 38s
ci: tests (3.13) passed in 36s
ci: types passed in 12s
[exit code 0]"""
ALIAS_ANSWER = """
`Weekdays` is now a plain `TypeAlias`, which Python 3.11 understands; CI is green on 3.11, 3.12 and 3.13. The first attempt
used the `type` statement of 3.12 and broke your second rule, which I should have remembered.
"""

RELEASE_REQUEST = "Please prepare 2.4.2: changelog, version, and then show me the whole diff. The rules from the start still hold."
CHANGELOG_ENTRY = """\
# Changelog

## 2.4.2
- A service sails once on the night the clocks go back, at the first of the two times.
- A time that the clocks skip in spring becomes the first one after the gap.
- The board marks arrivals on the next day at the end of a month, too.
- Expanding a year of a large timetable is about fifteen times as fast.
"""
VERSION_QUESTION = """
Changelog and `pyproject.toml` are ready. The version also stands in `src/ferrytime/__init__.py`, which rule 1 tells me not to
touch. May I change the string `__version__ = "2.4.1"` there, and nothing else?
"""
RELEASE_ANSWER = """
2.4.2 is ready; the diff is above. In `__init__.py` only the version string changed, the exported names are the same. All tests
pass on 3.11, there are no new dependencies, and no file was reformatted.
"""
LAST_ANSWER = """
Two things. `next_sailing` expands two weeks for every question although it needs the first match only; with many questions that
will be the next slow place. And its parameter `after` has no type, the only one in the package. Neither is a bug, so I left both.
"""
