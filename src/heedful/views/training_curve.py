"""Plots of a training run over its steps: losses and head scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from rich.table import Table
from rich.text import Text

from heedful.errors import ArgumentError
from heedful.pictures import style
from heedful.train.metrics import MAX_AVERAGED, averaging_window

TRAINING, VALIDATION = "#0072b2", "#d55e00"  # Okabe and Ito (2008): safe for colour-blind readers
APART = 0.09  # minimum distance of the two curves' labels, as a share of the picture's height
CROWD = 60  # maximum number of validation losses with dots; more dots would hide the line
PANELS = {
    "induction": "induction",
    "previous": "previous token",
    "sink": "sink",
    "entropy": "entropy (nats)",
    "largest_logit": "largest logit",
}
SHARES = ("induction", "previous", "sink")  # scores from 0 to 1 whose best head is labelled
COLOURS = {"induction": "#009e73", "previous": "#a34d82", "sink": "#8a6d00"}
STYLES = {"induction": "green", "previous": "magenta", "sink": "yellow"}  # in a terminal
GREY, BAND = "#b4bbc2", "#e3f2ec"  # all other heads; the steps in which induction rises
MIN_SCORE = 0.2  # minimum final score of a labelled head
LABEL_GAP = 0.17  # minimum distance of two labels, as a share of a panel's height
ROOM = 0.28  # width of the band's label, as a share of the picture's width
WIDTHS = len("previous token"), len("head 11.11"), len("0.00 → 0.00")  # columns in a terminal
BARS, LONGEST = "▁▂▃▄▅▆▇█", 24
TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class Losses(NamedTuple):
    """Training losses at `steps` and validation losses at `validated`, in nats per token."""

    steps: Sequence[int]
    training: Sequence[float]
    validated: Sequence[int]
    validation: Sequence[float]

    @classmethod
    def of(cls, metrics: list[dict[str, Any]]) -> Losses:
        """Return the losses of a run's metrics."""
        train = [line for line in metrics if "loss" in line]
        checks = [line for line in metrics if "validation_loss" in line]
        return cls(
            [line["step"] for line in train],
            [line["loss"] for line in train],
            [line["step"] for line in checks],
            [line["validation_loss"] for line in checks],
        )


def loss_curve(losses: Losses, *, title: str | None = None) -> Figure:
    """Plot training and validation loss by step, and mark the lowest validation loss.

    If there are more than ten training losses, their mean over the latest tenth of the steps (at
    most 50) is drawn too; the terminal shows the same mean. A loss that is not finite leaves a gap.

    Raises:
        ArgumentError: there are no losses.

    >>> figure = loss_curve(Losses([1, 2, 3], [4.0, 3.0, 2.5], [3], [2.9]))
    >>> figure.axes[0].get_ylabel()
    'loss (nats per token)'
    """
    if not (len(losses.steps) or len(losses.validated)):
        raise ArgumentError("no losses", expected="at least one step", remedy="train first")
    figure = style.figure(8, 4.2)
    ax = figure.add_subplot()
    note = f"training: pale, each step; dark, mean of the latest tenth of steps (≤ {MAX_AVERAGED})"
    if averaging_window(len(losses.steps)) > 1:
        quiet: dict[str, Any] = {"fontsize": 8, "color": style.QUIET, "ha": "right", "va": "top"}
        ax.text(0.99, 0.98, note, transform=ax.transAxes, **quiet)
    style.name_ends(ax, draw_losses(ax, losses), APART)
    style.quiet(ax)
    style.whole_numbers(ax, "step", "loss (nats per token)")
    return style.finish(figure, title)


def running_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean, at each index, over the latest tenth of the values so far (at most 50).

    Values that are not finite are left out; the mean is NaN if none is finite.

    >>> running_mean(np.arange(20.0))[[3, 9, 10, 19]].tolist()
    [3.0, 9.0, 9.5, 18.5]
    """
    windows = (values[n - averaging_window(n) : n] for n in range(1, len(values) + 1))
    finite = (window[np.isfinite(window)] for window in windows)
    return np.array([part.mean() if len(part) else np.nan for part in finite])


def draw_losses(ax: Axes, losses: Losses) -> list[tuple[float, str, str]]:
    """Draw both curves and mark the best loss; return (last loss, label, colour) of each curve."""
    train = _draw_train(ax, *_points(losses.steps, losses.training))
    validation = _points(losses.validated, losses.validation)
    dots = "o" if len(validation[0]) <= CROWD else ""
    ax.plot(*validation, color=VALIDATION, linewidth=1.6, marker=dots, markersize=4, zorder=3)
    best = _best(ax, *validation)
    curves = ((train, "training", "", TRAINING), (validation, "validation", best, VALIDATION))
    return [
        (finite[-1], f"{name} {finite[-1]:.3f}{end}", colour)
        for (_, values), name, end, colour in curves
        if len(finite := values[np.isfinite(values)])
    ]


def _points(steps: Sequence[int], losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(losses, float)
    return np.asarray(steps, float), np.where(np.isfinite(values), values, np.nan)


def _draw_train(ax: Axes, steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw the training loss; return the points of its main line."""
    if averaging_window(len(losses)) <= 1:
        ax.plot(steps, losses, color=TRAINING, linewidth=1.6, marker="o", markersize=2.5)
        return steps, losses
    trend = running_mean(losses)
    ax.plot(steps, losses, color=TRAINING, linewidth=0.8, alpha=0.25)
    ax.plot(steps, trend, color=TRAINING, linewidth=1.8)
    return steps, trend


