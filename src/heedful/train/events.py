"""What happens while a run trains, told one by one to whoever iterates over it."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias


@dataclasses.dataclass(frozen=True)
class Step:
    """A step was taken: its training loss in nats per token, its targets, and how long it took.

    `loss` is that of its own batch, `mean` goes over the latest tenth of the steps, at most 50.
    """

    step: int
    loss: float
    mean: float
    rate: float
    tokens: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Validation:
    """The whole validation split was read; `best` where the loss was the lowest so far."""

    step: int
    loss: float
    best: bool


@dataclasses.dataclass(frozen=True)
class Watched:
    """The heads were looked at: each score by its name, for each call of attention and its heads.

    `scores` has entropy, previous, induction and sink, as `heedful heads` defines them, and
    largest_logit, the largest scaled product of a query and a key before softmax; None where the
    text says nothing of one, as of induction where no token comes again.
    """

    step: int
    scores: dict[str, list[list[float | None]]]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    step: int


@dataclasses.dataclass(frozen=True)
class Noticed:
    """Something was found that the user should know: a sentence."""

    step: int
    words: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """Training is over: "finished", "early" (no lower validation loss) or "stopped" (asked to)."""

    step: int
    why: str


Event: TypeAlias = Step | Validation | Watched | Saved | Noticed | Ended
