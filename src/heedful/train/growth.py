"""Batches and contexts that begin small and grow."""

from __future__ import annotations

from typing import NamedTuple

from heedful.errors import ArgumentError
from heedful.train.settings import Recipe, TrainSettings

GROWING = 0.5  # the share of the steps, the first ones, over which they grow


class Size(NamedTuple):
    """What one batch has: so many sequences, of so many tokens at most."""

    batch: int
    context: int


def size_of(step: int, settings: TrainSettings, context_length: int) -> Size:
    """The size of the batches of a step, counted from 0.

    A small batch tells as much early on, when all texts pull the weights the same way: Smith et
    al. 2018 (arXiv:1711.00489); short contexts steady the first steps: Li et al. 2022
    (arXiv:2108.06084).

    >>> growing = TrainSettings(steps=100, batch=16, first_batch=4, first_context=32)
    >>> [tuple(size_of(step, growing, 128)) for step in (0, 25, 50, 99)]
    [(4, 32), (10, 80), (16, 128), (16, 128)]
    """
    share = min(1.0, step / max(1.0, GROWING * settings.steps))

    def grown(first: int | None, last: int) -> int:
        return last if first is None else round(first + share * (last - first))

    return Size(
        grown(settings.first_batch, settings.batch), grown(settings.first_context, context_length)
    )


def check_growth(recipe: Recipe) -> None:
    """Refuse what would shrink, and a context that grows where nothing may be cut.

    Raises:
        ArgumentError: one of these.
    """
    settings, context = recipe.train, recipe.model.context_length
    for name, first, last in (
        ("first_batch", settings.first_batch, settings.batch),
        ("first_context", settings.first_context, context),
    ):
        if first is not None and first > last:
            raise ArgumentError(
                f"{name} = {first}", expected=f"at most the {last} that it grows to"
            )
    if settings.first_context is not None and recipe.kind != "GPT":
        raise ArgumentError(
            f"first_context for a model of the kind {recipe.kind}",
            expected="it for a GPT alone",
            cause="pairs and texts with gaps are read whole",
        )
