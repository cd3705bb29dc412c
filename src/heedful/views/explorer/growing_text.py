"""A text that grows, of which the page is told by how many tokens it has."""

from __future__ import annotations

from typing import Protocol

from heedful.opened.protocol import Opened
from heedful.recording import Recording
from heedful.recording.growing import Growing
from heedful.views.explorer.continued import Continued
from heedful.views.explorer.text import Text


class Written(Protocol):
    """What is told of a text that is written: its causes, its ids, the length of its prompt."""

    growing: Growing
    ids: list[int]
    prompt: int


class GrowingText:
    """The calls of a text that is being written, at any length that it has had.

    Args:
        written: the text.
        opened, continued: the model, which names the tokens.
    """

    def __init__(self, written: Written, opened: Opened, continued: Continued) -> None:
        self._written, self._opened, self._continued = written, opened, continued
        self._pieces: list[str] = []

    @property
    def tokens(self) -> int:
        """How many there are by now."""
        return self._written.growing.tokens

    @property
    def missed(self) -> dict[str, str]:
        """Modules whose attention was not understood, and why."""
        return self._written.growing.missed

    def recording(self, tokens: int) -> Recording:
        """The first tokens as a recording of one pass."""
        self._pieces += self._opened.pieces(self._written.ids[len(self._pieces) :])
        found = self._written.growing.recording(tokens)
        self._continued.name(found, self._pieces[:tokens])
        return found

    def at(self, tokens: int) -> Text:
        """The calls on the first tokens.

        Raises:
            ArgumentError: more than there are, or none.
        """
        of = self.recording(tokens)
        return Text("the text", list(of), prompt=self._written.prompt, sides=of.sides)
