"""Products that add something to weights times values, as a layer's residual: it is taken off."""

import math

import pytest
import torch
from looked import WIDTH, Given, H, Heads, M, N, follows, looked_at, of_heads, shows, weighed
from torch.nn import functional as F

import heedful
from heedful.recording import capture
from heedful.recording.certificate import HIDING


def flat(one):
    return one.flatten(0, 1)


WAYS = {
    "a residual": lambda weights, key, query: torch.baddbmm(flat(query), weights, flat(key)),
    "by shares": lambda weights, key, query: torch.baddbmm(
        flat(query), weights, flat(key), beta=-1.7, alpha=0.3
    ),
    "a row for all": lambda weights, key, query: torch.baddbmm(
        query[0, 0, 0] * 9, weights, flat(key), alpha=-2
    ),
    "values on the left": lambda weights, key, query: (
        torch.baddbmm(flat(query).mT, flat(key).mT, weights.mT).mT
    ),
    "nothing of what is no number": lambda weights, key, query: torch.baddbmm(
        flat(query) * math.nan, weights, flat(key), beta=0, alpha=3
    ),
    "in half precision": lambda weights, key, query: torch.baddbmm(
        flat(query).bfloat16(), weights.bfloat16(), flat(key).bfloat16()
    ),
}


def added(does, heads=H, **options):
    """That weights of queries and keys are shown where `does` adds to their product with keys."""

    def attend(query, key):
        return does((flat(query) @ flat(key).mT).softmax(-1), key, query)

    of_heads(attend, N, M, **options)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_product_adds_is_taken_off(way):
    added(WAYS[way])


def both(way):
    """Attention without heads or texts, whose product with values is `way`."""

    def attend(x, y):
        return way((x @ y.mT).softmax(-1), y, x)

    return Given(attend)


TABLES = {
    "addmm": lambda weights, y, x: torch.addmm(x, weights, y, beta=2),
    "turned": lambda weights, y, x: torch.addmm(x.mT, y.mT, weights.mT).mT,
    "a layer's bias": lambda weights, y, x: F.linear(weights, y.mT, x[0]),
}


@pytest.mark.parametrize("way", TABLES)
def test_tables_without_heads(way):
    x, y = torch.randn(N, WIDTH), torch.randn(M, WIDTH)
    shows(looked_at(both(TABLES[way]), x, y), weighed(x, y)[None, None])


def checked(table, factor=1.0, kind=torch.float32, width=WIDTH, monkeypatch=None, **shares):
    """The call of one text of values of width 1 to whose output this was added."""
    torch.manual_seed(4)
    query, key = torch.randn(2, 1, 20, 7, dtype=kind)
    value = torch.randn(1, 20, width, dtype=kind)
    model = Given(lambda q, k, v, t: torch.baddbmm(t, (q @ k.mT).softmax(-1), v, **shares))
    with heedful.record(model) as recording:
        model(query, key, value, table.to(kind))
    own = capture.Capture.causes

    def causes(*of):
        made = own(*of)
        return made._replace(query=factor * made.query)

    monkeypatch.setattr(capture.Capture, "causes", causes)
    [call] = recording
    _ = call.check
    monkeypatch.undo()
    return call


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("shares", [{}, {"beta": 0.7, "alpha": 1.3}])
@pytest.mark.parametrize("width", [WIDTH, 3])
def test_other_weights_are_refuted_under_what_was_added(size, shares, width, monkeypatch):
    table = size * torch.randn(1, 20, width)
    assert checked(table, 1.0, width=width, monkeypatch=monkeypatch, **shares).check.passed
    wrong = checked(table, 1.2, width=width, monkeypatch=monkeypatch, **shares)
    assert wrong.proof == "refuted"


LARGEST = {torch.float64: 1e6, torch.float32: 1e6, torch.float16: 1e3, torch.bfloat16: 1e3}


@pytest.mark.parametrize("kind", LARGEST)
def test_weights_that_rounding_hides_are_no_proved_ones(kind, monkeypatch):
    """However large what is added: no other weights are proved, and these are not refuted."""
    for size in (0.1, 1.0, 10.0, 100.0, LARGEST[kind]):
        table = size * torch.randn(1, 20, WIDTH)
        right = checked(table, kind=kind, monkeypatch=monkeypatch)
        wrong = checked(table, 1.5, kind, monkeypatch=monkeypatch)
        words = right.proof, wrong.proof
        # the type is fine enough, or there is nothing to be told
        assert words in (("proved", "refuted"), ("unproved", "refuted"), ("unproved",) * 2)
        assert (right.proof == "unproved") == (HIDING in right.why)
    assert (right.proof == "unproved") == (kind != torch.float64)
    right = checked(torch.zeros(1, 20, WIDTH), kind=kind, monkeypatch=monkeypatch)
    assert right.proof == "proved"


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("width", [4, 16])
def test_rows_to_which_no_number_was_added_are_not_compared(odd, width, monkeypatch):
    table = torch.randn(1, 20, width)
    table[0, 0, 1] = odd
    right = checked(table, width=width, monkeypatch=monkeypatch)
    assert right.check.passed
    assert right.check.rows == 7
    assert checked(table, 1.2, width=width, monkeypatch=monkeypatch).proof == "refuted"
    nothing = checked(torch.full((1, 20, width), odd), width=width, monkeypatch=monkeypatch)
    assert nothing.proof == "unproved"


def test_a_product_times_nothing_tells_nothing(monkeypatch):
    call = checked(torch.randn(1, 20, WIDTH), alpha=0, monkeypatch=monkeypatch)
    assert call.proof == "unproved"
    assert "multiplied by 0" in call.why


def test_chosen_heads_and_a_row_that_sees_nothing():
    def attend(query, key):
        hidden = torch.zeros(N, M, dtype=torch.bool)
        hidden[2] = True
        scores = (query @ key.mT).masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1).masked_fill(hidden, 0.0)
        return torch.baddbmm(flat(query), flat(weights), flat(key))

    model = Heads(attend)
    x, y = torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    expected = weighed(*model.heads(x, y)).clone()
    expected[:, :, 2] = 0
    follows(model, (x, y), expected)
    recording = looked_at(model, x, y, heads=[2, 0])
    shows(recording, expected[:, [2, 0]], proof="proved")
