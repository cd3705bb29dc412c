"""Scores and weights that are rounded to a narrower type on their way: certain up to that type."""

from contextlib import nullcontext

import pytest
import torch
from looked import WIDTH, B, H, Heads, M, N, looked_at, shows, weighed
from torch import nn
from torch.nn.functional import normalize, scaled_dot_product_attention

import heedful
from heedful.recorder.doors import score_causes, transformers_interface
from heedful.recorder.doors.dead_rows import Step
from heedful.recorder.doors.score_causes import ScoreCauses, rounding_types
from heedful.recorder.following.scores import Change
from heedful.recording import capture
from heedful.recording.rounding import TOLERANCE

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
HIDDEN = torch.ones(N, M, dtype=torch.bool).tril(2) == 0
EMPTY = torch.arange(N)[:, None] == 2  # a row of which every key is hidden


def back(scores, kind):
    return scores.to(kind).to(scores.dtype)


def written(scores):
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


WAYS = {  # to weights from scores, with the type of these and the narrowest on the way
    "half precision and back": (SINGLE, HALF, lambda s: back(s, HALF).softmax(-1)),
    "bfloat16 and back": (SINGLE, BRAIN, lambda s: back(s, BRAIN).softmax(-1)),
    "a softmax in half precision": (SINGLE, HALF, lambda s: s.half().softmax(-1).float()),
    "a softmax in bfloat16": (SINGLE, BRAIN, lambda s: s.softmax(-1, dtype=BRAIN).float()),
    "its weights": (SINGLE, HALF, lambda s: back(s.softmax(-1), HALF)),
    "written out": (SINGLE, BRAIN, lambda s: back(written(back(s, BRAIN)), BRAIN)),
    "powers alone": (SINGLE, HALF, lambda s: normalize(back(s.exp(), HALF), 1, -1)),
    "a softmax of float32": (DOUBLE, SINGLE, lambda s: s.softmax(-1, dtype=SINGLE).double()),
    "float32 and back": (DOUBLE, SINGLE, lambda s: back(s, SINGLE).softmax(-1)),
    "both": (DOUBLE, HALF, lambda s: back(s.float().softmax(-1), HALF).double()),
    "keys hidden since": (
        SINGLE, HALF, lambda s: back(s, HALF).masked_fill(HIDDEN, -1e9).softmax(-1)
    ),
    "rows hidden since": (
        SINGLE, HALF, lambda s: back(s, HALF).masked_fill(HIDDEN | EMPTY, -1e9).softmax(-1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("way", WAYS)
def test_rounded_on_the_way_they_are_right_up_to_it(way, texts):
    kind, narrow, weights_of = WAYS[way]
    model = Heads(lambda query, key: weights_of(query @ key.mT) @ key).to(kind)
    given = [torch.randn(texts, length, WIDTH, dtype=kind) for length in (N, M)]
    query, key = model.heads(*given)
    expected = weights_of(query @ key.mT).detach()
    recording = looked_at(model, *given)
    assert len(recording.sequences) == texts
    near = 8 * torch.finfo(narrow).eps
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        assert call.proof == ("proved" if texts == 1 else "assumed"), call.why
        assert call.check.tolerance == TOLERANCE[narrow]
        torch.testing.assert_close(call.weights(), map_, atol=near, rtol=near)


@pytest.mark.parametrize("way", WAYS)
def test_in_inference_mode_they_are_as_right(way):
    """There torch leaves a softmax of another type whole."""
    kind, narrow, weights_of = WAYS[way]
    model = Heads(lambda query, key: weights_of(query @ key.mT) @ key).to(kind)
    given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (N, M)]
    with torch.inference_mode():
        query, key = model.heads(*given)
        [expected] = weights_of(query @ key.mT)
        with heedful.record(model) as recording:
            model(*given)
    [call] = recording
    assert call.proof == "proved", call.why
    assert call.check.tolerance == TOLERANCE[narrow]
    near = 8 * torch.finfo(narrow).eps
    torch.testing.assert_close(call.weights(), expected, atol=near, rtol=near)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("way", WAYS)
def test_other_weights_are_refuted_all_the_same(way, mode, monkeypatch):
    kind, narrow, weights_of = WAYS[way]
    model = Heads(lambda query, key: weights_of(query @ key.mT) @ key).to(kind)
    with mode(), heedful.record(model) as recording:
        model(*(2 * torch.randn(1, length, WIDTH, dtype=kind) for length in (N, M)))
    own = capture.Capture.causes
    factor = 1 + 20 * TOLERANCE[narrow]

    def causes(*of):
        made = own(*of)
        return made._replace(query=factor * made.query)

    monkeypatch.setattr(capture.Capture, "causes", causes)
    [(_, check)] = recording.certificate()
    assert check.tolerance == TOLERANCE[narrow]
    assert not check.passed


WIDER = {
    "a softmax": lambda s: s.double().softmax(-1).float(),
    "sums": lambda s: (s - s.double().logsumexp(-1, keepdim=True).float()).exp(),
}


@pytest.mark.parametrize("way", WIDER)
def test_what_becomes_wider_is_as_precise_as_before(way):
    model = Heads(lambda query, key: WIDER[way](query @ key.mT) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (N, M)]
    recording = looked_at(model, *given)
    shows(recording, weighed(*model.heads(*given)), proof="proved")
    assert recording[0].check.tolerance == TOLERANCE[SINGLE]


class Sinks(Heads):
    """Scores with a column beside them, which are rounded then."""

    def __init__(self):
        super().__init__(None)
        self.sink = nn.Parameter(torch.randn(H, 1, 1))

    def forward(self, *given):
        query, key = self.heads(*given)
        beside = torch.cat([query @ key.mT, self.sink.expand(len(query), H, N, 1)], dim=-1)
        weights = back(beside, HALF).softmax(-1)[..., :-1]
        self.true = weights.detach()
        return weights @ key


def test_scores_that_are_rounded_beside_a_sink():
    given = [torch.randn(1, length, WIDTH) for length in (N, M)]
    [call] = looked_at(model := Sinks(), *given)
    assert (call.proof, call.check.tolerance) == ("proved", TOLERANCE[HALF])
    torch.testing.assert_close(call.weights(), model.true[0], atol=2e-3, rtol=0)


def test_scores_that_are_rounded_beside_large_numbers_are_shown_as_the_weights_that_they_made():
    """In half precision 1 and 2 differ no more, where 10,000 were taken off; 4 and 8 do."""
    for times, proof in ((1, "proved"), (8, "unproved")):
        model = Heads(lambda q, k, t=times: back(t * q @ k.mT + EMPTY * -1e4, HALF).softmax(-1) @ k)
        given = [torch.randn(1, length, WIDTH) for length in (N, M)]
        query, key = model.heads(*given)
        expected = back(times * query @ key.mT + EMPTY * -1e4, HALF).softmax(-1)
        [call] = looked_at(model, *given)
        assert call.proof == proof
        atol = 2e-3 if proof == "proved" else 3e-6
        torch.testing.assert_close(call.weights(), expected[0].detach(), atol=atol, rtol=0)
        assert (call.weights() - expected[0])[:, 2].abs().max() < 3e-6


class Cosine(nn.Module):
    """Attention as in Swin Transformer V2: cosines, a scale of each head's own, a table added."""

    def __init__(self, scale, kind):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3 * H * 4, bias=False)
        self.scale = nn.Parameter(torch.full((H, 1, 1), float(scale)))
        self.table = nn.Parameter(2 * torch.randn(H, N, N))
        self.to(kind)

    def forward(self, x):
        heads = self.inner(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        cosines = normalize(query, dim=-1) @ normalize(key, dim=-1).mT
        self.own = (cosines * self.scale + self.table).softmax(-1)
        return (self.own @ value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kind", [HALF, BRAIN])
@pytest.mark.parametrize("scale", [1, 3, 10, 30, 100, 300, 1000])
def test_weights_are_proved_where_the_rounding_of_large_scores_moves_none_far(scale, kind):
    words = []
    for _ in range(10):
        model = Cosine(scale, kind)
        [call] = looked_at(model, torch.randn(1, N, WIDTH, dtype=kind))
        off = float((call.weights() - model.own[0].float()).detach().abs().max())
        words.append(call.proof)
        if call.proof == "proved":
            assert off < 0.06
        else:
            assert call.proof == "unproved", call.why
            assert "the model's own rounding of scores as large" in call.why
    coarse = scale * torch.finfo(kind).eps
    assert coarse > 0.05 or set(words) == {"proved"}
    # larger ones leave a row one key alone, which no rounding moves
    assert not (kind == BRAIN and 50 < scale < 500) or "unproved" in words


@pytest.mark.parametrize("kind", [HALF, BRAIN, SINGLE, DOUBLE])
def test_large_scores_of_a_table_that_was_not_seen_are_refuted(kind, monkeypatch):
    """What rounding explains grows with the scores, and explains nothing else."""
    model = Cosine(10, kind)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, N, WIDTH, dtype=kind))
    own = capture.Capture.causes
    monkeypatch.setattr(capture.Capture, "causes", lambda *of: own(*of)._replace(bias=None))
    [(_, check)] = recording.certificate()
    assert check.worst > check.tolerance


def test_large_scores_of_a_kernel_are_not_rounded():
    """Flash attention keeps them in float32, whatever the type of its queries."""
    model = Heads(lambda q, k: nn.functional.scaled_dot_product_attention(q, k, k, scale=30.0))
    given = [torch.randn(1, length, WIDTH, dtype=BRAIN) for length in (N, M)]
    [call] = looked_at(model.to(BRAIN), *given)
    assert call.proof == "proved", call.why
    query, key = (one.double() for one in model.heads(*given))
    expected = (30 * query @ key.mT).softmax(-1)[0]
    torch.testing.assert_close(call.weights().double(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("sizes", [(8, 0.1), (0.1, 8)])
def test_one_text_of_large_scores_is_enough(sizes):
    words = []
    for _ in range(10):
        model = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key).to(BRAIN)
        size = torch.tensor(sizes)[:, None, None]
        given = [(size * torch.randn(2, one, WIDTH)).to(BRAIN) for one in (N, M)]
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given)
        words.append(recording[0].proof)
    assert words.count("unproved") > 1


def test_a_large_bias_is_rounded_too():
    """A number near 100 in all places of a row leaves a score two digits of its own."""
    table = 100 + torch.rand(N, M)
    model = Heads(lambda query, key: (query @ key.mT + table.to(BRAIN)).softmax(-1) @ key).to(BRAIN)
    given = [0.1 * torch.randn(1, one, WIDTH, dtype=BRAIN) for one in (N, M)]
    [call] = looked_at(model, *given)
    assert call.proof == "unproved", call.why


@pytest.mark.parametrize("kind", [HALF, BRAIN])
@pytest.mark.parametrize("low", [-1500.0, -5000.0, 1500.0])
@pytest.mark.parametrize("row", [0, 2])  # one of those that are compared, and one between them
def test_a_bias_of_all_keys_of_a_row_is_rounded_however_low_it_is(row, low, kind):
    table = torch.where(torch.arange(30) == row, low, 0.0)[:, None].expand(30, M)
    model = Heads(lambda q, k: (q @ k.mT + table.to(kind)).softmax(-1) @ k).to(kind)
    given = [torch.randn(1, one, WIDTH, dtype=kind) for one in (30, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert recording[0].proof == "unproved", recording[0].why


def of_row(number, kind, rows=30):
    """A column that adds a number to one row, which is none of those that are compared."""
    return torch.where(torch.arange(rows) == 2, number, 0.0)[:, None].to(kind)


def plus_one(scores):
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / (raised.sum(-1, keepdim=True) + 1)


# all keys of row 2 but the first
LOWERED = -1000.0 * ((torch.arange(30)[:, None] == 2) & (torch.arange(M) > 0)).to(BRAIN)
FIRST_OF_ROW = (torch.arange(30)[:, None] == 2) & (torch.arange(M) == 0)

TAKEN_OFF = {  # what is the same for all keys, or taken off again, has rounded the scores
    "a column": (BRAIN, lambda s: (s + of_row(300.0, BRAIN)).softmax(-1)),
    "a low column": (BRAIN, lambda s: (s + of_row(-5000.0, BRAIN)).softmax(-1)),
    "a column in half precision": (HALF, lambda s: (s + of_row(2000.0, HALF)).softmax(-1)),
    "a number": (BRAIN, lambda s: (s + 300.0).softmax(-1)),
    "a number in half precision": (HALF, lambda s: (s + 2000.0).softmax(-1)),
    "added and taken off": (
        BRAIN, lambda s: (s + of_row(1000.0, BRAIN) - of_row(1000.0, BRAIN)).softmax(-1)
    ),
    "some keys lowered and raised": (BRAIN, lambda s: (s + LOWERED - LOWERED).softmax(-1)),
    "lowered beside a hidden key": (
        BRAIN,
        lambda s: (s.masked_fill(FIRST_OF_ROW, -torch.inf) + LOWERED - LOWERED).softmax(-1),
    ),
    "made small again": (BRAIN, lambda s: ((8 * s + of_row(3000.0, BRAIN)) / 8).softmax(-1)),
    "the highest taken off beside a share": (
        BRAIN, lambda s: plus_one(s + of_row(-1000.0, BRAIN).expand(30, M))
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", TAKEN_OFF)
def test_numbers_that_are_gone_from_the_scores_have_rounded_them(way):
    kind, weights_of = TAKEN_OFF[way]
    model = Heads(lambda query, key: weights_of(query @ key.mT) @ key).to(kind)
    given = [torch.randn(1, one, WIDTH, dtype=kind) for one in (30, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert recording[0].proof == "unproved", recording[0].why


@pytest.mark.parametrize("kind", [HALF, BRAIN])
@pytest.mark.parametrize("number", [1.0, 100.0, 1000.0])
def test_a_number_that_is_added_to_all_scores_refutes_nothing(number, kind):
    for _ in range(10):
        model = Heads(lambda query, key: (query @ key.mT + number).softmax(-1) @ key).to(kind)
        given = [torch.randn(1, one, WIDTH, dtype=kind) for one in (N, M)]
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given)
        assert recording[0].proof in ("proved", "unproved"), recording[0].why
        assert number > 1 or recording[0].proof == "proved"


@pytest.mark.parametrize("kind", [HALF, BRAIN])
def test_a_slope_of_places_beside_a_share_refutes_nothing(kind):
    """As BLOOM has it, by the place of the key; the highest of each row is taken off."""
    slope = 0.7 * torch.arange(40).to(kind)
    ahead = torch.ones(40, 40).tril() == 0
    for _ in range(10):
        model = Heads(
            lambda q, k: plus_one((q @ k.mT + slope).masked_fill(ahead, -torch.inf)) @ k
        ).to(kind)
        with torch.no_grad(), heedful.record(model) as recording:
            model(3 * torch.randn(1, 40, WIDTH, dtype=kind))
        assert recording[0].proof in ("proved", "unproved"), recording[0].why


def test_the_largest_number_beside_scores_is_that_of_each_row():
    def largest(*steps, **left):
        made = [Step(kind, value, SINGLE) for kind, value in steps]
        found = score_causes.largest_added(made, ScoreCauses(**left), torch.device("cpu"))
        return None if found is None else found.flatten().tolist()

    table = torch.tensor([[[[1.0, -7.0], [2.0, -torch.inf]]]])
    column = torch.tensor([[[[3.0], [-9]]]])
    assert largest(("scale", 2.0), ("add", table)) is None
    assert largest(("hide", table), ("scale", 2.0)) is None
    assert largest(("add", -4.0)) == [4.0]
    assert largest(("add", column)) == [3.0, 9.0]
    assert largest(("add", column), ("scale", -0.5), ("add", 1)) == [1.5, 5.5]
    # a key whose bias has half of it is left out, and one at minus infinity
    assert largest(("add", table), ("add", -column), mask=table) == [0.0, 11.0]
    assert largest(("add", table), ("add", -column), bias=table) == [0.0, 11.0]
    seen = torch.tensor([[[[True, False], [False, False]]]])
    assert largest(("add", table), ("add", -column), mask=seen, bias=torch.zeros_like(table)) == [
        2.0,
        0.0,
    ]
    assert largest(("add", table), ("add", -table), bias=0 * column) == [7.0, 2.0]
    wide = torch.full((1, 1, 1, 1), 4e4, dtype=HALF)
    assert largest(("add", wide), ("add", wide)) == [80_000.0]


def test_the_largest_number_is_the_same_in_blocks_of_rows(monkeypatch):
    table, bias = torch.randn(2, 1, 30, M), torch.randn(1, H, 30, M)
    made = [Step("add", table, SINGLE), Step("scale", -3.0, SINGLE), Step("add", bias, SINGLE)]
    left = ScoreCauses(mask=torch.rand(1, 1, 30, M) < 0.5, bias=torch.randn(1, 1, 1, M))
    whole = score_causes.largest_added(made, left, torch.device("cpu"))
    largest = (3 * table).abs().maximum((bias - 3 * table).abs())
    is_gone = left.mask & (largest / 2 > left.bias.abs())
    torch.testing.assert_close(whole, (largest * is_gone).amax(-1, keepdim=True))
    monkeypatch.setattr(score_causes, "BLOCK", 7 * 2 * H * M)
    assert score_causes.largest_added(made, left, torch.device("cpu")).equal(whole)
    column = torch.rand(1, 1, 30, 1)  # of which alone there are several rows
    made = [Step("add", 3.0, SINGLE), Step("divide", column, SINGLE)]
    found = score_causes.largest_added(made, ScoreCauses(), torch.device("cpu"))
    torch.testing.assert_close(found, 3 / column)


@pytest.mark.parametrize("kind", [SINGLE, DOUBLE])
@pytest.mark.parametrize("size", [30, 300])
def test_large_scores_of_many_products_are_not_refuted_for_the_order_of_their_sum(size, kind):
    """As far as two programs are apart that add up 64 products, and SDPA with them."""

    def kernel(query, key):
        return scaled_dot_product_attention(query, key, key, scale=size)

    for attend in (lambda query, key: (size * query @ key.mT).softmax(-1) @ key, kernel):
        for seed in range(40):
            torch.manual_seed(seed)
            model = Heads(attend, width=64).to(kind)
            with torch.no_grad(), heedful.record(model) as recording:
                model(*[torch.randn(1, 30, WIDTH, dtype=kind) for _ in range(2)])
            assert recording[0].proof == "proved", recording[0].why


@pytest.mark.parametrize(("size", "proof"), [(1e4, "proved"), (1e6, "unproved")])
def test_single_precision_is_held_to_a_thousandth(size, proof):
    def attend(query, key):
        scores = query @ key.mT + of_row(size, SINGLE)
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1) @ key

    model = Heads(attend)
    with torch.no_grad(), heedful.record(model) as recording:
        model(*[torch.randn(1, one, WIDTH) for one in (30, M)])
    assert recording[0].proof == proof, recording[0].why


@pytest.mark.parametrize("row", [0, 2])  # one of those that are compared, and one between them
@pytest.mark.parametrize("low", [torch.finfo(HALF).min, -60_000.0])
def test_a_hidden_row_whose_scores_are_rounded_is_not_refuted(low, row):
    """A mask in half precision beside float32 scores rounds those to 1/256, and leaves them."""
    mask = torch.zeros(30, M, dtype=HALF)
    mask[row] = low
    others = torch.randn(30, M).to(HALF)
    for _ in range(5):
        model = Heads(lambda query, key: (query @ key.mT + mask + others).softmax(-1) @ key)
        given = [torch.randn(1, one, WIDTH) for one in (30, M)]
        query, key = model.heads(*given)
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given)
        assert recording[0].proof in ("proved", "unproved"), recording[0].why
        true = (query @ key.mT + mask + others).softmax(-1)[0].detach()
        torch.testing.assert_close(recording[0].weights(), true, atol=0.01, rtol=0)


def test_a_row_that_is_no_number_hides_no_other():
    """Row 2 is rounded at 300, and the query of row 5 is not a number."""

    def attend(query, key):
        scores = query @ key.mT + of_row(300.0, BRAIN)
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1) @ key

    model = Heads(attend).to(BRAIN)
    given = [torch.randn(1, one, WIDTH, dtype=BRAIN) for one in (30, M)]
    given[0][:, 5] = torch.nan
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert recording[0].proof == "unproved", recording[0].why


def test_a_row_that_is_compared_is_looked_at_too():
    """Of 1,000 rows eight are compared, and 256 are looked at, of which row 142 is none."""
    table = torch.where(torch.arange(1000) == 142, 500.0, 0.0)[:, None].expand(1000, M)
    model = Heads(lambda q, k: (q @ k.mT + table.to(BRAIN)).softmax(-1) @ k).to(BRAIN)
    given = [torch.randn(1, one, WIDTH, dtype=BRAIN) for one in (1000, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert recording[0].proof == "unproved", recording[0].why


@pytest.mark.parametrize("size", [1e4, 1e5, 1e6])
def test_scores_that_rounding_moves_by_thousands_are_right_or_unproved(size):
    """Weights are 0 and 1, and which of two keys has all of it may be a matter of rounding."""
    words, own = [], []

    def attend(query, key):
        own.append((size * query @ key.mT).softmax(-1))
        return own[-1] @ key

    for _ in range(20):
        model = Heads(attend).to(BRAIN)
        given = [torch.randn(1, one, WIDTH, dtype=BRAIN) for one in (100, M)]
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given)
        words.append(recording[0].proof)
        if words[-1] == "proved":
            expected = own[-1][0].float()
            torch.testing.assert_close(recording[0].weights(), expected, atol=1e-6, rtol=0)
    assert set(words) <= {"proved", "unproved"}
    assert words.count("unproved") > 10


def test_scores_of_a_thousand_may_change_places_and_refute_nothing():
    """In bfloat16 they are 8 apart, so that a rounding makes another key the largest."""
    words = []
    for _ in range(60):
        model = Heads(lambda query, key: (300 * query @ key.mT).softmax(-1) @ key).to(BRAIN)
        given = [torch.randn(1, one, WIDTH, dtype=BRAIN) for one in (N, M)]
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given)
        words.append(recording[0].proof)
    assert set(words) == {"proved", "unproved"}


def product_of(*changes):
    return rounding_types([Change(kind, value, [], BRAIN) for kind, value in changes], HALF)


def test_each_step_that_moves_digits_counts():
    assert product_of() == (HALF,)
    assert product_of(("divide", 8.0)) == (HALF,)
    assert product_of(("scale", 0.125), ("hide", None), ("fill", None), ("scale", -1.0)) == (HALF,)
    assert product_of(("scale", 0.3), ("softcap", 1.0), ("scale", torch.ones(2))) == (
        HALF,
        BRAIN,
        BRAIN,
        BRAIN,
    )
    assert product_of(("add", torch.ones(2)), ("cast", None)) == (HALF, BRAIN, BRAIN)


class Sunk(Heads):
    """Scores with a column beside them, and values that are far from zero."""

    def __init__(self):
        super().__init__(None)
        self.sink = nn.Parameter(torch.full((H, 1, 1), 6.0))

    def forward(self, *given):
        query, key = self.heads(*given)
        beside = torch.cat([8 * query @ key.mT, self.sink.expand(len(query), H, N, 1)], dim=-1)
        self.own = beside.softmax(-1)[..., :-1].detach()
        return self.own @ (key + 50)


@pytest.mark.parametrize("kind", [HALF, BRAIN])
def test_a_sink_beside_large_scores_and_large_values_refutes_nothing(kind):
    words = []
    for _ in range(20):
        model = Sunk().to(kind)
        given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (N, M)]
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given)
        words.append(recording[0].proof)
        if words[-1] == "proved":
            torch.testing.assert_close(
                recording[0].weights(), model.own[0].float(), atol=0.06, rtol=0
            )
    assert "refuted" not in words
    assert "proved" in words


@pytest.mark.parametrize("hides", [False, True])
def test_a_row_that_sees_nothing_makes_no_other_unsure(hides):
    """All keys but one are far off, so that rounding moves no weight but of an even row."""
    far = torch.arange(M) == 1

    def attend(query, key):
        scores = (100 * query @ key.mT - 900 * ~far).masked_fill(EMPTY & hides, -torch.inf)
        return scores.softmax(-1).nan_to_num(0) @ key

    model = Heads(attend).to(BRAIN)
    given = [torch.randn(1, length, WIDTH, dtype=BRAIN) for length in (N, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert recording[0].proof == "proved", recording[0].why


LLAMA = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 50,
    "attn_implementation": "eager",
}


def llama(times, implementation="eager"):
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA | {"attn_implementation": implementation})
    ).eval()
    for name, weight in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            weight.data *= times
    return model


