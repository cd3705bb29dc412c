"""A softmax that is written out, also of rows whose exponents or sums their type cannot hold."""

import pytest
import torch
from looked import WIDTH, Heads, M, looked_at

import heedful

ROWS = 30
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def row(number, size=1.0):
    """A column that is zero but in one row: 0 is one of those that are compared, 2 is not."""
    column = torch.zeros(ROWS, 1)
    column[number] = size
    return column


class Weighs(Heads):
    def __init__(self, weights_of):
        super().__init__(None)
        self.weights_of = weights_of

    def forward(self, *given):
        query, key = self.heads(*given)
        weights = self.weights_of(query @ key.mT)
        self.true = weights.detach().clone()
        return weights @ key


def looked(weights_of, kind=SINGLE, seed=0):
    """The one call of a model, and the weights that it made itself."""
    torch.manual_seed(seed)
    model = Weighs(weights_of).to(kind).eval()
    given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (ROWS, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert len(recording) == 1, dict(recording.missed)
    return recording[0], model.true[0]


def near(call, true, atol=1e-6):
    shown = call.weights().to(true)
    torch.testing.assert_close(shown, true.nan_to_num(0.0), atol=atol, rtol=0)


SAFE = {  # ways to keep a sum of zero from dividing
    "clamp": lambda e: e / e.sum(-1, keepdim=True).clamp(min=1e-9),
    "where": lambda e: torch.where((t := e.sum(-1, keepdim=True)) > 0, e / t, e),
    "a mask of the sum": lambda e: e / (t := e.sum(-1, keepdim=True)).masked_fill(t == 0, 1.0),
    "normalize": lambda e: torch.nn.functional.normalize(e, p=1, dim=-1),
    "a number": lambda e: e / (e.sum(-1, keepdim=True) + 1e-9),
    "one where it is zero": lambda e: e / ((t := e.sum(-1, keepdim=True)) + (t == 0)),
    "no numbers": lambda e: (e / e.sum(-1, keepdim=True)).nan_to_num(0.0),
    "nothing": lambda e: e / e.sum(-1, keepdim=True),
}


@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(SINGLE).min, -torch.inf])
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("way", SAFE)
def test_a_row_whose_keys_are_all_hidden_has_no_weights(way, number, low):
    """Its exponents are zeros, as hidden as they are by a softmax of minus infinity."""
    call, true = looked(lambda s: SAFE[way](s.masked_fill(row(number).bool(), low).exp()))
    assert call.proof == ("assumed" if way == "one where it is zero" else "proved"), call.why
    near(call, true)


def upcast(scores):
    raised = (scores - 14).exp().float()
    return (raised / raised.sum(-1, keepdim=True)).half()


def beside_a_number(scores):
    raised = (scores - 16).exp()
    return raised / (raised.sum(-1, keepdim=True) + 1e-3)


@pytest.mark.parametrize("way", [upcast, beside_a_number])
def test_exponents_that_were_faint_when_they_were_taken(way):
    call, true = looked(way, HALF)
    assert call.proof == "unproved", call.why
    near(call, true, 1e-3)


FAINT = {
    "half precision": (HALF, lambda s: s - row(2, 14.0).half()),
    "all rows in half precision": (HALF, lambda s: s - 14),
    "single precision": (SINGLE, lambda s: s - row(2, 104.0)),
    "a key that is hidden later was higher": (
        SINGLE,
        lambda s: s + row(2, 103.0) * (torch.arange(M) == 3),
    ),
}


@pytest.mark.parametrize("way", FAINT)
def test_exponents_that_have_lost_their_digits_are_shown_as_they_are(way):
    kind, lowered = FAINT[way]
    hides = (torch.arange(M) != 3).to(kind)

    def weights_of(scores):
        raised = lowered(scores)
        if kind == SINGLE and way.startswith("a key"):
            raised = raised - raised.amax(-1, keepdim=True)
        raised = raised.exp() * hides
        return raised / raised.sum(-1, keepdim=True)

    call, true = looked(weights_of, kind)
    assert call.proof == "unproved", call.why
    near(call, true, 1e-3 if kind == HALF else 1e-6)


@pytest.mark.parametrize("size", [10.0, 12.0])
def test_a_sum_that_has_no_room_in_half_precision_leaves_no_weights(size):
    """Powers of 10 and their sum are more than 65,504: what is divided by infinity is zero."""

    def weights_of(scores):
        raised = (scores / 8 + row(2, size).half()).exp()
        return raised / raised.sum(-1, keepdim=True)

    call, true = looked(weights_of, HALF)
    assert float(true[:, 2].nan_to_num(0.0).max()) == 0
    assert call.proof == "proved", call.why
    near(call, true, 2e-3)


def prior(scores):
    table = torch.ones(ROWS, M, dtype=scores.dtype)
    table[2, :2] = 0.05
    return table


TWICE = row(2) + 1


def twice(scores):
    """Row 2 sums to two exactly, which is as far from one as zero is."""
    scores = 1e4 * scores
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised * (TWICE / raised.sum(-1, keepdim=True))


OF_EACH_KEY = {
    "twice": lambda e, p: e * (TWICE / e.sum(-1, keepdim=True)),
    "times": lambda e, p: e * (p / (e * p).sum(-1, keepdim=True)),
    "by": lambda e, p: e / ((e * p).sum(-1, keepdim=True) / p),
    "upside down": lambda e, p: e.sum(-1, keepdim=True) / e,
}


