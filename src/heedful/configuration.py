"""Configurations: frozen, a sentence under each field, checked when made, JSON and back.

A configuration is a frozen dataclass whose fields are made by `setting`. The sentence of a
field is written once, here, and read by the command's `--help` and by every error.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Self

from heedful.errors import ArgumentError

LARGEST = 2**63 - 1  # a whole number that a tensor can hold


def setting(
    default: Any,
    sentence: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of a configuration.

    Args:
        default: its default; `dataclasses.MISSING` for a field that must be given.
        sentence: what it means, with its unit.
        low, high: the range that is allowed, ends included.
        choices: the words that are allowed.
    """
    metadata = {"sentence": sentence, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The base of all configurations: checks, and conversion to and from plain dictionaries.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(Configuration):
    ...     minutes: int = setting(3, "Minutes to steep.", low=1, high=10)
    >>> Tea(minutes=0)
    Traceback (most recent call last):
    heedful.errors.ArgumentError: minutes = 0; expected at least 1 and at most 10; Minutes to steep.
    """

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _checked(field, hints[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)

    def __str__(self) -> str:
        """A line for each field: its name, its value, what it means."""
        fields = dataclasses.fields(self)
        values = {field.name: _told(getattr(self, field.name)) for field in fields}
        names, numbers = (max(map(len, part)) + 4 for part in (values, values.values()))
        return "\n".join(
            f"{field.name:{names}}{values[field.name]:{numbers}}{field.metadata['sentence']}"
            for field in fields
        )

    def to_dict(self) -> dict[str, Any]:
        """Its fields as a plain dictionary, ready for JSON."""
        return dataclasses.asdict(self)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same with some settings changed."""
        return self.from_dict({**self.to_dict(), **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make one from a dictionary; a name that it does not have is refused, with the nearest."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ArgumentError(
                    f"unknown setting {name!r}", expected=nearest(name, known), cause="a typo"
                )
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.name not in values:
                raise ArgumentError(f"no setting {field.name!r}", remedy=field.metadata["sentence"])
        hints = typing.get_type_hints(cls)
        return cls(**{name: _made(hints[name], value) for name, value in values.items()})


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """The names that were probably meant, for an error; all of them where none is near."""
    names = [str(word) for word in known]
    near = difflib.get_close_matches(name, names)
    return " or ".join(near) if near else "one of " + ", ".join(names)


def part_of(hint: Any) -> type[Configuration] | None:
    """The configuration that is a part of another: `RotaryScaling | None` gives it."""
    return next((kind for kind in allowed_types(hint) if issubclass(kind, Configuration)), None)


def _made(hint: Any, value: Any) -> Any:
    """A value as its field has it: a part that was written as a dictionary is made again."""
    part = part_of(hint)
    return part.from_dict(value) if part and isinstance(value, Mapping) else value


def _told(value: Any) -> str:
    """A value in a line of text; of a part its own values."""
    if not isinstance(value, Configuration):
        return str(value)
    return ", ".join(str(each) for each in dataclasses.astuple(value))


def allowed_types(hint: Any) -> tuple[type, ...]:
    """The types that an annotation allows: `int | None` gives (int, NoneType)."""
    if isinstance(hint, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _checked(field: dataclasses.Field, hint: Any, value: Any) -> Any:
    allowed = allowed_types(hint)
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed:
        names = " or ".join("nothing" if t is type(None) else t.__name__ for t in allowed)
        raise _refusal(field, value, f"a value of type {names}")
    expected = expected_of(field, value)
    if expected:
        raise _refusal(field, value, expected)
    return value


def expected_of(field: dataclasses.Field, value: Any) -> str | None:
    """What a field expects in place of a value of its type; None where the value is allowed."""
    low, high, choices = (field.metadata[name] for name in ("low", "high", "choices"))
    if choices and value is not None and value not in choices:
        return nearest(str(value), choices)
    if type(value) is int and high is None and value > LARGEST:
        high = LARGEST
    ends = {"at least": low, "at most": high}
    words = " and ".join(f"{word} {end}" for word, end in ends.items() if end is not None)
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number" + (words and f" of {words}")
    if not isinstance(value, int | float):
        return None
    is_inside = (low is None or value >= low) and (high is None or value <= high)
    return None if is_inside else words


def _refusal(field: dataclasses.Field, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(
        f"{field.name} = {value!r}", expected=expected, remedy=field.metadata["sentence"]
    )
