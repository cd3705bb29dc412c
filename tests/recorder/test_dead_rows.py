"""Rows whose keys a model hides by large numbers: their weights are those of the numbers."""

import pytest
import torch
from looked import looked_at
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.recorder.doors import dead_rows, weights_apart

WIDTH, H, D = 12, 3, 4
LOW = torch.finfo(torch.float32).min


def hidden(n):
    """Row 0 sees itself alone, row 1 nothing; it is none of the eight that are compared."""
    table = torch.zeros(n, n, dtype=torch.bool)
    table[0, 1:] = True
    table[1] = True
    return table


def half(n):
    """Half of row 1."""
    table = torch.zeros(n, n, dtype=torch.bool)
    table[1, : n // 2] = True
    return table


def low_row(n):
    """5,000 less for row 1."""
    return (torch.arange(n) == 1)[:, None] * -5000.0


def ahead(n):
    return torch.ones(n, n).tril() == 0


def first(n):
    """Padding on the left."""
    return (torch.arange(n) < 2).expand(n, n)


def one_row(n):
    """Row 1, which is none of the eight that are compared where there are more."""
    return (torch.arange(n) == 1)[:, None]


def distance(n):
    return (torch.arange(n)[:, None] - torch.arange(n)).abs().float()


def bias(n):
    return torch.randn(n, n, generator=torch.Generator().manual_seed(3))


SHOWN = {  # exactly
    "a fill": lambda s, n: s.masked_fill(hidden(n), -1e9),
    "the least number": lambda s, n: s.masked_fill(hidden(n), LOW),
    "a fill, then a bias": lambda s, n: s.masked_fill(hidden(n), -1e4) + bias(n),
    "a bias, then a fill": lambda s, n: (s + bias(n)).masked_fill(hidden(n), -1e4),
    "a mask of no axes": lambda s, n: torch.where(torch.tensor(True), s, torch.tensor(-1e4)),
    "a fill and a bias, divided": lambda s, n: (s.masked_fill(hidden(n), -1e5) + bias(n)) / 1.3,
    "a fill, then a small temperature": lambda s, n: s.masked_fill(ahead(n), -1e4) / 512**0.5,
    "a fill, then a temperature": lambda s, n: s.masked_fill(hidden(n), -1e4) / 2,
    "two fills": lambda s, n: s.masked_fill(hidden(n), -1e9).masked_fill(half(n), -1e4),
    "a fill of a table": lambda s, n: torch.where(hidden(n), -1e4 + bias(n), s),
    "added": lambda s, n: s + hidden(n) * -1e9,
    "added twice": lambda s, n: s + ahead(n) * -1e9 + first(n) * -1e9,
    "the least number, added twice": lambda s, n: s + ahead(n) * LOW + first(n) * LOW,
    "a fill, and the least number": lambda s, n: (
        torch.where(~ahead(n), s, torch.tensor(LOW)) / 2 + first(n) * LOW
    ),
    "a fill, and as much added": lambda s, n: s.masked_fill(ahead(n), -1e9) + first(n) * -1e9,
    "added to all of a row": lambda s, n: s + (torch.arange(n) == 1)[:, None] * -1e9,
    "added to all": lambda s, n: s - 1e9,
    "a large number added to a row": lambda s, n: s + (torch.arange(n) == 1)[:, None] * 1e9,
    "multiplied and added": lambda s, n: s * ~hidden(n) + hidden(n) * -1e30,
    "in double precision": lambda s, n: s.double() + hidden(n) * -1e9,
    "a number of each head's own": lambda s, n: torch.where(
        one_row(n), torch.tensor([-1e4, -2e4, -1e9])[:, None, None], s
    ),
    "a number of each row's own": lambda s, n: torch.where(
        torch.tensor(True), -1e4 - torch.arange(float(n))[:, None], s
    ),
    "scaled in each head, and hidden": lambda s, n: (
        s * torch.tensor([1.0, 2.0, 5.0])[:, None, None] + one_row(n) * -1e9
    ),
    # whatever the scores were, they are 0
    "behind a gate that is shut": lambda s, n: (0.0 * s.tanh()).masked_fill(one_row(n), -1e9),
    "a cap of 0": lambda s, n: 0.0 * s.tanh() + bias(n),
}


class Hides(nn.Module):
    def __init__(self, scores):
        super().__init__()
        self.scores = scores
        self.asks, self.says = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key = (
            one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
        )
        weights = self.scores(query @ key.mT, x.shape[1]).softmax(-1).to(x.dtype)
        self.true = weights.detach().nan_to_num(0.0)
        return weights @ key


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("n", [5, 20])
@pytest.mark.parametrize("way", SHOWN)
def test_rows_that_no_key_is_left_of_have_the_weights_of_the_numbers(way, n, texts):
    model = Hides(SHOWN[way])
    recording = looked_at(model, torch.randn(texts, n, WIDTH))
    assert len(recording.sequences) == texts
    for sequence, true in zip(recording.sequences, model.true, strict=True):
        [call] = sequence
        assert call.proof == ("proved" if texts == 1 else "assumed"), call.why
        torch.testing.assert_close(call.weights(), true, atol=3e-6, rtol=0)


IN_PART = {
    # a number that is brought back hides no key any more
    "brought back": lambda s, n: s.masked_fill(half(n), -1e4) + half(n) * 9999.0,
    # a number that is not below the others of its row
    "lowered": lambda s, n: (s + low_row(n) + low_row(n)).masked_fill(half(n), -1e4),
    "lowered, and doubled": lambda s, n: ((s + low_row(n)) * 2).masked_fill(half(n), -1e4),
    "lowered by a table": lambda s, n: (s + 2 * low_row(n).expand(n, n).clone()).masked_fill(
        half(n), -1e4
    ),
    "lowered, upside down": lambda s, n: (-2 * (s - low_row(n))).masked_fill(half(n), -1e4),
    "lowered after a fill": lambda s, n: (
        s.masked_fill(ahead(n) & (low_row(n) == 0), -1e9) + 2 * low_row(n)
    ).masked_fill(half(n), -1e4),
    "padding and a fill, divided": lambda s, n: (
        (s + first(n) * -1e4).masked_fill(ahead(n), -1e4) / 8
    ),
    "far below": lambda s, n: (1e9 * (s - 3)).masked_fill(half(n), -1e4) * 20,
    "large": lambda s, n: (1e5 * (s - 3)).masked_fill(half(n), -1e4),
    "made small": lambda s, n: s.masked_fill(half(n), -1e4) * 3e-4,
    # in float32 a score loses what is less than 8 below 1e8, and 1 and 2 differ no more
    "by rounding": lambda s, n: 4 * s + hidden(n) * -1e8,
    "of some keys": lambda s, n: (s + hidden(n) * -1e4).masked_fill(half(n), -1e4),
    # -1e9 - 32 lies between two numbers of float32: any score decides which of them it becomes
    "by distance": lambda s, n: s - 16 * distance(n) + one_row(n) * -1e9,
    "a number, then more": lambda s, n: (s + 4) + one_row(n) * -1e8,
    "kept, and large": lambda s, n: (1e5 * (s - 3)) * ~half(n) + half(n) * -1e4,
    "kept, and lowered": lambda s, n: (s + 2 * low_row(n)) * ~half(n) + half(n) * -1e4,
    "added, and large": lambda s, n: 1e5 * (s - 3) + (one_row(n) & ~half(n)) * -1e4 - 1e4,
}


@pytest.mark.parametrize("n", [5, 20])
@pytest.mark.parametrize("way", IN_PART)
def test_scores_that_are_lost_in_part_are_shown_as_the_weights_that_they_made(way, n):
    model = Hides(IN_PART[way])
    [call] = looked_at(model, torch.randn(1, n, WIDTH))
    assert call.proof == "unproved"
    torch.testing.assert_close(call.weights(), model.true[0], atol=3e-6, rtol=0)


def without_most(scores):
    return scores - scores.amax(-1, keepdim=True)


def plus(scores, more):
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) + more)


