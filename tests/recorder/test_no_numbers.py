"""Queries, keys and biases with NaN or infinity in them: no other row is shown as it is not."""

import pytest
import torch
from looked import WIDTH, Heads
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.recorder.doors import sdpa
from heedful.recording import evidence

H, D, N = 3, 4, 20
MANY = 600  # rows, of which not all are compared or looked at
NAN, INF = torch.nan, torch.inf
NEAR = {torch.float64: 1e-11, torch.float32: 3e-6, torch.float16: 5e-3, torch.bfloat16: 5e-2}
every_type = pytest.mark.parametrize("kind", NEAR)
every_row = pytest.mark.parametrize("row", [0, 1])  # one that is compared, and one that is not


class Shown(Heads):
    """Attention with what `weights` gives, or by a kernel, `attend`, that gives the same."""

    def __init__(self, weights, attend=None):
        super().__init__(self.attend, H, D)
        self.weights, self.how = weights, attend

    def attend(self, query, key):
        self.met = query.detach(), key.detach()
        return self.weights(query, key) @ key if self.how is None else self.how(query, key)

    @property
    def true(self):
        return self.weights(*self.met)[0].double()


def shown(model, kind, texts=1, tokens=N):
    """The call of a model, which has heads (texts, H, tokens, D), whose inputs are random."""
    torch.manual_seed(3)
    with torch.no_grad(), heedful.record(model.to(kind)) as recording:
        model(torch.randn(texts, tokens, WIDTH, dtype=kind))
    assert not recording.missed
    return recording[0]


def check(call, model, kind, proofs=("proved",)):
    """Weights as the model has them; a row without any is shown as nothing."""
    assert call.proof in proofs, call.why
    made, true = call.weights().double(), model.true
    is_nothing = true.isnan().all(dim=-1, keepdim=True) & (made == 0).all(dim=-1, keepdim=True)
    true = true.masked_fill(is_nothing, 0.0)
    near = NEAR[kind] if call.proof != "unproved" else max(NEAR[kind], 1e-6)  # kept in float32
    torch.testing.assert_close(made, true, atol=near, rtol=0, equal_nan=True)


def changed(tensor, *place, to=NAN):
    tensor = tensor.clone()
    tensor[place] = to
    return tensor


def lowest(kind, row, number=None):
    mask = torch.zeros(N, N, dtype=kind)
    mask[row] = torch.finfo(kind).min if number is None else number
    return mask


def in_float32(kind):
    return torch.promote_types(kind, torch.float32)


def by_kernel(given, mask, kind):
    """Attention by torch's kernel, with what `given` makes of queries and keys."""

    def attend(query, key):
        return scaled_dot_product_attention(*given(query, key), key, attn_mask=mask)

    def weights(query, key):
        query, key = given(query, key)
        return ((query @ key.mT).to(in_float32(kind)) * D**-0.5 + mask).softmax(-1).to(kind)

    return Shown(weights, attend)


@every_row
@every_type
@pytest.mark.parametrize("no_number", [NAN, INF])
def test_a_row_of_one_head_is_hidden_by_the_least_number_and_another_heads_query_is_none(
    no_number, kind, row
):
    mask = lowest(kind, row)
    mask[5] = -INF  # which sees nothing

    def weights(query, key):
        scores = changed(query, 0, 0, row, to=no_number) @ key.mT
        return (scores.to(in_float32(kind)) * D**-0.5 + mask).softmax(-1).to(kind)

    def attend(query, key):
        query = changed(query, 0, 0, row, to=no_number)
        return scaled_dot_product_attention(query, key, key, attn_mask=mask)

    model = Shown(weights, attend)
    call = shown(model, kind)
    check(call, model, kind)
    assert call.weights()[0, row].isnan().all()


@every_type
@pytest.mark.parametrize("has_query", [False, True])
def test_a_row_of_one_text_is_hidden_by_the_least_number_and_another_text_is_none(has_query, kind):
    mask = lowest(kind, 1)

    def weights(query, key):
        return ((query @ key.mT).to(in_float32(kind)) * D**-0.5 + mask).softmax(-1).to(kind)

    def attend(query, key):
        query, key = changed(query, 1) if has_query else query, changed(key, 1)
        return scaled_dot_product_attention(query, key, key, attn_mask=mask)

    model = Shown(weights, attend)
    check(shown(model, kind, texts=2), model, kind, ("assumed",))


@every_row
@every_type
def test_a_kernels_sums_of_rows_that_are_written_anew_are_those_of_other_scores(kind, row):
    """Not quite half of float16's least number: such a row keeps its own scores."""
    mask = lowest(kind, row, -32752.0)

    def weights(query, key):
        scores = (query @ key.mT).to(in_float32(kind)) * D**-0.5
        return (scores + mask).softmax(-1).to(kind)

    def attend(query, key):
        return scaled_dot_product_attention(query, key, key, attn_mask=mask)

    model = Shown(weights, attend)
    call = shown(model, kind)
    assert call.proof == "proved", call.why
    # rounded at 32,752 in the order of the kernel's own sums
    near = max(NEAR[kind], 5e-4 if kind != torch.float64 else 0)
    torch.testing.assert_close(call.weights().double(), model.true, atol=near, rtol=0)


