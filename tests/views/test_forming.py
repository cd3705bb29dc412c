"""How heads form, as a picture and in a terminal: what is drawn, named and marked."""

import numpy as np
import pytest

from heedful.errors import ArgumentError
from heedful.views.curve import Forming, Losses, forming_picture, forming_table, sparkline

STEPS = [0, 1, 2, 4, 8, 16, 32]
RISING = [0.05, 0.05, 0.06, 0.1, 0.5, 0.8, 0.9]
LOSSES = Losses([1, 2, 32], [5.0, 4.5, 2.0], [0, 32], [5.1, 2.2])


def forming(**changes):
    """Two layers of two heads; head 1.0 is an induction head, 0.1 looks at the token before."""
    scores = {name: np.full((7, 2, 2), 0.1) for name in ("induction", "previous", "sink")}
    scores |= {name: np.ones((7, 2, 2)) for name in ("entropy", "largest_logit")}
    scores["induction"][:, 1, 0] = RISING
    scores["previous"][:, 0, 1] = np.linspace(0.1, 0.7, 7)
    return Forming(STEPS, {**{name: of.tolist() for name, of in scores.items()}, **changes})


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_the_best_heads_are_named_in_every_panel_and_the_rise_is_marked():
    found = forming()
    assert [(best.score, best.name) for best in found.best] == [
        ("induction", "1.0"),
        ("previous", "0.1"),
    ]  # no head of a sink: 0.1 is none
    assert found.rise == (4, 16)
    losses, *panels = forming_picture(found, LOSSES).axes
    assert texts(losses)[:2] == ["training 2.000", "validation 2.200, the best"]
    assert "4 to 16" in texts(losses)[2]
    assert len(panels) == 5
    assert texts(panels[0]) == ["0.1", "head 1.0  0.90"]
    assert texts(panels[1]) == ["1.0", "head 0.1  0.70"]
    drawn = [line.get_ydata().tolist() for line in panels[0].lines]
    assert len(drawn) == 4 + 2  # every head, and the named ones again in colour
    assert drawn.count(RISING) == 2
    assert panels[-1].get_xscale() == "symlog"


def test_evenly_spaced_steps_have_a_plain_axis_and_what_is_not_known_no_panel():
    scores = {"induction": [[[None, None]]] * 4, "previous": [[[0.1, 0.2]]] * 4}
    found = Forming([0, 10, 20, 21], scores)
    assert found.rise is None
    assert found.highest("induction") is None
    _, *panels = forming_picture(found, Losses([1], [3.0], [], [])).axes
    assert [ax.get_ylabel() for ax in panels] == ["previous token"]
    assert panels[-1].get_xscale() == "linear"
    with pytest.raises(ArgumentError, match="no step at which heads were looked at"):
        Forming([], {})


def test_in_a_terminal_each_share_has_a_line_with_its_highest_head():
    columns = [list(column.cells) for column in forming_table(forming()).columns]
    assert [str(cell) for cell in columns[1]] == ["head 1.0", "head 0.1", "head 0.0"]
    assert [str(cell) for cell in columns[2]] == ["0.05 → 0.90", "0.10 → 0.70", "0.10 → 0.10"]
    assert sparkline([0.0, float("nan"), 0.99]) == "▁ █"
    assert len(sparkline(np.linspace(0, 1, 99))) == 24
