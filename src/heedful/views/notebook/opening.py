"""What a page is opened on: the recording of what is shown, and where in it that stands."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from heedful.recording import Call, Recording, Sequence
from heedful.views.explorer.texts import Texts, named

NAME = "recording"


class _OneCall(list[Call]):
    """A text that has one call."""

    sides = None  # nobody knows what else there was

    @property
    def parts(self) -> list[_OneCall]:
        """Itself: of a text of several parts one alone is there."""
        return [self]


class Alone(Recording):
    """One call whose recording is no longer there."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call_alone = call

    @property
    def sequences(self) -> list[Any]:
        """The one text with the one call."""
        return [_OneCall([self._call_alone])]


def opened_on(shown: Recording | Sequence | Call, **chosen: Any) -> tuple[Texts, str]:
    """All that a page may choose from, and what it shows first, as the words of its address.

    Args:
        shown: what stands in the cell; a text of a batch, or a call, opens its whole recording at
            its own place.
        chosen: `layers` and `heads`, as `Texts` takes them.

    Raises:
        ArgumentError: a layer or head that there is not.
    """
    if isinstance(shown, Recording):
        return Texts({NAME: shown}, **chosen), ""
    home = shown.home()
    if isinstance(shown, Sequence):
        texts = Texts({NAME: home or Recording(shown._own, texts=shown._texts)}, **chosen)
        of = shown._index, shown._part
        return texts, _address(texts, lambda call: (call.sequence, call.part) == of)
    if home is not None:
        texts = Texts({NAME: home}, **chosen)
        found = _address(texts, lambda call: _is_same(call, shown))
        if found:
            return texts, found
    return Texts({NAME: Alone(shown)}, **chosen), urlencode({"call": "0.0.0"})


def _address(texts: Texts, is_meant: Any) -> str:
    """The address of the first call that is meant; empty where there is none."""
    meant = (where for where, call in texts.calls() if is_meant(call))
    return next((urlencode({"call": named(where)}) for where in meant), "")


def _is_same(one: Call, other: Call) -> bool:
    mine, others = (
        (call.name, call.index, call.pass_index, call.sequence, call.part, call.shape[1:])
        for call in (one, other)
    )
    return mine == others