@every_type
@pytest.mark.parametrize("number", [-INF, -1e4])
def test_a_key_that_is_no_number_and_is_hidden_refutes_nothing(number, kind):
    hidden = (torch.arange(N) == 4).expand(N, N)

    def weights(query, key):
        key = changed(key, 0, slice(None), 4)
        return (query @ key.mT * D**-0.5).masked_fill(hidden, number).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind), model, kind)


@every_row
@every_type
@pytest.mark.parametrize("is_by_hand", [False, True])
@pytest.mark.parametrize("is_of_rows", [False, True])
def test_a_bias_that_is_no_number_hides_no_key(is_of_rows, is_by_hand, kind, row):
    bias = torch.randn(N, 1 if is_of_rows else N).to(kind)
    bias[row, 0] = NAN

    def weights(query, key):
        return (query @ key.mT * D**-0.5 + bias).softmax(-1)

    def attend(query, key):
        return scaled_dot_product_attention(query, key, key, attn_mask=bias)

    model = Shown(weights, None if is_by_hand else attend)
    check(shown(model, kind), model, kind)


@every_row
@every_type
def test_what_numbers_of_a_row_add_up_to_may_be_minus_infinity(kind, row):
    bias = lowest(kind, row)[:, :1]

    def weights(query, key):
        return (query @ key.mT * D**-0.5 + bias + bias).softmax(-1)

    model = Shown(weights)
    call = shown(model, kind)
    check(call, model, kind)
    assert not call.weights()[:, row].any()


@every_row
@every_type
@pytest.mark.parametrize("no_number", [NAN, INF])
def test_a_query_that_is_no_number_has_no_score_that_a_large_number_could_take(
    no_number, kind, row
):
    some = torch.rand(N, N) < 0.3
    filled = (torch.arange(N) == row)[:, None] * torch.tensor(-3e4, dtype=kind)

    def weights(query, key):
        scores = changed(query, 0, 2, row, to=no_number) @ key.mT * D**-0.5
        return (scores + filled.expand(N, N)).masked_fill(some, -1e4).softmax(-1)

    def capped(query, key):
        scores = changed(query, 0, 2, row, to=no_number) @ key.mT
        return (scores.tanh() * 20 + filled).softmax(-1)

    for how in (weights, capped):
        model = Shown(how)
        check(shown(model, kind), model, kind, ("proved", "unproved"))


@every_row
@every_type
def test_a_row_of_one_number_beside_a_key_that_is_none(kind, row):
    """A query of zeros, which such a row gets, would make NaN of that key."""
    hidden = (torch.arange(N) == row)[:, None] | (torch.arange(N) == 4)

    def weights(query, key):
        key = changed(key, 0, slice(None), 4)
        return (query @ key.mT).masked_fill(hidden, -1e4).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind), model, kind, ("proved", "unproved"))


def test_a_bias_row_that_is_no_number_hides_no_other_one_that_rounding_moves():
    bias = torch.randn(100, 100)
    bias[1], bias[2, 0] = 300.0, NAN
    bias = bias.bfloat16()
    hidden = torch.zeros(100, 100, dtype=torch.bool)
    hidden[5, 6] = True

    def attend(query, key):
        return ((query @ key.mT + bias).masked_fill(hidden, -INF)).softmax(-1) @ key

    model = Heads(attend, H, D).bfloat16()
    with torch.no_grad(), heedful.record(model) as recording:
        model(2 * torch.randn(1, 100, WIDTH).bfloat16())
    assert recording[0].proof == "unproved"
    assert "rounding of scores" in recording[0].why


def test_a_row_that_is_no_number_hides_no_other_one_that_something_larger_was_added_to():
    large = torch.randn(H, N, D) * 1e7

    def attend(query, key):
        weights = (changed(query, 0, slice(None), 0) @ key.mT).softmax(-1)
        return torch.baddbmm(large, weights.flatten(0, 1), key.flatten(0, 1))

    model = Heads(attend, H, D)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, N, WIDTH))
    assert recording[0].proof == "unproved"
    assert "so large that its rounding hides" in recording[0].why


@every_type
def test_a_bias_of_whole_numbers_is_one_of_numbers(kind):
    apart = (torch.arange(N)[None] - torch.arange(N)[:, None]) // 4
    hides = (apart > 0) | (torch.arange(N) == 3)[:, None]  # all of row 3
    for bias in (apart, hides * -10_000, hides * -10_000 + apart):

        def weights(query, key, bias=bias):
            return (query @ key.mT * D**-0.5 + bias).softmax(-1)

        model = Shown(weights)
        check(shown(model, kind), model, kind)


