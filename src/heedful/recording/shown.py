"""How the calls of a sequence show themselves: as a picture, and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError
from heedful.lazy import wired
from heedful.recording import generation
from heedful.recording.call import Call
from heedful.recording.capture import Capture
from heedful.recording.progress import Tell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STITCHED = 1 << 18  # keys of all passes, up to which a table shows a generation as one


class Shown(ABC):
    """What a sequence of calls has beside its calls."""

    _index: int
    _part: int
    _with_texts: Callable[[Call], Call]

    @property
    @abstractmethod
    def _own(self) -> list[Capture]:
        """What its calls are made of."""

    @abstractmethod
    def __iter__(self) -> Iterator[Call]:
        """The calls, in order."""

    def _repr_html_(self) -> str:
        """What a notebook shows: a table with a small picture of each head."""
        from heedful.recording.notebook import html

        is_cheap = sum(one.key.shape[-2] for one in self._own) <= STITCHED
        calls, notes = self._as_one(None) if is_cheap else (list(self), [])
        for which in self._which():
            notes.append(f"{which}: .{which.split()[0]}s has each")
        return html(calls, repr(self).strip("<>"), "recording[0]", notes)

    def _repr_mimebundle_(self, **given: Any) -> Any:
        """What a notebook shows where it can: the explorer's page."""
        return wired("in a notebook")(self)

    def _which(self) -> list[str]:
        """Which text of a batch, and which part of a text it is, where there are several."""
        texts = max((capture.texts for capture in self._own), default=0)
        parts = max((capture.parts for capture in self._own), default=0)
        of_texts = [f"sequence {self._index} of {texts}"] if texts > 1 else []
        return of_texts + ([f"part {self._part} of {parts}"] if parts > 1 else [])

    @abstractmethod
    def home(self) -> Any:
        """The recording that it is of, or None where that is gone."""

    def plot(
        self,
        *,
        layers: Iterable[int] | int | None = None,
        heads: Iterable[int] | int | None = None,
        part: str | None = None,
        pass_index: int | None = None,
        title: str | None = None,
        scale: str | None = None,
        highest: float | None = None,
        size: float | None = None,
        values: bool | None = None,
        reduce: str = "max",
        progress: Tell = lambda share: None,
    ) -> Figure:
        """Its maps as a picture: a line is a layer, a column a head; rows are queries.

        What is masked is striped. A map of more than a few hundred tokens is pooled to the room
        that it has, and the picture says so. A generation is drawn as one (`stitched`); other
        passes each by themselves.

        Args:
            layers, heads: a number, a list or a range of the model's own numbers; default all.
            part: of an encoder–decoder "encoder", "decoder" or "cross"; default the three.
            pass_index: one forward pass of several.
            title: over the picture.
            scale: "linear", "sqrt" or "log"; default linear up to 10 tokens, then sqrt.
            highest: the weight at which the colours end; default the largest.
            size: the width in inches; default 9, and more for many heads.
            values: whether numbers stand in the cells; default up to 10 tokens, where they fit.
            reduce: how cells are pooled, "max" or "mean".
            progress: is told of the share that is done, 0 to 1.

        Returns:
            a matplotlib figure, which shows itself in a notebook; `figure.savefig("heads.png")`
            writes it.

        Raises:
            ArgumentError: what there is not, or does not fit on a picture.
            RunError: nothing was recorded.
        """
        from heedful.recording.drawing import Chosen, picture

        calls, notes = self._as_one(pass_index)
        notes = [*self._which(), *notes]
        return picture(calls, Chosen(layers, heads, part, pass_index), reduce=reduce, notes=notes,
                       size=size, title=title, scale=scale, highest=highest, values=values,
                       progress=progress)  # fmt: skip

    def _as_one(self, pass_index: int | None) -> tuple[list[Call], list[str]]:
        """The calls to draw: the passes of a generation as one, with what is to be said of it."""
        calls = list(self)
        passes = len({call.pass_index for call in calls})
        if pass_index is not None or passes < 2 or self._part:
            return calls, []
        try:
            whole = generation.stitched(self._own, self._index)
        except RunError:
            return calls, []
        known = {call.name for call in whole}
        others = [call for call in calls if call.name not in known]
        named = [replace(call, pass_index=0) for call in map(self._with_texts, whole)]
        return [*others, *named], [f"a generation of {passes:,} passes, drawn as one"]