def attended(model, how):
    ids = torch.randint(50, (1, 12))
    with torch.no_grad(), how, heedful.record(model) as recording:
        maps = model(ids, output_attentions=True, use_cache=False).attentions
    return recording, maps


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("times", [1, 100])
def test_eager_attention_of_transformers_in_bfloat16(times, is_cast):
    """Under autocast the tables of rotation make queries of float32, which a product narrows."""
    words = []
    for _ in range(6):
        model = llama(times)
        how = torch.autocast("cpu", BRAIN) if is_cast else nullcontext()
        recording, maps = attended(model if is_cast else model.to(BRAIN), how)
        for call, map_ in zip(recording, maps, strict=True):
            words.append(call.proof)
            if call.proof == "proved":
                torch.testing.assert_close(call.weights(), map_[0].float(), atol=0.06, rtol=0)
    assert set(words) <= {"proved", "unproved"}
    assert ("unproved" in words) == (times > 1)


def test_sdpa_of_transformers_under_autocast_is_recorded_as_its_kernel_was_given_it():
    for _ in range(10):
        model = llama(100, "sdpa")
        with torch.no_grad(), torch.autocast("cpu", BRAIN), heedful.record(model) as recording:
            model(torch.randint(50, (1, 12)), use_cache=False)
        assert {call.proof for call in recording} == {"proved"}, recording[0].why