def test_a_kernel_rounds_scores_beside_a_large_bias():
    """In 8 of 60 of these a score fell on the other side of a last bit."""
    mask = torch.full((200, 200), -5e3)

    def attend(query, key):
        return scaled_dot_product_attention(query, key, key, attn_mask=mask, scale=20.0)

    for seed in range(40):
        torch.manual_seed(seed)
        model = Heads(attend, H, 16)
        with torch.no_grad(), heedful.record(model) as recording:
            model(3 * torch.randn(1, 200, WIDTH))
        assert recording[0].proof == "proved", (seed, recording[0].why)


@every_type
@pytest.mark.parametrize("tokens", [5, N])
def test_a_query_that_is_none_refutes_no_call_of_a_kernel(tokens, kind):
    """torch's kernel for CPUs gives zeros there if there are few keys, else NaN."""

    def attend(query, key):
        query = changed(query, 0, 0, 0)
        return scaled_dot_product_attention(query, key, key)

    def weights(query, key):
        return (changed(query, 0, 0, 0) @ key.mT * D**-0.5).softmax(-1)

    model = Shown(weights, attend)
    check(shown(model, kind, tokens=tokens), model, kind)


@every_row
@every_type
@pytest.mark.parametrize("number", [-INF, -3e4, "boolean"])
def test_what_a_kernel_adds_hides_no_key_that_is_none(number, kind, row):
    """Minus infinity added to NaN is NaN. torch makes a boolean mask one that is added, too."""
    hidden = torch.zeros(N, N, dtype=torch.bool)
    hidden[row, 4] = hidden[row, 5] = True
    mask = ~hidden if number == "boolean" else hidden.to(kind).masked_fill(hidden, number)

    def attend(query, key):
        return scaled_dot_product_attention(query, changed(key, 0, 1, 4), key, attn_mask=mask)

    def weights(query, key):
        added = torch.zeros(N, N, dtype=in_float32(kind))
        added = added.masked_fill(hidden, -INF if number == "boolean" else number)
        scores = (query @ changed(key, 0, 1, 4).mT).to(in_float32(kind)) * D**-0.5
        return (scores + added).softmax(-1).to(kind)

    model = Shown(weights, attend)
    call = shown(model, kind)
    check(call, model, kind)
    assert call.weights()[1, row].isnan().all()


@every_row
@every_type
def test_what_is_no_number_is_none_times_zero(kind, row):
    sees = torch.ones(N, N, dtype=kind)
    sees[row, 4] = 0

    def weights(query, key):
        scores = query @ changed(key, 0, 1, 4).mT * D**-0.5
        return (scores * sees + (1 - sees) * -1e4).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind), model, kind, ("proved", "unproved"))


@every_row
@every_type
@pytest.mark.parametrize("number", [-1e9, "least", -INF])
def test_a_query_that_is_none_is_in_no_row_of_numbers(number, kind, row):
    """All keys of that row got a number, whatever its query is."""
    least = torch.finfo(kind).min
    number = least if number == "least" else number if number == -INF else max(number, least)
    hidden = (torch.arange(N) == row)[:, None].expand(N, N)

    def weights(query, key):
        scores = changed(query, 0, slice(None), row) @ key.mT * D**-0.5
        if number == -INF:  # NaN, which no minus infinity takes away
            return (scores + torch.zeros(N, N, dtype=kind).masked_fill(hidden, number)).softmax(-1)
        return scores.masked_fill(hidden, number).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind), model, kind)


def test_only_a_row_that_cannot_be_worked_out_has_numbers_in_place_of_a_mask():
    mask = torch.zeros(N, N)
    mask.masked_fill_(torch.arange(N) > torch.arange(N)[:, None], torch.finfo(mask.dtype).min)
    mask[:, 0] = torch.finfo(mask.dtype).min  # padding, of which row 0 sees nothing

    def attend(query, key):
        query = changed(query, 0, slice(None), 0)
        return scaled_dot_product_attention(query, key, key, attn_mask=mask)

    def weights(query, key):
        return (changed(query, 0, slice(None), 0) @ key.mT * D**-0.5 + mask).softmax(-1)

    model = Shown(weights, attend)
    call = shown(model, torch.float32)
    check(call, model, torch.float32)
    assert not call.causes.bias[:, 1:].any()


@every_type
def test_a_row_beside_an_infinite_key_that_a_number_hides(kind):
    mask = torch.zeros(N, N, dtype=kind)
    mask.masked_fill_(torch.arange(N) > torch.arange(N)[:, None], -6e4)

    def attend(query, key):
        return scaled_dot_product_attention(
            query, changed(key, 0, 0, 4, to=INF), key, attn_mask=mask
        )

    def weights(query, key):
        scores = (query @ changed(key, 0, 0, 4, to=INF).mT).to(in_float32(kind)) * D**-0.5
        return (scores + mask).softmax(-1).to(kind)

    model = Shown(weights, attend)
    check(shown(model, kind), model, kind)


