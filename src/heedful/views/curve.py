"""The loss over the steps of a training run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heedful.errors import ArgumentError
from heedful.pictures import style
from heedful.train.metrics import MOST_AVERAGED, averaged

TRAINING, VALIDATION = "#0072b2", "#d55e00"  # Okabe and Ito (2008): told apart by everyone
APART = 0.09  # of the picture's height, between the names of the two curves
CROWD = 60  # validation losses: beyond it dots would hide the line


class Losses(NamedTuple):
    """Training and validation losses with their steps, in nats per token."""

    steps: Sequence[int]
    training: Sequence[float]
    validated: Sequence[int]
    validation: Sequence[float]


def loss_curve(
    steps: Sequence[int],
    train_losses: Sequence[float],
    validation_steps: Sequence[int],
    validation_losses: Sequence[float],
    *,
    title: str | None = None,
    note: str | None = None,
) -> Figure:
    """Training and validation loss by step; a loss that is not a number leaves a gap.

    The lowest validation loss is marked.

    Args:
        steps: the steps at which the training loss was taken.
        train_losses: in nats per token; where there are more than ten, the mean of the latest
            tenth, at most 50, is drawn over them: the number that the terminal shows.
        validation_steps: the steps at which the validation loss was taken; may be empty.
        validation_losses: in nats per token.
        title: over all.
        note: a line in the corner, below the one that says what is drawn.

    Raises:
        ArgumentError: steps and losses that differ in number, or none at all.

    >>> figure = loss_curve([1, 2, 3], [4.0, 3.0, 2.5], [3], [2.9])
    >>> figure.axes[0].get_ylabel()
    'loss (nats per token)'
    """
    _check(steps, train_losses, "training")
    _check(validation_steps, validation_losses, "validation")
    if not (len(steps) or len(validation_steps)):
        raise ArgumentError("no losses", expected="at least one step", remedy="train first")
    figure = style.figure(8, 4.2)
    ax = figure.add_subplot()
    shown = f"training: pale, each step; dark, mean of the latest tenth, at most {MOST_AVERAGED}"
    _notes(ax, shown if averaged(len(steps)) > 1 else None, note)
    losses = Losses(steps, train_losses, validation_steps, validation_losses)
    style.name_ends(ax, draw_losses(ax, losses), APART)
    style.quiet(ax)
    style.whole_numbers(ax, "step", "loss (nats per token)")
    return style.finished(figure, title)


def running_mean(values: np.ndarray) -> np.ndarray:
    """Of each value and those before it the mean, over the latest tenth and at most 50.

    Values that are not finite are left out; where none is finite the mean is NaN.

    >>> running_mean(np.arange(20.0))[[3, 9, 10, 19]].tolist()
    [3.0, 9.0, 9.5, 18.5]
    """
    number = np.arange(1, len(values) + 1)
    start = np.array([n - averaged(n) for n in number.tolist()], dtype=int)
    finite = np.isfinite(values)
    total, count = (
        np.concatenate([[0], np.cumsum(each)]) for each in (np.where(finite, values, 0), finite)
    )
    count = count[number] - count[start]
    total = total[number] - total[start]
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def draw_losses(ax: Axes, losses: Losses) -> Iterator[tuple[float, str, str]]:
    """Draws both curves and marks the best; each one's last loss, its name and its colour."""
    train = _training(ax, *_points(losses.steps, losses.training))
    validation = _points(losses.validated, losses.validation)
    dots = "o" if len(validation[0]) <= CROWD else ""
    ax.plot(*validation, color=VALIDATION, linewidth=1.6, marker=dots, markersize=4, zorder=3)
    return _ends(train, validation, _best(ax, *validation))


def _check(steps: Sequence[int], losses: Sequence[float], name: str) -> None:
    if len(steps) != len(losses):
        raise ArgumentError(
            f"{len(steps)} {name} steps and {len(losses)} {name} losses",
            expected="as many steps as losses",
        )


def _points(steps: Sequence[int], losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(losses, float)
    return np.asarray(steps, float), np.where(np.isfinite(values), values, np.nan)


def _training(ax: Axes, steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws the training loss; gives the points of the line that a reader follows."""
    if averaged(len(losses)) <= 1:
        ax.plot(steps, losses, color=TRAINING, linewidth=1.6, marker="o", markersize=2.5)
        return steps, losses
    trend = running_mean(losses)
    ax.plot(steps, losses, color=TRAINING, linewidth=0.8, alpha=0.25)
    ax.plot(steps, trend, color=TRAINING, linewidth=1.8)
    return steps, trend


def _notes(ax: Axes, *lines: str | None) -> None:
    """Quiet lines in the upper right corner."""
    text = "\n".join(line for line in lines if line)
    quiet: dict[str, Any] = {"fontsize": 8, "color": style.QUIET, "linespacing": 1.5}
    if text:
        ax.text(0.99, 0.98, text, transform=ax.transAxes, ha="right", va="top", **quiet)


def _best(ax: Axes, steps: np.ndarray, losses: np.ndarray) -> str:
    """Marks the lowest loss; what the name of its curve says of it."""
    if np.isnan(losses).all():
        return ""
    place = int(np.nanargmin(losses))
    step, loss = steps[place], losses[place]
    ax.plot(step, loss, "o", markersize=9, mfc="white", mec=VALIDATION, mew=1.8, zorder=4)
    is_last = np.isnan(losses[place + 1 :]).all()
    return ", the best" if is_last else f",\nbest {loss:.3f} at step {step:,.0f}"


def _ends(
    train: tuple[np.ndarray, ...], validation: tuple[np.ndarray, ...], more: str
) -> Iterator[tuple[float, str, str]]:
    """Each curve's last loss, its name and its colour."""
    for (_, losses), name, more_of_it, colour in (
        (train, "training", "", TRAINING),
        (validation, "validation", more, VALIDATION),
    ):
        finite = losses[np.isfinite(losses)]
        if len(finite):
            yield finite[-1], f"{name} {finite[-1]:.3f}{more_of_it}", colour