def _best(ax: Axes, steps: np.ndarray, losses: np.ndarray) -> str:
    """Mark the lowest validation loss; return a suffix for the label of the curve."""
    if np.isnan(losses).all():
        return ""
    lowest = int(np.nanargmin(losses))
    step, loss = steps[lowest], losses[lowest]
    ax.plot(step, loss, "o", markersize=9, mfc="white", mec=VALIDATION, mew=1.8, zorder=4)
    is_last = np.isnan(losses[lowest + 1 :]).all()
    return ", the best" if is_last else f",\nbest {loss:.3f} at step {step:,.0f}"


class Best(NamedTuple):
    """The head with the highest final value of a score; `values` (T,) are the head's scores."""

    score: str
    layer: int
    head: int
    values: np.ndarray

    @property
    def name(self) -> str:
        """Layer and head, as `heedful heads` writes them."""
        return f"{self.layer}.{self.head}"


class HeadHistory:
    """The scores of every head over training.

    Args:
        steps: the T steps at which the heads were scored.
        scores: by name of the score, values (T, layers, heads); an undefined value is None.

    Raises:
        ArgumentError: `steps` is empty.
    """

    def __init__(
        self, steps: Sequence[int], scores: dict[str, list[list[list[float | None]]]]
    ) -> None:
        if not len(steps):
            raise ArgumentError("no step at which heads were scored", expected="at least one step")
        self.steps = np.asarray(steps, float)
        arrays = {name: np.array(scores[name], float) for name in PANELS if scores.get(name)}
        # a score that is undefined for every head gets no panel
        self.scores = {name: v for name, v in arrays.items() if not np.isnan(v[-1]).all()}

    def highest(self, name: str) -> Best | None:
        """Return the head with the highest final value of a score; None for an undefined score."""
        if name not in self.scores:
            return None
        values = self.scores[name]
        layer, head = np.unravel_index(np.nanargmax(values[-1]), values.shape[1:])
        return Best(name, int(layer), int(head), values[:, layer, head])

    @property
    def best(self) -> list[Best]:
        """The best head of each score in `SHARES` whose final value is at least `MIN_SCORE`."""
        heads = (self.highest(name) for name in SHARES)
        return [best for best in heads if best is not None and best.values[-1] >= MIN_SCORE]

    @property
    def rise(self) -> tuple[int, int] | None:
        """The steps between which the best induction head goes from 1/4 to 3/4 of its rise.

        None if its final score or its rise is below `MIN_SCORE`.
        """
        best = next((head for head in self.best if head.score == "induction"), None)
        if best is None:
            return None
        low, high = np.nanmin(best.values), best.values[-1]
        if high - low < MIN_SCORE:
            return None
        start = np.flatnonzero(best.values < low + (high - low) / 4)[-1]
        ends = np.flatnonzero(best.values > low + 3 * (high - low) / 4)
        return int(self.steps[start]), int(self.steps[ends[ends > start][0]])