@pytest.mark.parametrize("row", [0, 1])
def test_a_score_that_float16_has_no_room_for_makes_none_of_its_row(row):
    def weights(query, key):
        return (changed(query, 0, 0, row, to=6e4) @ changed(key, 0, 0, 3, to=10.0).mT).softmax(-1)

    model = Shown(weights)
    check(shown(model, torch.float16), model, torch.float16, ("proved", "unproved"))


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("large", [-8e3, 1e5, -4e6, 1e8])
def test_a_large_bias_does_not_loosen_the_check(large, of_all, monkeypatch):
    bias = torch.zeros(N, N)
    bias[slice(None) if of_all else slice(1)] += large
    true = sdpa.fused

    def wrong(call, owning):
        seen = true(call, owning)
        seen.query = seen.query * torch.where(torch.arange(N) > 0, 1.05, 1.0)[:, None]
        return seen

    monkeypatch.setattr(sdpa, "fused", wrong)
    model = Heads(lambda q, k: scaled_dot_product_attention(q, k, k, attn_mask=bias), H, D)
    with torch.no_grad(), heedful.record(model) as recording:
        model(3 * torch.randn(1, N, WIDTH))
    assert recording[0].proof == "refuted" or (of_all and recording[0].proof == "unproved")


def test_a_query_that_was_recorded_as_none_is_refuted_beside_a_large_bias(monkeypatch):
    bias = torch.full((N, N), -8e3)
    true = sdpa.fused

    def wrong(call, owning):
        seen = true(call, owning)
        seen.query = changed(seen.query, 0, 0, 0)
        return seen

    monkeypatch.setattr(sdpa, "fused", wrong)
    model = Heads(lambda q, k: scaled_dot_product_attention(q, k, k, attn_mask=bias), H, D)
    with torch.no_grad(), heedful.record(model) as recording:
        model(3 * torch.randn(1, N, WIDTH))
    assert recording[0].proof == "refuted"


@every_type
@pytest.mark.parametrize("number", [-1e9, "least", -INF])
def test_a_row_whose_scores_are_all_minus_infinity_is_of_those_that_a_number_hides(number, kind):
    """Minus infinity is below any number: a kernel weighs the keys that were to be hidden."""
    least = torch.finfo(kind).min
    mask = torch.zeros(N, N, dtype=kind)
    number = least if number == "least" else number if number == -INF else max(number, least)
    mask.masked_fill_(torch.arange(N) > torch.arange(N)[:, None], number)

    def given(query, key):
        return query.abs(), changed(key.abs(), 0, 1, 0, to=-INF)

    model = by_kernel(given, mask, kind)
    call = shown(model, kind)
    check(call, model, kind)
    assert number == -INF or model.true[1, 0, 1:].amin() > 0.01
    if -INF < number < -1e30:  # which takes all other scores: in other rows a mask hides keys
        assert not call.causes.bias[:, 1:].any()


@every_row
@pytest.mark.parametrize("kind", ["keep", "negated", "negated beside a key that is none"])
def test_a_row_that_a_step_makes_none_of_is_shown_as_none(kind, row):
    """As minus infinity times 0 is, which a bias may make of a large number in float16."""
    hidden = torch.zeros(N, N, dtype=torch.bool)
    hidden[row, 4:] = True
    hides = hidden.half()

    def weights(query, key):
        if kind.endswith("none"):
            key = changed(key, 0, slice(None), 4)
        scores = query @ key.mT * D**-0.5
        if kind.startswith("negated"):
            return (-(scores.masked_fill(hidden, -INF))).softmax(-1)
        scores = scores.masked_fill(hidden, -6e4) + hides * -6e4
        return (scores * (1 - hides) + hides * -1e4).softmax(-1)

    model = Shown(weights)
    call = shown(model, torch.float16)
    assert model.true[:, row].isnan().all()
    check(call, model, torch.float16, ("unproved",))
    assert not call.weights()[:, row].any()


@every_row
@pytest.mark.parametrize("size", [1e-4, 20.0])
def test_a_factor_of_scores_that_float16_has_no_room_for_beside_its_queries(size, row):
    """The model multiplies their product with keys, which is neither large nor small."""
    factor = torch.full((H, 1, 1), size, dtype=torch.float16)
    scale = torch.ones(MANY, 1, dtype=torch.float16)
    scale[row] = 1e4 if size > 1 else 1e-2

    def weights(query, key):
        return ((query * scale) @ (key * (0.02 / size)).mT * factor).softmax(-1)

    model = Shown(weights)
    call = shown(model, torch.float16, tokens=MANY)
    check(call, model, torch.float16)
    numbers = call.causes.query[:, row].abs()
    assert numbers.amax() > 65504 if size > 1 else numbers.amax() < 1e-5