@pytest.mark.parametrize("way", OF_EACH_KEY)
def test_a_factor_that_differs_from_key_to_key_makes_no_softmax(way):
    model = Heads(lambda q, k: OF_EACH_KEY[way]((s := q @ k.mT).exp(), prior(s)) @ k)
    given = [torch.randn(1, length, WIDTH) for length in (ROWS, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert (len(recording), list(recording.missed)) == (0, ["Heads"])


def test_a_row_that_sums_to_two_is_not_one_of_zeros():
    model = Heads(lambda query, key: twice(query @ key.mT) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (ROWS, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert (len(recording), list(recording.missed)) == (0, ["Heads"])


def first_alone(scores):
    return scores.masked_fill(torch.arange(scores.shape[-1]) > 0, -torch.inf)


def sums_of_one(scores):
    scores = first_alone(scores)
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def sums_of_one_in_place(scores):
    scores = first_alone(scores)
    scores -= scores.amax(-1, keepdim=True)
    scores.exp_()
    scores /= scores.sum(-1, keepdim=True)
    return scores


ONE = {
    "written out": sums_of_one,
    "in place": sums_of_one_in_place,
    "logarithms": lambda s: s.log_softmax(-1).exp(),
    "by hand": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
}


@pytest.mark.parametrize("keys", [1, M])
@pytest.mark.parametrize("way", ONE)
def test_rows_whose_exponents_sum_to_one_already(way, keys):
    """One key alone has a weight of one, as in the first step of a generation."""
    model = Heads(lambda query, key: ONE[way](query @ key.mT) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (ROWS, keys)]
    query, key = model.heads(*given)
    [call] = looked_at(model, *given)
    assert call.proof == "proved", call.why
    near(call, ONE[way](query @ key.mT)[0].detach())


@pytest.mark.parametrize("way", ["logarithms", "by hand"])
def test_keys_before_queries_that_are_all_alike(way):
    """Rows sum to one along both axes where a query of zeros finds all keys alike."""
    ways = {
        "logarithms": lambda s: s.log_softmax(-2).exp(),
        "by hand": lambda s: (s - s.logsumexp(-2, keepdim=True)).exp(),
    }
    model = Heads(lambda query, key: ways[way](key @ (0 * query).mT).mT @ key)
    [call] = looked_at(model, *[torch.randn(1, M, WIDTH)] * 2)
    assert call.proof == "proved", call.why
    near(call, torch.full((3, M, M), 1 / M))


def test_many_keys_in_half_precision_are_no_reason_to_miss_logarithms():
    kind = torch.bfloat16
    model = Heads(lambda query, key: (query @ key.mT).log_softmax(-1).exp() @ key).to(kind)
    given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (20, 4000)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert recording[0].proof == "proved", recording[0].why


def in_place(scores):
    raised = scores.exp()
    raised *= torch.ones(M)
    return raised / raised.sum(-1, keepdim=True)


SAME = {
    "ones in place": in_place,
    "ones": lambda s: (s * torch.ones(ROWS, M)).softmax(-1),
    "a sum as wide as its rows": lambda s: s.exp() / s.exp().sum(-1, keepdim=True).expand_as(s),
}


@pytest.mark.parametrize("way", SAME)
def test_what_is_multiplied_with_ones_is_as_it_was(way):
    model = Heads(lambda query, key: SAME[way](query @ key.mT) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (ROWS, M)]
    query, key = model.heads(*given)
    [call] = looked_at(model, *given)
    assert call.proof == "proved", call.why
    near(call, (query @ key.mT).softmax(-1)[0].detach())


ROUGH = {
    "a number, by its inverse": lambda e: e * (1 / (e.sum(-1, keepdim=True) + 1e-6)),
    "a narrower sum": lambda e: e / e.sum(-1, keepdim=True, dtype=SINGLE),
    "a power": lambda e: e * (e.sum(-1, keepdim=True) + 1e-9) ** -1,
}


@pytest.mark.parametrize("way", ROUGH)
def test_a_sum_that_is_off_in_its_ninth_digit_refutes_nothing_in_double_precision(way):
    call, true = looked(lambda s: ROUGH[way](s.exp()), DOUBLE)
    assert call.proof == "unproved", call.why
    near(call, true, 1e-6)


@pytest.mark.parametrize("kind", [HALF, SINGLE])
def test_rows_of_no_numbers_are_empty_where_the_weights_alone_are_known(kind):
    """ReLU is no cause that is kept; with no key left the softmax gives no number."""
    hidden = row(2).bool().expand(ROWS, M)
    call, true = looked(lambda s: s.relu().masked_fill(hidden, -torch.inf).softmax(-1), kind)
    assert call.proof == "unproved"
    assert bool(true[:, 2].isnan().all())
    near(call, true, 1e-3)


def by_hand(scores):
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


def test_a_logsumexp_that_is_rounded_as_all_its_row_is_shown_or_missed():
    """In half precision hundreds are rounded to a quarter, and with them all weights of a row."""
    call, true = looked(by_hand)
    assert call.proof == "proved"
    near(call, true)
    call, true = looked(lambda s: by_hand(s.masked_fill(row(2).bool(), -1e4)))
    assert call.proof == "unproved"
    near(call, true)
    for of in (
        lambda s: s + 200,
        lambda s: 0.1 * s + 400,
        lambda s: s.masked_fill(row(2).bool(), -1e4),
    ):
        torch.manual_seed(0)
        model = Heads(lambda query, key, of=of: by_hand(of(query @ key.mT)) @ key).half()
        given = [torch.randn(1, length, WIDTH).half() for length in (ROWS, M)]
        with torch.no_grad(), heedful.record(model) as recording:
            model(*given)
        assert list(recording.missed.values()) == ["weights that do not sum to one"]
