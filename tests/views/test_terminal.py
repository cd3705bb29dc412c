import io
import re

import numpy as np
import pytest
from rich.console import Console

from heedful.train import Step, Validation
from heedful.views.progress import training_view
from heedful.views.terminal import heatmap

STEP = Step(step=51, loss=1.5, mean=2.5, rate=0.1, tokens=100, seconds=0.05)


def screen(terminal, width=120, **options):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, **options)


@pytest.mark.parametrize("terminal", [True, False])
def test_training_events_are_shown(terminal):
    target = screen(terminal)
    with training_view(target, 60, 50) as view:
        view.show(Validation(50, 3.25, True))
        view.show(STEP)
    output = target.file.getvalue()
    for words in ("3.250", "2.500", "2,000 tokens/s", "51/60"):
        assert words in output.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "0.000" not in output
    assert ("\x1b" in output) == terminal


@pytest.mark.parametrize(("width", "least"), [(60, 6), (80, 20), (100, 20), (160, 40)])
@pytest.mark.parametrize("steps", [60, 2000])
def test_the_bar_has_room_and_the_loss_is_never_cut(width, least, steps):
    target = screen(True, width, color_system="standard")
    with training_view(target, steps, 0) as view:
        view.show(Validation(0, 13.25, True))
        view.show(STEP)
    output = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", target.file.getvalue())
    last = next(line for line in re.split(r"[\r\n]+", output)[::-1] if "/" in line)
    assert len(last) <= width
    assert sum(last.count(sign) for sign in "━╸╺") >= (least if steps < 1000 else least - 5)
    assert ("tokens/s" in last) == (width >= 100)
    assert "training 2.500  validation 13.250" in last
    if width >= 80:
        assert last.rstrip().endswith("left")


def test_a_heat_map_has_rows_of_queries_and_leaves_masked_cells_blank():
    weights = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.25, 0.0, 0.6]])
    target = screen(False)
    target.print(heatmap(weights, ["a", "b", "c" * 30], coloured=False))
    lines = target.file.getvalue().splitlines()
    assert [line[:9].strip() for line in lines] == ["a", "b", "cccccccc…"]
    assert [line[10:] for line in lines] == ["██    ", "  ██  ", "▒▒  ▓▓"]
    coloured = screen(True, color_system="truecolor")
    coloured.print(heatmap(weights, ["a", "b", "c"], coloured=True))
    assert "48;2;253;231;37" in coloured.file.getvalue()  # viridis' yellow: a weight of 1