@pytest.mark.parametrize(("added", "proof"), [(0, "proved"), (1000, "unproved")])
def test_a_divisor_of_scores_whose_inverse_float16_has_no_room_for(added, proof):
    """What is added leaves steps of half a score, which has to be told."""
    small = torch.full((N, 1), 1.2e-5, dtype=torch.float16)

    def weights(query, key):
        return (query @ key.mT * small / small + added).softmax(-1)

    model = Shown(weights)
    call = shown(model, torch.float16)
    assert call.proof == proof
    if not added:
        check(call, model, torch.float16)


@every_row
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_table", [True, False])
def test_a_factor_of_scores_that_causes_have_no_room_for_beside_queries(is_table, kind, row):
    most = torch.finfo(kind).max
    factor = torch.full((H, 1, 1), 20.0, dtype=kind) if is_table else 20.0
    scales = torch.ones(2, MANY, 1, dtype=kind)
    scales[0, row], scales[1] = most / 16, 64 / most

    def weights(query, key):
        return ((query * scales[0]) @ (key * scales[1]).mT * factor).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind, tokens=MANY), model, kind, ("unproved",))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head", [0, 2])
def test_a_row_of_large_scores_is_looked_at_wherever_it_is(head, kind):
    """Rounding may move its weights, which is told, as where there are few rows."""
    scale = torch.ones(H, MANY, 1)
    scale[head, 1] = 300.0

    def attend(query, key):
        key = torch.cat([key, 1.0001 * key], dim=-2)  # so that the largest scores are near others
        return ((query * scale) @ key.mT).to(kind).softmax(-1).float() @ key

    model = Heads(attend, H, D)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, MANY, WIDTH))
    call = recording[0]
    assert call.proof == "unproved"
    assert "rounding of scores" in call.why


def test_a_softmax_in_float16_that_is_widened_has_rows_of_its_own_rounding():
    """Its weights alone are shown, as scores had no room."""

    def weights(query, key):
        return (query @ key.mT / 1e13 * 1e13).to(torch.float16).softmax(-1).double()

    model = Shown(weights)
    check(shown(model, torch.float64), model, torch.float16, ("unproved",))


@pytest.mark.parametrize(("size", "proof"), [(1e38, "proved"), (1e39, "unproved")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_scores_of_float64_have_what_float32_has_no_room_for_beside_them(kind, size, proof):
    bias = torch.zeros(MANY, MANY, dtype=torch.float64)
    bias[1, 3], bias[2, 4:] = size, -torch.inf

    def weights(query, key):
        return ((query @ key.mT).double() + bias).softmax(-1).to(kind)

    model = Shown(weights)
    proofs = (proof if kind == torch.float32 else "proved",)
    check(shown(model, kind, tokens=MANY), model, kind, proofs)


@every_type
def test_minus_infinity_beside_keys_that_are_none_is_no_causal_mask(kind):
    """Of two keys the last is infinite, and minus infinity is added to its score with row 0."""
    mask = torch.zeros(2, 2, dtype=kind)
    mask[0, 1] = -INF

    def given(query, key):
        return -query.abs(), changed(key.abs(), 0, slice(None), 1, to=-INF)

    model = by_kernel(given, mask, kind)
    call = shown(model, kind, tokens=2)
    check(call, model, kind)
    assert call.weights()[:, 0].isnan().all()


@every_type
def test_values_that_are_none_and_are_not_looked_at_while_the_model_runs(kind, monkeypatch):
    """As on a GPU, for which a pass would have to wait."""
    monkeypatch.setattr(evidence, "_is_looked_at", lambda value: False)

    def attend(query, key):
        return scaled_dot_product_attention(query, key, changed(key, 0, 1, N - 1, 2))

    model = Heads(attend, H, D).to(kind)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, N, WIDTH, dtype=kind))
    assert recording[0].proof == "unproved"
    assert "some values are no numbers" in recording[0].why


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_query_that_is_none_says_nothing_of_rows_of_numbers_in_another_head(kind):
    """The least number takes all scores, also large ones; the query's own row has none."""
    mask = torch.full((N, N), torch.finfo(kind).min, dtype=kind)

    def weights(query, key):
        return (changed(1e7 * query, 0, 2, 7) @ key.mT * D**-0.5 + mask).softmax(-1)

    def attend(query, key):
        query = changed(1e7 * query, 0, 2, 7)
        return scaled_dot_product_attention(query, key, key, attn_mask=mask)

    model = Shown(weights, attend)
    check(shown(model, kind), model, kind)


def test_a_hidden_key_that_is_none_leaves_the_rounding_of_large_scores_as_it_is():
    """In bfloat16 these are rounded by hundreds: the weights are the model's own, and no others."""
    hidden = (torch.arange(N) == 4).expand(N, N)

    def weights(query, key):
        key = changed(key, 0, slice(None), 4)
        return (1e5 * query @ key.mT).masked_fill(hidden, -INF).softmax(-1)

    call = shown(Shown(weights), torch.bfloat16)
    assert call.proof == "unproved"
    assert "rounding of scores" in call.why


