"""Labels: short, literal text, with code points for characters without a glyph."""

import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from heedful.pictures import labels, style


@pytest.fixture
def only_dejavu(monkeypatch):
    """Simulate a machine on which only DejaVu Sans is installed."""
    monkeypatch.setattr(labels, "families", lambda: ("DejaVu Sans",))


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (" the", "·the"),
        ("", "∅"),
        ("$x_1$", "$x_1$"),
        ("\x07\x1b", "U+0007 001B"),
        ("a\x00b", "a U+0000 b"),
        ("\ud800", "U+D800"),
        ("\u202e", "U+202E"),
        ("中", "U+4E2D"),
        ("\u0301", "◌\u0301"),
        ("thirteen13abc", "thirteen13a…"),
    ],
)
def test_a_label_is_literal_or_a_code_point(only_dejavu, token, expected):
    assert labels.label(token) == expected


@given(st.text(max_size=40), st.integers(2, 20))
@example("\ud800", 2)
def test_a_label_is_short_visible_and_keeps_its_beginning(token, limit):
    short = labels.label(token, limit)
    assert 1 <= labels.columns(short) <= limit
    assert all(char.isprintable() for char in short)
    full = labels.label(token, 10_000)
    assert short == full or full.startswith(short[:-1])


@given(st.text(st.characters(), max_size=8))
@example("注意力😀مرحبا\x07$a$")
def test_every_drawn_character_has_a_glyph(token):
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, labels.label(token))
    style.literal(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FigureCanvasAgg(figure).draw()
    assert figure.texts[0].get_text() == labels.label(token)


def test_other_fonts_draw_characters_that_dejavu_lacks(monkeypatch):
    for module in (labels, style):
        monkeypatch.setattr(module, "families", lambda: ("DejaVu Sans", "STIXGeneral"))
    assert labels.label("\u1d8e") == "\u1d8e"
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, "z\u1d8e")
    style.literal(figure)
    FigureCanvasAgg(figure).draw()  # a missing glyph would warn


def test_a_hint_names_what_is_missing_and_what_to_install(only_dejavu):
    assert "注意ภา" in labels.hint(["the", "注意", "ภา", "注"])
    assert labels.hint(["é\x07\n", "$x$", ""]) is None