def test_eager_attention_of_transformers_in_float64_has_a_softmax_in_float32():
    recording, maps = attended(llama(1).double(), nullcontext())
    for call, map_ in zip(recording, maps, strict=True):
        assert call.proof == "proved", call.why
        torch.testing.assert_close(call.weights(), map_[0], atol=1e-6, rtol=0)


def test_large_scores_of_eager_attention_in_float64_are_rounded_to_float32():
    for _ in range(20):
        recording, maps = attended(llama(1000).double(), nullcontext())
        for call, map_ in zip(recording, maps, strict=True):
            assert call.proof == "proved", call.why
            torch.testing.assert_close(call.weights(), map_[0], atol=1e-3, rtol=0)


def test_autocast_leaves_float64_as_it_is():
    recording, maps = attended(llama(30).double(), torch.autocast("cpu", BRAIN))
    for call, map_ in zip(recording, maps, strict=True):
        assert call.proof == "proved", call.why
        torch.testing.assert_close(call.weights(), map_[0], atol=1e-5, rtol=0)


def test_the_steps_of_eager_attention_that_round_its_scores():
    types_of = transformers_interface._rounding_types
    assert types_of(BRAIN, None, None, None) == 2 * (BRAIN,)
    assert types_of(BRAIN, torch.ones(2), None, None) == 3 * (BRAIN,)
    assert types_of(BRAIN, None, torch.ones(2), None) == 3 * (BRAIN,)
    assert types_of(BRAIN, None, None, 30.0) == 5 * (BRAIN,)
    assert types_of(DOUBLE, None, None, None) == (DOUBLE, DOUBLE, SINGLE)