@every_row
@every_type
@pytest.mark.parametrize("of", ["a key", "a bias", "a key beside one that is hidden"])
def test_rows_that_causes_themselves_make_none_of_are_shown_by_them(of, kind, row):
    hidden = torch.arange(N) > torch.arange(N)[:, None]
    hidden[0, 0] = True  # the first query sees nothing
    bias = torch.zeros(N, N, dtype=kind)
    bias[row + 3, 2] = INF

    def weights(query, key):
        if of != "a bias":
            key = changed(key, 0, 2, 9 if of == "a key" else slice(9, 12))
        scores = query @ key.mT * D**-0.5
        return (scores if of != "a bias" else scores + bias).masked_fill(hidden, -INF).softmax(-1)

    model = Shown(weights)
    call = shown(model, kind)
    check(call, model, kind)
    assert call.causes.query.shape[-1] == D, "it has more than its weights"


@pytest.mark.parametrize("how", ["whole", "in place", "copied"])
@every_row
def test_a_row_that_a_step_makes_none_of_and_of_which_keys_are_set_to_zero(row, how):
    hidden = torch.zeros(N, N, dtype=torch.bool)
    hidden[row, :8] = True

    def weights(query, key):
        made = (-(query @ key.mT).masked_fill(hidden, -INF)).softmax(-1)
        if how == "in place":
            return made.masked_fill_(hidden, 0.0)
        return made.masked_fill(hidden, 0.0) if how == "copied" else made

    model = Shown(weights)
    call = shown(model, torch.float32)
    assert call.proof == "unproved"
    assert not call.weights()[:, row].any()


@every_row
@pytest.mark.parametrize("factor", [1e-50, 1e50])
def test_a_row_that_a_factor_makes_none_of_for_which_its_type_has_no_room(factor, row):
    """In float32 minus infinity is multiplied by 0, and divided by infinity."""
    hidden = torch.zeros(N, N, dtype=torch.bool)
    hidden[row, 5] = True

    def weights(query, key):
        scores = (query @ key.mT).masked_fill(hidden, -INF)
        return (scores * factor if factor < 1 else scores / factor).softmax(-1)

    model = Shown(weights)
    call = shown(model, torch.float32)
    assert model.true[:, row].isnan().all()
    assert call.proof == "unproved"
    assert not call.weights()[:, row].any()


def test_an_infinite_sink_leaves_the_other_heads_their_numbers():
    """Beside it a head's rows are NaN in the model, which no query, key or mask tells of."""
    sink = torch.zeros(H, 1, 1)
    sink[1] = INF

    def weights(query, key):
        scores = query @ key.mT
        return torch.cat([scores, sink.expand(len(query), -1, N, 1)], -1).softmax(-1)[..., :-1]

    model = Shown(weights)
    call = shown(model, torch.float32)
    assert model.true[1].isnan().all()
    assert call.proof == "unproved"
    assert not call.weights(head=1).any()
    torch.testing.assert_close(call.weights(head=0).double(), model.true[0], atol=1e-6, rtol=0)


@every_row
@pytest.mark.parametrize("kind", ["key", "bias"])
def test_a_row_that_a_step_makes_none_of_beside_what_makes_none_of_no_row(kind, row):
    """Minus infinity as a score, and what a mask hides, leave numbers to their rows."""
    gate = torch.ones(N, 1)
    gate[row] = 1e38
    bias = torch.zeros(N, N)
    bias[row, 5] = INF
    hidden = torch.arange(N) == 5

    def weights(query, key):
        if kind == "key":
            query, key = query.abs(), changed(key, ..., 2, slice(None), to=-INF)
        scores = 50 * query @ key.mT * gate * gate.reciprocal()
        if kind == "bias":
            scores = (scores + bias).masked_fill(hidden, -INF)
        return scores.softmax(-1)

    model = Shown(weights)
    call = shown(model, torch.float32)
    none = model.true[:, row].isnan().all(dim=-1)
    assert none.any()
    check(call, model, torch.float32, ("unproved",))
    assert not call.weights()[none, row].any()


def one_row(kind, row, size, first, others):
    """Queries of 0 but for one row, and keys, the first two of which have other numbers."""
    query, key = torch.zeros(2, MANY, D, dtype=kind)
    query[row, 0], key[:2, 0], key[2:, 0] = size, first, others
    return lambda given, other: (0 * given + query, 0 * other + key)


