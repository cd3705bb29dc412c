"""The built-in data set of pairs: dates in many written forms, and the same dates in ISO 8601.

    the 3rd of May 1987  →  1987-05-03

All dates from 1900 to 2099 are shuffled with a fixed seed and split: no date of the test set occurs
in a training pair, in any form.
"""

from __future__ import annotations

import random
from datetime import date, timedelta

from heedful.text.pairs import Pair

TITLE = "dates in many written forms, and the same in ISO 8601"
FIRST, DAYS, TEST, SEED = date(1900, 1, 1), 73_049, 2_000, 2017  # to the end of 2099
# Not from `calendar`, whose names depend on the locale
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December")  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FORMS = (
    "{day} {month} {year}",
    "{month} {day}, {year}",
    "{short} {day} {year}",
    "{day} {short} {year}",
    "{day:02}-{upper}-{year}",
    "the {ordinal} of {month} {year}",
    "{month} {ordinal}, {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday}, {short} {day}, {year}",
    "{day:02}.{number:02}.{year}",
    "{day}.{number}.{year}",
    "{number}/{day}/{year}",
    "{number:02}/{day:02}/{year}",
    "{year}, {month} {day}",
    "{year}{number:02}{day:02}",
)


def format_date(day: date, form: str) -> str:
    """Format a date in one of the written forms.

    >>> [format_date(date(1987, 5, 3), form) for form in FORMS[5:8]]
    ['the 3rd of May 1987', 'May 3rd, 1987', 'Sunday, 3 May 1987']
    """
    month = MONTHS[day.month - 1]
    return form.format(
        year=day.year,
        number=day.month,
        month=month,
        short=month[:3],
        upper=month[:3].upper(),
        day=day.day,
        ordinal=f"{day.day}{_ordinal_suffix(day.day)}",
        weekday=WEEKDAYS[day.weekday()],
    )


def date_pairs() -> list[Pair]:
    """Return the training pairs, shuffled with a fixed seed: each date once, in one form.

    >>> len(date_pairs())
    71049
    """
    return _pairs()[TEST:]


def unseen_date_pairs() -> list[Pair]:
    """Return 2,000 test pairs, whose dates do not occur in `date_pairs`."""
    return _pairs()[:TEST]


def _pairs() -> list[Pair]:
    generator = random.Random(SEED)
    days = [FIRST + timedelta(days=n) for n in range(DAYS)]
    generator.shuffle(days)
    return [Pair(format_date(day, generator.choice(FORMS)), day.isoformat()) for day in days]


def _ordinal_suffix(number: int) -> str:
    """Return the ending of an English ordinal: st, nd, rd or th."""
    if number in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