@pytest.mark.parametrize("times", [1, 30])
@pytest.mark.parametrize("kind", [HALF, BRAIN])
@pytest.mark.parametrize("is_layer", [False, True])
def test_torchs_fused_layers_round_scores_too(is_layer, kind, times):
    """Of a layer as a whole only the end is seen, which tells nothing of such weights."""
    for seed in range(5):
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
        attention = layer.self_attn
        attention.in_proj_weight.data[:128] *= times
        x = torch.randn(1, 50, 64, dtype=kind)
        model = (layer if is_layer else attention).to(kind)
        given = [x] if is_layer else [x, x, x]
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given, **({} if is_layer else {"need_weights": False}))
        with torch.no_grad():
            true = attention(x, x, x, average_attn_weights=False)[1][0].float()
        [call] = recording
        assert call.proof in (["proved"] if times == 1 else ["proved", "unproved"]), call.why
        if call.proof == "proved":
            torch.testing.assert_close(call.weights().float(), true, atol=0.05, rtol=0)


@pytest.mark.parametrize("keys", [1, 5])
@pytest.mark.parametrize(("kind", "low"), [(HALF, 20), (HALF, 42), (BRAIN, 42), (BRAIN, 72)])
def test_heads_that_leave_next_to_nothing_beside_a_sink(kind, low, keys):
    """Such weights are 0 in half precision, and their squares are 0 in float32."""

    def attend(query, key):
        raised = (query @ key.mT - low).exp()
        return raised / (raised.sum(dim=-1, keepdim=True) + 1) @ key

    model = Heads(attend).to(kind)
    recording = looked_at(model, *(torch.randn(1, n, WIDTH, dtype=kind) for n in (keys, keys)))
    assert recording[0].proof != "refuted", recording[0].why
