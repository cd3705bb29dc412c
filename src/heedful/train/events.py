"""The events that `Training.events` yields while a run trains."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Step(NamedTuple):
    """The numbers of one training step.

    `loss` is the loss on the step's batches, in nats per token. `mean` is the mean loss over the
    latest tenth of all steps so far (at most 50 steps). `rate` is the learning rate, `tokens` the
    number of target tokens, `seconds` the duration.
    """

    step: int
    loss: float
    mean: float
    rate: float
    tokens: int
    seconds: float


class Validation(NamedTuple):
    """The loss over the whole validation split; `is_best` is True if it is the lowest so far."""

    step: int
    loss: float
    is_best: bool


class Watched(NamedTuple):
    """The scores of all heads on the watched text: `scores[name][call][head]`.

    The names are entropy, previous, induction and sink, which `heedful heads` defines, and
    largest_logit, the largest scaled product of a query and a key before softmax. A score is None
    if the text does not define it, such as induction without a repeated token.
    """

    step: int
    scores: dict[str, list[list[float | None]]]


class Saved(NamedTuple):
    """A checkpoint was written."""

    step: int


class Noticed(NamedTuple):
    """A message for the user."""

    step: int
    message: str


class Ended(NamedTuple):
    """The end of training; `why` is "finished", "early" (early stopping) or "stopped"."""

    step: int
    why: str


Event: TypeAlias = Step | Validation | Watched | Saved | Noticed | Ended