@every_row
@every_type
@pytest.mark.parametrize("how", ["numbers", "table", "divided by a table"])
def test_scores_that_had_no_room_before_they_became_smaller(how, kind, row):
    """Its largest number divided by 65.5 makes minus infinity of −66, but not of −65."""
    given, large = one_row(kind, row, 1.0, -65.0, -66.0), torch.finfo(kind).max / 65.5
    table = torch.ones(MANY, 1, dtype=kind)
    table[row] = large

    def weights(query, key):
        query, key = given(query, key)
        if how == "numbers":
            return (query @ key.mT * large / large).softmax(-1)
        scores = query @ key.mT * table
        return (scores / table if how != "table" else scores * (1 / table)).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind, tokens=MANY), model, kind, ("unproved",))
    assert (model.true[:, row] > 0.4).sum() == 2 * H  # of −66 nothing is left


@every_row
@every_type
def test_a_product_that_had_no_room_before_it_became_smaller(kind, row):
    large = torch.finfo(kind).max ** 0.5
    given = one_row(kind, row, large, -large / 1.1, -large * 1.1)

    def weights(query, key):
        query, key = given(query, key)
        return (query @ key.mT / large / large).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind, tokens=MANY), model, kind, ("unproved",))
    assert (model.true[:, row] > 0.4).sum() == 2 * H


@every_row
@every_type
def test_scores_that_were_too_small_before_they_became_larger(kind, row):
    given, kinds = one_row(kind, row, 1.0, 0.1, -0.1), torch.finfo(kind)
    small = torch.ones(MANY, 1, dtype=kind)
    small[row] = 2 * (kinds.smallest_normal * kinds.eps) ** 0.5

    def weights(query, key):
        query, key = given(query, key)
        return (query @ key.mT * small * small / small / small).softmax(-1)

    model = Shown(weights)
    check(shown(model, kind, tokens=MANY), model, kind, ("unproved",))
    assert torch.equal(
        model.true[:, row], torch.full_like(model.true[:, row], model.true[0, row, 0])
    )


@every_type
@pytest.mark.parametrize("place", [(0, 1), slice(None)])
def test_a_bias_that_is_none_is_no_causal_mask(place, kind):
    """Of two keys, of which the first query does not see the last in a causal one."""
    bias = torch.zeros(2, 2, dtype=kind)
    bias[place] = NAN

    def weights(query, key):
        return (query @ key.mT + bias).softmax(-1)

    call = shown(Shown(weights), kind, tokens=2)
    assert (call.kind, call.proof) == ("self", "proved")
    assert call.weights()[:, 0].isnan().all()


@every_row
@pytest.mark.parametrize("none", ["a key", "a bias", "a whole bias", "what is taken off"])
def test_a_row_that_is_set_to_zero_and_was_none(none, row):
    bias = torch.zeros(N, N)
    bias[row, 3] = -1e9
    if none.endswith("bias"):
        bias[row, :: 1 if none == "a whole bias" else N] = NAN

    def weights(query, key):
        if none == "a key":
            key = changed(key, 0, 0, 1)
        if none != "what is taken off":
            return (query @ key.mT + bias).softmax(-1).nan_to_num(0.0)
        scores = query.abs() @ changed(key.abs(), 0, 0, 1, to=INF).mT
        made = (scores - scores.amax(-1, keepdim=True)).exp()
        return (made / made.sum(-1, keepdim=True)).nan_to_num(0.0)

    model = Shown(weights)
    call = shown(model, torch.float32)
    check(call, model, torch.float32)
    assert not call.weights()[0, row].any()


@every_type
def test_minus_infinity_hides_beside_the_least_number_in_a_row_of_infinite_keys(kind):
    mask = torch.zeros(N, N, dtype=kind)
    mask[0, 1:], mask[0, 5:] = torch.finfo(kind).min, -INF

    def given(query, key):
        return query.abs(), changed(key.abs(), ..., 0, slice(None), to=-INF)

    model = by_kernel(given, mask, kind)
    check(shown(model, kind), model, kind)
    assert (model.true[:, 0, 5:] == 0).all()


def test_infinite_keys_of_one_group_of_heads():
    mask = torch.zeros(N, N).masked_fill(
        torch.arange(N) > torch.arange(N)[:, None], torch.finfo(torch.float32).min
    )
    model = Grouped(mask)
    torch.manual_seed(3)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, N, WIDTH))
    assert recording[0].proof == "proved", recording[0].why
    torch.testing.assert_close(recording[0].weights(), model.true, atol=3e-6, rtol=0)


class Grouped(torch.nn.Module):
    """Four heads that share two keys, of which the second is infinite at its first token."""

    def __init__(self, mask):
        super().__init__()
        self.query, self.key = torch.nn.Linear(WIDTH, 4 * D), torch.nn.Linear(WIDTH, 2 * D)
        self.mask = mask

    def forward(self, x):
        query = self.query(x).unflatten(-1, (4, D)).transpose(1, 2).abs()
        value = self.key(x).unflatten(-1, (2, D)).transpose(1, 2).abs()
        key = changed(value, 0, 1, 0, to=-INF)
        scores = query @ key.repeat_interleave(2, dim=1).mT * D**-0.5 + self.mask
        self.true = scores.softmax(-1)[0]
        return scaled_dot_product_attention(query, key, value, attn_mask=self.mask, enable_gqa=True)


