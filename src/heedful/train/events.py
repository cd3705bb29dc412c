"""The events that `Training.events` yields while a run trains."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step: its loss in nats per token, learning rate, number of targets and duration.

    `loss` is that of the step's batch, `mean` the mean over the latest tenth, at most 50 steps.
    """

    step: int
    loss: float
    mean: float
    rate: float
    tokens: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Validation:
    """A validation over the whole split; `best` if its loss is the lowest so far."""

    step: int
    loss: float
    best: bool


@dataclasses.dataclass(frozen=True)
class Watched:
    """The scores of all heads on the watched text: by name, then by call and head.

    `scores` has entropy, previous, induction and sink, as `heedful heads` defines them, and
    largest_logit, the largest scaled product of a query and a key before softmax. A score that the
    text does not define is None, such as induction without a repeated token.
    """

    step: int
    scores: dict[str, list[list[float | None]]]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    step: int


@dataclasses.dataclass(frozen=True)
class Noticed:
    """A notice for the user, as a sentence."""

    step: int
    words: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of training: "finished", "early" (no lower validation loss) or "stopped"."""

    step: int
    why: str


Event: TypeAlias = Step | Validation | Watched | Saved | Noticed | Ended
