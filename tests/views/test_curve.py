"""The loss curve: its lines are the losses, the best is marked."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from heedful.errors import ArgumentError
from heedful.views.curve import loss_curve, running_mean


def notes(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_both_losses_are_drawn_and_the_lowest_validation_loss_is_marked():
    figure = loss_curve([1, 2, 3], [4.0, 3.5, 3.25], [1, 2, 3], [4.5, 3.75, 4.0], title="run")
    FigureCanvasAgg(figure).draw()
    train, validation, best = figure.axes[0].lines
    np.testing.assert_array_equal(train.get_xydata(), [[1, 4], [2, 3.5], [3, 3.25]])
    np.testing.assert_array_equal(validation.get_xydata(), [[1, 4.5], [2, 3.75], [3, 4]])
    np.testing.assert_array_equal(best.get_xydata(), [[2, 3.75]])
    assert notes(figure) == ["training 3.250", "validation 4.000,\nbest 3.750 at step 2"]
    assert figure.axes[0].get_xlabel() == "step"
    assert "nats per token" in figure.axes[0].get_ylabel()


def test_many_losses_get_a_running_mean_that_the_label_follows():
    losses = 3 + np.where(np.arange(400) % 2, 0.5, -0.5)
    figure = loss_curve(range(400), losses, [], [])
    raw, trend, _ = figure.axes[0].lines
    np.testing.assert_array_equal(raw.get_ydata(), losses)
    assert np.ptp(trend.get_ydata()[20:]) < 0.5 * np.ptp(losses)
    legend, last = notes(figure)
    assert legend == "training: pale, each step; dark, mean of the latest tenth, at most 50"
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
    figure = loss_curve([1, 2], losses, [1, 2], losses)
    FigureCanvasAgg(figure).draw()
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).sum() == np.sum(~np.isfinite(losses))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([], [], [], []), "no losses"),
        (([1, 2], [3.0], [], []), "2 training steps and 1"),
        (([1], [3.0], [1, 2], [3.0]), "2 validation steps and 1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, says):
    with pytest.raises(ArgumentError, match=says):
        loss_curve(*arguments)