def stable(scores):
    """Softmax-plus-one without overflow."""
    most = scores.amax(-1, keepdim=True)
    raised = (scores - most).exp()
    return raised / (raised.sum(-1, keepdim=True) + (-most).exp())


def with_column(scores, does=lambda beside: beside):
    column = scores.new_full((*scores.shape[:-1], 1), 0.5)
    return does(torch.cat([scores, column], -1)).softmax(-1)[..., :-1]


BESIDE = {  # a row of hidden keys goes to the sink as a whole, or shares with it, as numbers stand
    "a share beside what was highest": lambda s: plus(without_most(s), 1e-3),
    "a share beside powers": lambda s: plus(s, 1e-3),
    "a share that grows": stable,
    "a column": with_column,
    "a column beside what is less than the highest": lambda s: with_column(without_most(s)),
    "a column that is lessened too": lambda s: with_column(s, without_most),
    "lessened before and after": lambda s: with_column(without_most(s), without_most),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("fill", [-1e9, -1e4, "added", "a little added", -torch.inf])
@pytest.mark.parametrize("row", [0, 2])  # one of those that are compared, and one between them
@pytest.mark.parametrize("way", BESIDE)
def test_rows_whose_keys_are_hidden_beside_a_sink(way, row, fill, kind):
    n = 30
    table = (torch.arange(n) == row)[:, None] | (torch.arange(n) == 5)[:, None] & ahead(n)[3]
    if fill == -torch.inf and way not in ("a share beside powers", "a column"):
        table[row, 4] = False  # else the highest is no number

    def weights_of(scores):
        added = {"added": -1e10, "a little added": -1e4}
        if fill in added:
            return BESIDE[way](scores + table * added[fill])
        return BESIDE[way](scores.masked_fill(table, fill))

    model = Weighs(weights_of).to(kind)
    [call] = looked_at(model, torch.randn(1, n, WIDTH, dtype=kind))
    assert call.proof != "refuted"
    is_alone = call.proof == "unproved"  # then kept in single precision
    assert not is_alone or (fill in ("added", "a little added") and way != "a column")
    near = 3e-6 if kind == torch.float32 or is_alone else 1e-12
    torch.testing.assert_close(call.weights().to(kind), model.true[0], atol=near, rtol=0)


@pytest.mark.parametrize("low", [-3e38, -1e9, -1e4])
def test_a_sink_of_one_head_that_is_at_minus_infinity(low):
    """The others' take all of a hidden row; this one leaves its keys even."""

    class Sinks(Hides):
        def forward(self, x):
            query, key = (
                one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
            )
            scores = (query @ key.mT).masked_fill((torch.arange(30) == 2)[:, None], low)
            column = torch.tensor([0.5, -torch.inf, 1.0])[:, None, None].expand(1, H, 30, 1)
            weights = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
            self.true = weights.detach()
            return weights @ key

    [call] = looked_at(model := Sinks(None), torch.randn(1, 30, WIDTH))
    assert call.proof in ("assumed", "unproved")
    torch.testing.assert_close(call.weights(), model.true[0], atol=3e-6, rtol=0)
    torch.testing.assert_close(call.weights()[1, 2], torch.full((30,), 1 / 30))


class Weighs(Hides):
    def forward(self, x):
        query, key = (
            one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
        )
        weights = self.scores(query @ key.mT)
        self.true = weights.detach()
        return weights @ key


def test_a_sink_takes_all_of_a_row_whose_keys_are_hidden():
    class Sinks(Hides):
        def __init__(self):
            super().__init__(None)
            self.sink = nn.Parameter(torch.randn(H, 1, 1))

        def forward(self, x):
            query, key = (
                one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
            )
            scores = (query @ key.mT).masked_fill(hidden(x.shape[1]), -1e9)
            beside = torch.cat([scores, self.sink.expand(*scores.shape[:3], 1)], dim=-1)
            weights = beside.softmax(-1)[..., :-1]
            self.true = weights.detach()
            return weights @ key

    [call] = looked_at(model := Sinks(), torch.randn(1, 6, WIDTH))
    torch.testing.assert_close(call.weights(), model.true[0], atol=3e-6, rtol=0)


class Kernel(nn.Module):
    def forward(self, x, added):
        return scaled_dot_product_attention(x, x.cos(), x, attn_mask=added)


@pytest.mark.parametrize("n", [5, 20])
def test_torchs_kernel_with_a_row_that_is_hidden_twice(n):
    x, added = torch.randn(1, H, n, D), ahead(n) * -1e9 + first(n) * -1e9
    with heedful.record(model := Kernel()) as recording:
        model(x, added)
    scores = (x @ x.cos().mT / D**0.5 + added)[0]
    torch.testing.assert_close(recording[0].weights(), scores.softmax(-1), atol=3e-6, rtol=0)
    assert recording[0].check.passed


KINDS = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.mark.parametrize("low", [-1e4, -1e5, "least"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [5, 20])
def test_torchs_kernel_adds_in_float32_whatever_its_tensors_are(n, kind, low):
    low = torch.finfo(kind).min if low == "least" else max(low, torch.finfo(kind).min)
    x, added = (3 * torch.randn(1, H, n, D)).to(kind), (hidden(n) * low).to(kind)
    with heedful.record(model := Kernel()) as recording:
        model(x, added)
    scores = x[0].float() @ x[0].cos().float().mT / D**0.5 + added.float()
    torch.testing.assert_close(
        recording[0].weights().float(), scores.softmax(-1), atol=KINDS[kind], rtol=0
    )
    assert recording[0].check.passed
    assert not recording.missed


@pytest.mark.parametrize("n", [5, 20])
def test_a_row_that_is_shown_to_see_nothing_is_compared_with_what_it_gave(n, monkeypatch):
    """As it was: row 0 saw two keys, and was shown to see none; no other row was wrong."""
    monkeypatch.setattr(dead_rows, "settle", lambda *_: None)
    monkeypatch.setattr(weights_apart, "is_hidden_key_weighed", lambda *_: False)
    model = Hides(lambda s, n: s.masked_fill(torch.arange(n)[:, None] == 0, -1e9))
    with heedful.record(model) as recording:
        model(torch.randn(1, n, WIDTH))
    assert recording[0].proof == "refuted"


def test_the_largest_product_is_that_of_the_keys_that_a_head_shares():
    query, key = torch.ones(1, 4, 2, 4), torch.ones(1, 2, 5, 4)
    key[:, 1, 3] = 10
    query[:, :, 1] = 2
    sizes = dead_rows._largest(query, key, (1, 4, 2))[0] / dead_rows.ROUNDED_UP
    assert sizes.tolist() == [[4, 8], [4, 8], [40, 80], [40, 80]]
    alike = dead_rows._largest(query, key, (1, 1, 2))[0] / dead_rows.ROUNDED_UP
    assert alike.tolist() == [[40, 80]]
