"""Configurations: frozen dataclasses that validate their fields and convert to JSON and back.

`setting` creates each field with a sentence that describes it. Errors and the
`--help` of commands print this sentence.
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

MAX_INT64 = 2**63 - 1  # the largest int64


def setting(
    default: Any,
    sentence: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Define a field of a configuration.

    Args:
        default: the default; `dataclasses.MISSING` for a required field.
        sentence: the meaning of the field, with its unit.
        low, high: the allowed range, inclusive; None: no limit, except that of int64.
        choices: the allowed strings; empty: any string is allowed.
    """
    metadata = {"sentence": sentence, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Base class of configurations: validation, and conversion to and from plain dictionaries.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(Configuration):
    ...     minutes: int = setting(3, "Minutes to steep.", low=1, high=10)
    >>> Tea(minutes=0)
    Traceback (most recent call last):
    heedful.errors.ArgumentError: minutes = 0; expected at least 1 and at most 10
    """

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _validate(field, hints[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)

    def __str__(self) -> str:
        """Return a line for each field: its name, value and meaning."""
        fields = dataclasses.fields(self)
        values = {field.name: _format(getattr(self, field.name)) for field in fields}
        names, numbers = (max(map(len, part)) + 4 for part in (values, values.values()))
        return "\n".join(
            f"{field.name:{names}}{values[field.name]:{numbers}}{field.metadata['sentence']}"
            for field in fields
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary, ready for JSON."""
        return dataclasses.asdict(self)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with some settings changed."""
        return self.from_dict({**self.to_dict(), **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create a configuration from a dictionary; errors for unknown names suggest known ones."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ArgumentError(
                    f"unknown setting {name!r}",
                    expected=nearest(name, names),
                    cause="a typo, or a setting of another section or kind of model",
                )
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.name not in values:
                raise ArgumentError(f"{field.name!r} is missing", remedy=field.metadata["sentence"])
        hints = typing.get_type_hints(cls)
        return cls(**{name: _from_json(hints[name], value) for name, value in values.items()})


def nearest(name: str, names: typing.Iterable[str]) -> str:
    """Return the most similar names for an error message, or all names if none is similar."""
    names = [str(candidate) for candidate in names]
    similar = difflib.get_close_matches(name, names)
    return " or ".join(similar) if similar else "one of " + ", ".join(names)


def nested_type(hint: Any) -> type[Configuration] | None:
    """Return the configuration class in an annotation such as `RotaryScaling | None`, if any."""
    return next((kind for kind in allowed_types(hint) if issubclass(kind, Configuration)), None)


def _from_json(hint: Any, value: Any) -> Any:
    """Convert a dictionary to the configuration that its field expects; keep any other value."""
    nested = nested_type(hint)
    return nested.from_dict(value) if nested and isinstance(value, Mapping) else value


def _format(value: Any) -> str:
    """Format a value on one line; a nested configuration as the list of its values."""
    if not isinstance(value, Configuration):
        return str(value)
    return ", ".join(map(str, dataclasses.astuple(value)))


def allowed_types(hint: Any) -> tuple[type, ...]:
    """Return the types that an annotation allows: (int, NoneType) for `int | None`."""
    if isinstance(hint, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _validate(field: dataclasses.Field, hint: Any, value: Any) -> Any:
    allowed = allowed_types(hint)
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed:
        names = " or ".join("nothing" if t is type(None) else t.__name__ for t in allowed)
        raise _invalid(field, value, f"a value of type {names}")
    expected = expectation(field, value)
    if expected:
        raise _invalid(field, value, expected)
    return value


def expectation(field: dataclasses.Field, value: Any) -> str | None:
    """Return the values that a field allows, in words; None if it allows this value."""
    low, high, choices = (field.metadata[name] for name in ("low", "high", "choices"))
    if choices and value is not None and value not in choices:
        return nearest(str(value), choices)
    if type(value) is int and high is None and value > MAX_INT64:
        high = MAX_INT64
    limits = {"at least": low, "at most": high}
    bounds = " and ".join(f"{word} {end}" for word, end in limits.items() if end is not None)
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number" + (bounds and f" of {bounds}")
    if not isinstance(value, int | float):
        return None
    is_inside = (low is None or value >= low) and (high is None or value <= high)
    return None if is_inside else bounds


def _invalid(field: dataclasses.Field, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(f"{field.name} = {value!r}", expected=expected)