def plot_head_history(history: HeadHistory, losses: Losses, *, title: str | None = None) -> Figure:
    """Plot the losses, and below them a panel per score with a line per head, over steps.

    The heads in `HeadHistory.best` are coloured and labelled in every panel. A band marks the steps
    in which the best induction head goes from 1/4 to 3/4 of its rise. If the loss falls faster in
    the band than before and after it, this is the induction bump of Olsson et al. 2022
    (arXiv:2209.11895).

    >>> scores = {"induction": [[[0.1, 0.1]], [[0.2, 0.1]], [[0.9, 0.1]]]}
    >>> history = HeadHistory([0, 10, 20], scores)
    >>> history.best[0].name, history.rise
    ('0.0', (10, 20))
    >>> len(plot_head_history(history, Losses([1, 20], [5.0, 4.0], [], [])).axes)
    2
    """
    names = list(history.scores)
    figure = style.figure(8, 2.4 + 1.3 * len(names))
    above, *panels = figure.subplots(
        len(names) + 1, sharex=True, height_ratios=[1.8, *[1.0] * len(names)], squeeze=False
    )[:, 0]
    style.name_ends(above, draw_losses(above, losses), LABEL_GAP)
    above.set_ylabel("loss (nats per token)")
    for name, ax in zip(names, panels, strict=True):
        _panel(ax, name, history)
    last = max([history.steps[-1], *losses.steps, *losses.validated])
    _step_axis(panels[-1], history.steps, last)
    for ax in (above, *panels):
        style.quiet(ax)
        ax.tick_params(length=0, pad=5, labelsize=8.5, labelcolor=style.INK)
        ax.yaxis.label.set(fontsize=9, color=style.QUIET)
        if history.rise:
            ax.axvspan(*history.rise, color=BAND, linewidth=0, zorder=0)
    if history.rise:  # the band's label is to its left if there is room, else to its right
        first, last_step = history.rise
        start = (above.transData + above.transAxes.inverted()).transform((first, 0))[0]
        is_left = start > ROOM
        above.annotate(
            f"the induction head forms,\nsteps {first:,} to {last_step:,}",
            (first if is_left else last_step, 1), xycoords=("data", "axes fraction"),
            xytext=(-6 if is_left else 6, -4), textcoords="offset points",
            ha="right" if is_left else "left", va="top", fontsize=8, linespacing=1.4,
            color=COLOURS["induction"],
        )  # fmt: skip
    figure.align_ylabels()
    return style.finish(figure, title)


def _panel(ax: Axes, name: str, history: HeadHistory) -> None:
    """Plot one score: every head in grey, the best heads in colour."""
    values = history.scores[name]
    lines = values.reshape(len(values), -1)
    thin = 0.8 if lines.shape[1] <= 32 else 0.4
    ax.plot(history.steps, lines, color=GREY, linewidth=thin, zorder=1)
    ends = []
    for best in history.best:
        curve = values[:, best.layer, best.head]
        is_titled = best.score == name
        ax.plot(
            history.steps, curve, color=COLOURS[best.score], linewidth=2.0 if is_titled else 1.2,
            zorder=3 if is_titled else 2,
        )  # fmt: skip
        label = f"head {best.name}  {curve[-1]:.2f}" if is_titled else best.name
        ends.append((curve[-1], label, COLOURS[best.score]))
    if name in SHARES:
        ax.set_ylim(0, 1)
        ax.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    else:
        ax.set_ylim(bottom=min(0.0, np.nanmin(values)))
    # a head that is best in two scores gets a single label
    merged: dict[str, tuple[float, str, str]] = {}
    for value, label, colour in sorted(ends, key=lambda end: (end[0], len(end[1]))):
        merged[label.removeprefix("head ").split()[0]] = value, label, colour
    style.name_ends(ax, merged.values(), LABEL_GAP)
    ax.set_ylabel(PANELS[name])


def _step_axis(ax: Axes, steps: np.ndarray, last: float) -> None:
    """Set up the axis of steps; it is logarithmic if the gaps between steps grow."""
    gaps = np.diff(steps)[:-1]  # the last step does not follow the schedule
    if len(gaps) > 1 and gaps.max() > 4 * gaps.min():
        ax.set_xscale("symlog", linthresh=2, linscale=0.4)
        ticks = {tick * 1000**power for power in range(3) for tick in TICKS}
        ax.xaxis.set_major_locator(FixedLocator(sorted(tick for tick in ticks if tick <= last)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.set_xlabel("step")
    else:
        style.whole_numbers(ax, "step", ax.get_ylabel())
    ax.set_xlim(0, last or 1)
    ax.xaxis.label.set(fontsize=9, color=style.QUIET)


def head_history_table(history: HeadHistory) -> Table:
    """Return a table of the best head per score in `SHARES`: first and last value, sparkline."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    for width in (*WIDTHS, 1):  # in a narrow terminal only the sparkline is cut
        table.add_column(no_wrap=True, min_width=width)
    for name in SHARES:
        best = history.highest(name)
        if best is None:
            continue
        is_low = best.values[-1] < MIN_SCORE
        table.add_row(
            Text(PANELS[name]),
            Text(f"head {best.name}", style="dim" if is_low else "bold"),
            Text(f"{best.values[0]:.2f} → {best.values[-1]:.2f}".replace("nan", "–")),
            Text(sparkline(best.values), style="dim" if is_low else STYLES[name]),
        )
    return table


def sparkline(values: Sequence[float] | Any) -> str:
    """Draw values from 0 to 1 as at most 24 bar characters; NaN becomes a space.

    >>> sparkline([0.0, 0.4, 1.0])
    '▁▄█'
    """
    chosen = np.linspace(0, len(values) - 1, min(len(values), LONGEST)).round().astype(int)
    return "".join(
        " " if np.isnan(v) else BARS[min(len(BARS) - 1, int(v * len(BARS)))]
        for v in np.asarray(values, float)[chosen]
    )