@pytest.mark.parametrize("mask", ["boolean", -INF])
@pytest.mark.parametrize("no_number", [NAN, INF, -INF])
def test_padding_that_is_none_is_not_left_out_where_minus_infinity_is_added(no_number, mask):
    """Its keys make none of every row of their text, and the other text is as it was."""

    class Padded(Heads):
        def forward(self, x, attention_mask):
            self.sees = attention_mask[:, None, None] == 1
            return super().forward(x)

    def attend(query, key):
        none = changed(key, 1, slice(None), slice(15, None), to=no_number)
        added = torch.where(model.sees, 0.0, -INF)
        model.true = (query @ none.mT * D**-0.5 + added).softmax(-1)
        hides = model.sees if mask == "boolean" else added
        return scaled_dot_product_attention(query, none, key, attn_mask=hides)

    model = Padded(attend, H, D)
    told = torch.ones(2, N, dtype=torch.long)
    told[1, 15:] = 0
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(2, N, WIDTH), attention_mask=told)
    first, second = (calls[0] for calls in recording.sequences)
    assert (first.proof, second.proof) == ("assumed", "assumed")
    for call, true in zip((first, second), model.true, strict=True):
        torch.testing.assert_close(call.weights(), true, atol=3e-6, rtol=0, equal_nan=True)


@pytest.mark.parametrize("is_by_hand", [True, False])
@pytest.mark.parametrize("which", ["hidden", "negated"])
def test_a_text_that_sees_nothing_makes_no_model_causal(which, is_by_hand):
    """Of the zeros that its weights are shown as, none stands after its query."""
    sees = torch.ones(2, 1, N, N, dtype=torch.bool)
    sees[1] = False

    def weights(query, key):
        scores = (query @ key.mT).masked_fill(~sees, -INF)
        return (-scores if which == "negated" else scores).softmax(-1)

    def attend(query, key):
        return scaled_dot_product_attention(query, key, key, attn_mask=sees)

    model = Heads(lambda q, k: weights(q, k) @ k if is_by_hand else attend(q, k), H, D)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(2, N, WIDTH))
    assert [call.kind for calls in recording.sequences for call in calls] == ["self"] * 2


@every_row
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_product_that_has_no_room_and_is_made_smaller(kind, row):
    """The row is NaN in the model; the scale that a call has is that of its queries."""

    def weights(query, key):
        large = torch.ones(N, 1, dtype=kind)
        large[row] = 3e38
        return ((query * large) @ (3 * key).mT * (1 / 256)).softmax(-1)

    model = Shown(weights)
    call = shown(model, kind)
    none = model.true[:, row].isnan().all(dim=-1)
    assert none.any()
    check(call, model, kind, ("unproved",))
    assert not call.weights()[none, row].any()


@every_row
def test_a_factor_that_is_none_in_one_row_hides_no_other_that_has_no_room(row):
    factor = torch.ones(MANY, 1, dtype=torch.float16)
    factor[row], factor[5] = 1e3, NAN
    given = one_row(torch.float16, row, 1, -65.0, -65.75)

    def weights(query, key):
        query, key = given(query, key)
        return (query @ key.mT * factor * 1e-3).softmax(-1)

    model = Shown(weights)
    check(shown(model, torch.float16, tokens=MANY), model, torch.float16, ("unproved",))


@every_row
def test_a_hidden_product_that_has_no_room_is_none_where_minus_infinity_is_added(row):
    mask = torch.zeros(N).masked_fill(torch.arange(N) >= 5, -INF)

    def weights(query, key):
        large, small = torch.ones(N, 1), torch.full((N, 1), 1e-38)
        large[row], small[5:] = 3e38, 3.0
        key = torch.where(mask == 0, key.mT, key.mT.abs() * query[..., row, :, None].sign()).mT
        return ((query * large) @ (key * small).mT + mask).softmax(-1)

    model = Shown(weights)
    call = shown(model, torch.float32)
    assert model.true[:, row].isnan().all()
    check(call, model, torch.float32, ("unproved",))


@every_row
@pytest.mark.parametrize(
    ("size", "bias", "proof"), [(300, 38_400, "unproved"), (200, 33_000, "proved")]
)
def test_biases_of_float16_that_have_no_room_together(size, bias, proof, row):
    """They bring back a score that is minus infinity, or one that is large."""
    table = torch.zeros(N, N, dtype=torch.float16)
    table[row, 3] = bias
    query = torch.zeros(N, D, dtype=torch.float16)
    query[row, 0] = size
    key = torch.zeros(N, D, dtype=torch.float16)
    key[3, 0] = -256

    def weights(given, other):
        return ((0 * given + query) @ (0 * other + key).mT + table + table).softmax(-1)

    model = Shown(weights)
    check(shown(model, torch.float16), model, torch.float16, (proof,))
