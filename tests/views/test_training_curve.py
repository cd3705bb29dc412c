"""Loss curves and head histories: lines show the numbers, and the best are labelled."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from heedful.errors import ArgumentError
from heedful.views.training_curve import (
    HeadHistory,
    Losses,
    head_history_table,
    loss_curve,
    plot_head_history,
    running_mean,
    sparkline,
)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_both_losses_are_drawn_and_the_lowest_validation_loss_is_marked():
    figure = loss_curve(
        Losses([1, 2, 3], [4.0, 3.5, 3.25], [1, 2, 3], [4.5, 3.75, 4.0]), title="run"
    )
    FigureCanvasAgg(figure).draw()
    train, validation, best = figure.axes[0].lines
    np.testing.assert_array_equal(train.get_xydata(), [[1, 4], [2, 3.5], [3, 3.25]])
    np.testing.assert_array_equal(validation.get_xydata(), [[1, 4.5], [2, 3.75], [3, 4]])
    np.testing.assert_array_equal(best.get_xydata(), [[2, 3.75]])
    assert texts(figure.axes[0]) == ["training 3.250", "validation 4.000,\nbest 3.750 at step 2"]
    assert figure.axes[0].get_xlabel() == "step"
    assert "nats per token" in figure.axes[0].get_ylabel()


def test_many_losses_get_a_running_mean_that_the_label_follows():
    losses = 3 + np.where(np.arange(400) % 2, 0.5, -0.5)
    figure = loss_curve(Losses(range(400), losses, [], []))
    raw, trend, _ = figure.axes[0].lines
    np.testing.assert_array_equal(raw.get_ydata(), losses)
    assert np.ptp(trend.get_ydata()[20:]) < 0.5 * np.ptp(losses)
    legend, last = texts(figure.axes[0])
    assert legend == "training: pale, each step; dark, mean of the latest tenth of steps (≤ 50)"
    assert last == f"training {trend.get_ydata()[-1]:.3f}"
    assert trend.get_ydata()[-1] == pytest.approx(losses[-40:].mean())


@given(st.lists(st.floats(-5, 5) | st.just(np.nan), max_size=30), st.integers(1, 25))
def test_the_running_mean_is_that_of_the_latest_tenth_and_at_most_50(values, times):
    values = values * times
    for i, mean in enumerate(running_mean(np.array(values))):
        latest = values[: i + 1][-min(50, math.ceil((i + 1) / 10)) :]
        finite = [value for value in latest if not np.isnan(value)]
        np.testing.assert_allclose(mean, np.mean(finite) if finite else np.nan, atol=1e-12)


@pytest.mark.parametrize("losses", [[np.nan, np.nan], [np.inf, 3.0], [3.0, -np.inf]])
def test_losses_that_are_no_numbers_leave_gaps(losses):
    figure = loss_curve(Losses([1, 2], losses, [1, 2], losses))
    FigureCanvasAgg(figure).draw()
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).sum() == np.sum(~np.isfinite(losses))


WRONG = [
    (loss_curve, [Losses([], [], [], [])], "no losses"),
    (HeadHistory, ([], {}), "no step"),
]


@pytest.mark.parametrize(("call", "arguments", "message"), WRONG)
def test_inputs_that_do_not_fit_are_refused(call, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        call(*arguments)


STEPS = [0, 1, 2, 4, 8, 16, 32]
RISING = [0.05, 0.05, 0.06, 0.1, 0.5, 0.8, 0.9]
LOSSES = Losses([1, 2, 32], [5.0, 4.5, 2.0], [0, 32], [5.1, 2.2])


def head_history(**changes):
    """Two layers of two heads; head 1.0 is an induction head, 0.1 a previous-token head."""
    scores = {name: np.full((7, 2, 2), 0.1) for name in ("induction", "previous", "sink")}
    scores |= {name: np.ones((7, 2, 2)) for name in ("entropy", "largest_logit")}
    scores["induction"][:, 1, 0] = RISING
    scores["previous"][:, 0, 1] = np.linspace(0.1, 0.7, 7)
    return HeadHistory(STEPS, {**{name: each.tolist() for name, each in scores.items()}, **changes})


def test_the_best_heads_are_named_in_every_panel_and_the_rise_is_marked():
    history = head_history()
    assert [(best.score, best.name) for best in history.best] == [
        ("induction", "1.0"),
        ("previous", "0.1"),
    ]  # no sink head: its score is only 0.1
    assert history.rise == (4, 16)
    losses, *panels = plot_head_history(history, LOSSES).axes
    assert texts(losses)[:2] == ["training 2.000", "validation 2.200, the best"]
    assert "4 to 16" in texts(losses)[2]
    assert len(panels) == 5
    assert texts(panels[0]) == ["0.1", "head 1.0  0.90"]
    assert texts(panels[1]) == ["1.0", "head 0.1  0.70"]
    drawn = [line.get_ydata().tolist() for line in panels[0].lines]
    assert len(drawn) == 4 + 2  # every head, and the labelled heads again in colour
    assert drawn.count(RISING) == 2
    assert panels[-1].get_xscale() == "symlog"


def test_evenly_spaced_steps_have_a_plain_axis_and_what_is_not_known_no_panel():
    scores = {"induction": [[[None, None]]] * 4, "previous": [[[0.1, 0.2]]] * 4}
    history = HeadHistory([0, 10, 20, 21], scores)
    assert history.rise is None
    assert history.highest("induction") is None
    _, *panels = plot_head_history(history, Losses([1], [3.0], [], [])).axes
    assert [ax.get_ylabel() for ax in panels] == ["previous token"]
    assert panels[-1].get_xscale() == "linear"


def test_in_a_terminal_each_share_has_a_line_with_its_highest_head():
    columns = [list(column.cells) for column in head_history_table(head_history()).columns]
    assert [str(cell) for cell in columns[1]] == ["head 1.0", "head 0.1", "head 0.0"]
    assert [str(cell) for cell in columns[2]] == ["0.05 → 0.90", "0.10 → 0.70", "0.10 → 0.10"]
    assert sparkline([0.0, float("nan"), 0.99]) == "▁ █"
    assert len(sparkline(np.linspace(0, 1, 99))) == 24
