"""A softmax and products by hand: however they are written, it is the map that is shown."""

import weakref

import pytest
import torch
from looked import (
    WIDTH,
    B,
    D,
    Given,
    H,
    Heads,
    M,
    N,
    follows,
    looked_at,
    of_heads,
    shows,
    weighed,
)  # fmt: skip
from torch import nn

import heedful
from heedful.recorder.doors import softmax_matmul


def over_its_sum(raised):
    return raised / raised.sum(-1, keepdim=True)


SPELLED = {
    "function": lambda scores: nn.functional.softmax(scores, dim=-1),
    "method": lambda scores: scores.softmax(-1),
    "positive": lambda scores: torch.softmax(scores, scores.ndim - 1),
    "module": nn.Softmax(dim=-1),
    "a logarithm, raised": lambda scores: nn.functional.log_softmax(scores, -1).exp(),
    "in place": lambda scores: torch.exp_(scores.log_softmax(dim=-1)),
    "by definition": lambda scores: torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True),
    "raised, and its sum": lambda scores: over_its_sum((scores - scores.amax(-1, True)).exp()),
    "less its logarithm": lambda scores: (scores - scores.logsumexp(-1, keepdim=True)).exp(),
    "its sum, unsqueezed": lambda scores: (raised := scores.exp()).div(raised.sum(-1)[..., None]),
    "divided in place": lambda scores: (raised := scores.exp()).div_(raised.sum(-1, True)),
    "more than nothing": lambda scores: (raised := scores.exp()) / (raised.sum(-1, True) + 1e-9),
    "hidden": lambda scores: over_its_sum(scores.exp() * (scores.abs() > 0)),
    "cast": lambda scores: scores.double().softmax(-1).to(scores.dtype),
    "of another type": lambda scores: scores.softmax(-1, dtype=torch.float64).to(scores.dtype),
    "clamped to what they are": lambda scores: scores.clamp(-1e4, 1e4).softmax(-1),
    "with factors of one": lambda scores: scores.softmax(-1) * torch.ones(H, 1, 1),
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("way", SPELLED)
def test_a_softmax_by_any_words(way, flat):
    def attend(query, key):
        if flat:
            moved = [one.flatten(0, 1) for one in (query, key)]
            weights = SPELLED[way]((moved[0] @ moved[1].mT / 2).unflatten(0, (-1, H)))
            return torch.bmm(weights.flatten(0, 1), moved[1])
        return SPELLED[way](query @ key.mT / 2) @ key

    of_heads(attend, N, M, maps=lambda query, key: weighed(query / 2, key))


@pytest.mark.parametrize("after", [1.0, 0.5])
def test_scores_that_are_capped_biased_and_then_scaled(after):
    """A number that comes last scales the cap and the bias alike."""
    bias = torch.randn(H, N, M)

    def scores(query, key):
        return (3.0 * (query @ key.mT / 3.0).tanh() + bias) * after

    model = Heads(lambda query, key: scores(query, key).softmax(-1) @ key)
    x, y = 4 * torch.randn(B, N, WIDTH), 4 * torch.randn(B, M, WIDTH)
    recording = looked_at(model, x, y)
    shows(recording, scores(*model.heads(x, y)).softmax(-1).detach(), proof="assumed")


def test_a_row_that_sees_nothing():
    rows = (torch.arange(N) < N - 1)[:, None]

    def attend(query, key):
        raised = (query @ key.mT).exp() * rows
        return raised / (raised.sum(-1, True) + 1e-9) @ key

    of_heads(attend, N, M, maps=lambda query, key: weighed(query, key) * rows)


def test_rows_that_are_emptied_after_the_softmax():
    rows = (torch.arange(N) < N - 1)[:, None]
    of_heads(
        lambda query, key: (query @ key.mT).softmax(-1) * rows @ key,
        N,
        M,
        maps=lambda query, key: weighed(query, key) * rows,
    )


OTHER_AXES = {
    "before the last": lambda x, y: (y @ x.mT).softmax(-2).mT @ y,
    "by its number": lambda x, y: torch.softmax(y @ x.mT, 2).transpose(2, 3) @ y,
    "values on the left": lambda x, y: (y.mT @ (y @ x.mT).softmax(dim=-2)).mT,
    "an einsum": lambda x, y: torch.einsum("bhji,bhjd->bhid", (y @ x.mT).softmax(-2), y),
    "keys first": lambda x, y: torch.einsum(
        "jbhi,bhjd->bhid", torch.einsum("bhid,bhjd->jbhi", x, y).softmax(0), y
    ),
}


@pytest.mark.parametrize("keys", [N, M])
@pytest.mark.parametrize("way", OTHER_AXES)
def test_a_softmax_over_another_axis(way, keys):
    of_heads(OTHER_AXES[way], N, keys)


PRODUCTS = {
    "matmul": lambda weights, value: torch.matmul(weights, value),
    "method": lambda weights, value: weights.matmul(value),
    "on the right": lambda weights, value: (value.mT @ weights.mT).mT,
    "transposed": lambda weights, value: (value.mT @ weights.transpose(-2, -1)).mT,
    "flat": lambda weights, value: torch.bmm(weights.flatten(0, 1), value.flatten(0, 1)),
    "keywords": lambda weights, value: torch.matmul(input=weights, other=value),
    "a keyword": lambda weights, value: torch.matmul(weights, other=value),
    "keywords, turned round": lambda weights, value: torch.matmul(other=weights.mT, input=value.mT),
    "flat, keywords": lambda weights, value: torch.bmm(
        mat2=value.flatten(0, 1), input=weights.flatten(0, 1)
    ),
    "added to nothing": lambda weights, value: torch.baddbmm(
        torch.zeros(()), weights.flatten(0, 1), value.flatten(0, 1)
    ),
    "einsum": lambda weights, value: torch.einsum("bhqk,bhkd->bhqd", weights, value),
    "times, and a sum": lambda weights, value: (weights[..., None] * value.unsqueeze(-3)).sum(-2),
    "times, on the right": lambda weights, value: torch.sum(
        value[:, :, None] * weights.unsqueeze(-1), dim=3
    ),
    "a list": lambda weights, value: torch.einsum("bhqk,bhkd->bhqd", [weights, value]),
    "a list, on the right": lambda weights, value: torch.einsum(
        "bhkd,bhqk->bqhd", [value, weights]
    ),
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_weights_on_either_side_of_a_product(way):
    of_heads(lambda query, key: PRODUCTS[way]((query @ key.mT).softmax(-1), key), N, M)


TWO_AXES = {
    "mm": lambda weights, value: torch.mm(weights, value),
    "method": lambda weights, value: weights.mm(value),
    "keywords": lambda weights, value: torch.mm(mat2=value, input=weights),
    "on the right": lambda weights, value: value.mT.mm(weights.mT).mT,
    "a list": lambda weights, value: torch.einsum("qk,kd->qd", [weights, value]),
    "times, and a sum": lambda weights, value: (weights[..., None] * value).sum(dim=-2),
}


@pytest.mark.parametrize("way", TWO_AXES)
def test_products_of_tables_without_heads(way):
    def attend(x, y):
        return TWO_AXES[way](torch.mm(x, y.mT).softmax(-1), y)

    x, y = torch.randn(N, D), torch.randn(M, D)
    shows(looked_at(Given(attend), x, y), weighed(x, y)[None, None])


def of_each(recording, *expected):
    """Each call of each sequence is what was expected of that call."""
    for b, sequence in enumerate(recording.sequences):
        for call, maps in zip(sequence, expected, strict=True):
            torch.testing.assert_close(call.weights(), maps[b], atol=2e-6, rtol=1e-5)


def hidden(scores, keep):
    """As BiDAF hides padding: what is left of a score is far below all others."""
    return scores * keep + (1 - keep) * -1e30


KEEP = (torch.ones(B, N, 1), torch.tensor([[1.0] * M, [1.0] * 4 + [0.0] * 3])[:, None])


def bidaf(x, y, is_masked):
    scores = x @ y.mT
    of_x, of_y = (
        (scores, scores) if not is_masked else (hidden(scores, keep) for keep in KEEP[::-1])
    )
    of_x, of_y = of_x.softmax(dim=2), of_y.softmax(dim=1)
    return of_x @ y, of_x @ (of_y.mT @ x)


@pytest.mark.parametrize("is_masked", [False, True])
def test_both_sides_of_the_same_scores_are_no_linear_attention(is_masked):
    x, y = torch.randn(B, N, D), torch.randn(B, M, D)
    found = looked_at(Given(bidaf), x, y, is_masked)
    of_x, of_y = weighed(x, y), weighed(y, x)
    if is_masked:
        of_x = of_x * KEEP[1] / (of_x * KEEP[1]).sum(-1, keepdim=True)
    of_each(found, of_x[:, None], of_y[:, None])


def test_both_sides_with_heads():
    """One side over the last axis, the other over the one before it."""

    def both(x, y):
        scores = x @ y.mT
        of_x, of_y = scores.softmax(-1), scores.softmax(-2)
        return of_x @ y, torch.einsum("bhij,bhid->bhjd", of_y, x)

    given = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    x, y = (model := Heads(both)).heads(*given)
    of_each(looked_at(model, *given), weighed(x, y), weighed(y, x))


def test_two_softmaxes_before_their_products_and_a_batch_of_another_size():
    def both(x, y):
        scores = x @ y.mT
        of_x, of_y = scores.softmax(-1), scores.mT.softmax(-1)
        moved = of_x @ y, of_y @ x
        return moved, nn.functional.scaled_dot_product_attention(x[:1], x[:1], x[:1])

    given = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    recording = looked_at(model := Heads(both), *given)
    x, y = model.heads(*given)
    assert [call.shape for call in recording] == [(H, N, M), (H, M, N), (H, N, N)]
    assert [len(sequence) for sequence in recording.sequences] == [3, 2]
    expected = [weighed(x, y), weighed(y, x)]
    for b, sequence in enumerate(recording.sequences):
        for call, maps in zip(sequence, expected, strict=False):
            torch.testing.assert_close(call.weights(), maps[b], atol=2e-6, rtol=1e-5)


def test_four_softmaxes_before_all_of_their_products():
    def attend(query, key):
        scales = [1.0, 0.5, 0.25, 2.0]
        maps = [(query @ key.mT * scale).softmax(-1) for scale in scales]
        return [weights @ key for weights in maps]

    given = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    recording = looked_at(model := Heads(attend), *given)
    query, key = model.heads(*given)
    of_each(recording, *(weighed(query * scale, key) for scale in (1.0, 0.5, 0.25, 2.0)))


def test_one_softmax_of_several_values_is_one_call():
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        return weights @ key, weights @ key.exp(), torch.einsum("bhij,bhjd->bhid", weights, key)

    of_heads(attend, N, M)


def test_keys_hidden_by_a_mask_of_the_models_own():
    keep = torch.tensor([[True] * M, [True] * 4 + [False] * 3])[:, None, None]

    def attend(query, key):
        scores = (query @ key.mT).masked_fill(~keep, torch.finfo(query.dtype).min)
        return scores.softmax(-1) @ key

    x, y = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    recording = looked_at(model := Heads(attend), x, y)
    map_ = weighed(*model.heads(x, y)) * keep
    expected = map_ / map_.sum(-1, keepdim=True)
    for b, sequence in enumerate(recording.sequences):
        found = torch.zeros(H, N, M)
        found[..., : sequence[0].shape[2]] = sequence[0].weights()
        torch.testing.assert_close(found, expected[b], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("low", [-1e9, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("is_same", [True, False])
def test_weights_that_are_set_to_zero_where_their_scores_were_hidden(low, is_in_place, is_same):
    """As ESPnet and SEW-D do, so that rows of padding, which see nothing, weigh nothing."""
    hidden = torch.rand(B, 1, N, M, generator=torch.Generator().manual_seed(1)) < 0.4
    hidden[..., 0] = False
    if low > -torch.inf:
        hidden[1, :, 3] = True
    emptied = hidden if is_same else hidden.roll(1, -1)
    met = []

    def attend(query, key):
        weights = (query @ key.mT / 2).masked_fill(hidden, low).softmax(-1)
        fill = torch.Tensor.masked_fill_ if is_in_place else torch.masked_fill
        weights = fill(weights, emptied, 0.0)
        met.append(weights.clone())
        return weights @ key

    model, given = Heads(attend), (torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH))
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    emptied.fill_(True)  # what the model does with its mask later changes nothing
    if is_same:
        shows(recording, met[0], proof="assumed")
    else:
        assert "changed after their softmax (masked_fill)" in recording.missed["Heads"]


@pytest.mark.parametrize("by", ["fill", "add"])
def test_weights_that_are_left_of_a_row_that_two_masks_have_hidden(by):
    """The row is uniform over all keys, and one of the masks empties only half of it."""
    first, second = torch.zeros(2, N, M).bool()
    first[2, :3], second[2, 3:] = True, True

    def attend(query, key):
        scores = (query @ key.mT / 2).masked_fill(first, -1e9)
        scores = scores.masked_fill(second, -1e9) if by == "fill" else scores - 1e9 * second
        return scores.softmax(-1).masked_fill_(first, 0.0) @ key

    with torch.no_grad(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    assert "changed after their softmax (masked_fill)" in recording.missed["Heads"]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_keys_whose_room_the_values_take_are_shown_or_missed(mode):
    met = []

    def attend(query, key):
        with torch.no_grad():
            query, room = query * 1.5, key * 0.5
            weights = (query @ room.mT / 2).softmax(-1)
            met.append(weights.clone())
            return weights @ room.copy_(key + 1)

    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    if mode is torch.inference_mode:  # there they are copied at once
        shows(recording, met[0], proof="proved")
    else:
        assert "were changed in place before their values" in recording.missed["Heads"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_becomes_of_queries_and_keys_after_their_call_is_no_matter(mode):
    met = []

    def attend(query, key):
        query, key = query.mul(1.5).contiguous(), key.mul(0.5).contiguous()
        met.append((query @ key.mT / 2).softmax(-1))
        output = met[0] @ key
        query.zero_()
        key.zero_()
        return output

    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    shows(recording, met[0], proof="proved")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_key_that_is_repeated_for_its_heads_is_kept_once(mode):
    """Not as a part of the memory of all its copies."""

    def attend(query, key):
        key = key[:, :1].repeat_interleave(H, dim=1)
        return (query @ key.mT / 2).softmax(-1) @ key

    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    [call] = recording
    assert call.causes.key.shape == (1, M, D)
    assert call.causes.key.untyped_storage().nbytes() == call.causes.key.nbytes


def test_values_that_are_large_whole_numbers():
    """Their evidence adds up 16 of them, for which their own type has no room."""
    times = 1_700_000_000 + torch.arange(M * 16, dtype=torch.int32).view(M, 16)
    met = []

    def attend(query, key):
        met.append((query @ key.mT / 2).softmax(-1))
        return (met[0][..., None] * times).sum(-2)

    with torch.no_grad(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    shows(recording, met[0], proof="proved")


@pytest.mark.parametrize("is_left", [False, True])
def test_keys_of_all_queries_make_one_map_from_either_side(is_left):
    """Of an activated product, the weights alone are shown."""

    def attend(query, key):
        query = query[0].flatten(0, 1)[:, None]
        key = key[:1, 0].expand(len(query), -1, -1)
        if is_left:
            return (key @ query.mT).relu().softmax(-2).mT @ key
        return (query @ key.mT).relu().softmax(-1) @ key

    given = torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    with torch.no_grad(), heedful.record(model := Heads(attend, heads=1)) as recording:
        model(*given)
        query, key = (one[0, 0] for one in model.heads(*given))
    [[call]] = recording.sequences
    torch.testing.assert_close(call.weights()[0], (query @ key.mT).relu().softmax(-1))


@pytest.mark.parametrize("keeps", [lambda w: w, lambda w: w.double()], ids=["own", "cast"])
@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.4),
        lambda weights: torch.dropout(weights, 0.4, True),
        lambda weights: nn.functional.dropout(weights, p=0.4),
        # draws of its own, of as many numbers as there are weights
        lambda weights: nn.functional.dropout(weights, 0.4) + 0 * torch.rand_like(weights),
        lambda weights: torch.rand_like(nn.functional.dropout(weights, 0.4)) * 0 + weights,
    ],
)
def test_what_is_shown_in_training_is_from_before_dropout(drop, keeps):
    def attend(query, key):
        return drop(keeps((query @ key.mT).softmax(-1))).to(key.dtype) @ key

    given = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    recording = looked_at(model := Heads(attend), *given)
    shows(recording, weighed(*model.heads(*given)))


@pytest.mark.parametrize("drop", [nn.Dropout(0.4), lambda weights: nn.functional.dropout(weights)])
def test_what_was_dropped_cannot_be_compared(drop):
    def attend(query, key):
        return drop((query @ key.mT).softmax(-1)) @ key

    x, y = torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    recording = looked_at(model := Heads(attend), x, y)
    shows(recording, weighed(*model.heads(x, y)), proof="unproved")
    assert "dropped at random" in recording[0].why


def test_a_buffer_that_adds_up_weights_after_dropout_gets_them_once():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sum", torch.zeros(B, N, N))
            self.norm, self.ran = nn.Linear(D, D), 0

        def kept(self, weights):
            self.ran += 1
            self.sum.add_(weights.detach())
            return weights

        def forward(self, x):
            x = self.norm(x)
            return self.kept(nn.functional.dropout((x @ x.mT).softmax(-1), 0.5)) @ x

    model, x = Counts(), torch.randn(B, N, D)
    with heedful.record(model) as recording:
        model(x)
    assert model.ran == 1
    used = model.sum.clone()
    shown = torch.stack([one[0].weights()[0] for one in recording.sequences])
    kept = used != 0
    torch.testing.assert_close(used[kept], 2 * shown[kept].detach(), atol=2e-6, rtol=1e-5)
    looked_at(model, x)


def with_sink(scores):
    column = torch.linspace(-1, 2, H).view(H, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1)


@pytest.mark.parametrize(
    "cut", [lambda weights: weights[..., :-1], lambda weights: weights.narrow(-1, 0, M)]
)
def test_a_column_for_a_sink_that_is_cut_off(cut):
    """Right, and assumed: it might be the score of a key whose value is added apart."""

    def raised(query, key):
        scores = with_sink(query.double() @ key.double().mT)
        return over_its_sum(scores.exp()).float().detach()

    model = Heads(lambda query, key: cut(with_sink(query @ key.mT).softmax(-1)) @ key)
    x, y = torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    found = looked_at(model, x, y)
    shows(found, raised(*model.heads(x, y))[..., :-1], proof="assumed")
    assert "no parameter" in found[0].why


@pytest.mark.parametrize("share", [1e-5, 5e-6, 2e-6])
def test_a_sink_that_takes_little_takes_it(share):
    x, y = torch.randn(B, H, N, D), torch.randn(B, H, M, D)
    total = (x.double() @ y.double().mT).logsumexp(-1, keepdim=True)
    sink = total + torch.tensor(share / (1 - share)).double().log()  # of which it is that share

    def attend(x, y, sink):
        return torch.cat([x @ y.mT, sink], -1).softmax(-1)[..., :-1] @ y

    found = looked_at(Given(attend), x, y, sink.float())
    for [call], map_ in zip(found.sequences, weighed(x, y) * (1 - share), strict=True):
        expected = torch.full((H, N), share)
        torch.testing.assert_close(call.learned_sink(), expected, atol=5e-7, rtol=0.02)
        torch.testing.assert_close(call.weights(), map_, atol=1e-6, rtol=1e-6)


def test_values_that_came_through_a_gate_are_no_weights():
    of_heads(lambda query, key: (query @ key.mT).softmax(-1) @ (key * key.softmax(-1)), N, M)


def test_what_no_product_takes_is_let_go():
    class Chooses(nn.Module):
        """Experts, say: a softmax and no product, five times; and halves of softmaxes."""

        def forward(self, x):
            made = [weakref.ref(x.softmax(-1)) for _ in range(5)]
            made += [weakref.ref(x.exp()), weakref.ref(x.log_softmax(-1))]
            self.held = sum(one() is not None for one in made)
            return over_its_sum((x @ x.mT).exp()) @ x

    with heedful.record(model := Chooses()) as recording:
        model(torch.randn(B, H, N, D))
    assert (model.held, len(recording)) == (0, 1)


def test_what_is_long_followed_is_let_go():
    alive = []

    def gate(x):
        made = x * x.softmax(1)
        seen = []
        for _ in range(100):
            made = made + 1
            seen.append(weakref.ref(made))
        alive[:] = [one() is not None for one in seen]
        return made

    model = Given(gate)
    with torch.no_grad(), pytest.warns(UserWarning, match="not recorded"), heedful.record(model):
        model(torch.randn(B, N, D))
    assert sum(alive) == 1  # what is returned


def test_chosen_heads_and_a_record_on_the_disk(tmp_path):
    given = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    model = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    recording = looked_at(model, *given, heads=[2, 0], budget=0)
    for one in (recording, heedful.load(recording.save(tmp_path / "r"))):
        shows(one, weighed(*model.heads(*given))[:, [2, 0]])


def test_values_are_kept_beside_the_causes():
    x, y = torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    model = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    [call] = follows(model, (x, y), weighed(*model.heads(x, y)), values=True)
    _, key = model.heads(x, y)
    expected = weighed(*model.heads(x, y))[0] * key[0].norm(dim=-1)[:, None]
    torch.testing.assert_close(call.value_norm(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("pads", "door", "proof"),
    [
        (slice(4, M), softmax_matmul.DOOR, "assumed"),
        (slice(0, 1), softmax_matmul.ALONE, "unproved"),
    ],
)
def test_a_mask_that_multiplies_and_one_of_each_text_that_is_added(pads, door, proof):
    """The arithmetic of the first GPT: scores · b − 1e4 · (1 − b), then the padding.

    At the left, a query that is padding sees no key but itself, so that all later ones are equal.
    """
    before, keep = torch.ones(M, M).tril(), torch.ones(2, 1, 1, M, dtype=torch.bool)
    keep[1, ..., pads] = False

    def attend(query, key):
        scores = (query @ key.mT) * before - 1e4 * (1 - before)
        return (scores + (1.0 - keep.float()) * -1e9).softmax(-1) @ key

    model, x = Heads(attend), torch.randn(2, M, WIDTH)
    recording = looked_at(model, x)
    query, key = model.heads(x)
    scores = (query.double() @ key.double().mT) * before - 1e4 * (1 - before)
    expected = (scores + (1.0 - keep.double()) * -1e9).softmax(-1).float()
    shows(recording, expected, door, proof)


class Both(nn.Module):
    """Attends from x to y and back by the same scores, with one bias; as many of each."""

    def __init__(self, bias):
        super().__init__()
        self.bias = nn.Parameter(bias)

    def forward(self, x, y):
        scores = x @ y.mT + self.bias
        return scores.softmax(-1) @ y, scores.softmax(-2).mT @ x


def almost_symmetric():
    """Its one entry that differs is in none of the eight rows that are compared."""
    table = torch.randn(20, 20)
    table = table + table.T
    table[1, 3], table[3, 1] = 6.0, -6.0
    return table


@pytest.mark.parametrize("n", [N, 20])
def test_one_bias_of_both_sides_is_turned_for_the_other(n):
    x, y = torch.randn(B, n, D), torch.randn(B, n, D)
    bias = almost_symmetric() if n == 20 else torch.randn(n, n)
    scores = x @ y.mT + bias
    recording = looked_at(Both(bias), x, y)
    of_each(recording, scores.softmax(-1)[:, None], scores.mT.softmax(-1)[:, None])
    assert all(call.check.passed for call in recording)


@pytest.mark.parametrize("of_each_text", [False, True])
def test_one_mask_in_two_senses(of_each_text):
    keep = (torch.arange(N * N).view(N, N) % 2 == 0).expand(B if of_each_text else 1, N, N)

    def attend(x, keep):
        scores = x @ x.mT
        seen = torch.where(keep, scores, -torch.inf).softmax(-1)
        return seen @ x, scores.masked_fill(keep, -torch.inf).softmax(-1) @ x

    x = torch.randn(B, N, D)
    raised = (x @ x.mT).exp()
    maps = [raised * one / (raised * one).sum(-1, keepdim=True) for one in (keep, ~keep)]
    recording = looked_at(Given(attend), x, keep)
    of_each(recording, *(map_[:, None] for map_ in maps))
    assert all(call.check.passed for call in recording)


OTHERWISE = {  # scores that `Causes` has no words for: their weights alone are shown
    "added before a cap": lambda x, y: 3 * ((x @ y.mT + 0.5) / 3).tanh(),
    "a column added before a cap": lambda x, y: ((x @ y.mT) + x[..., :1]).tanh(),
    "complex": lambda x, y: (torch.fft.fft(x) @ torch.fft.fft(y).conj().mT).real / D,
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_scores_of_another_form_are_shown_by_their_weights(way):
    x, y = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    model = Heads(lambda x, y: OTHERWISE[way](x, y).softmax(-1) @ y)
    recording = looked_at(model, x, y)
    expected = OTHERWISE[way](*model.heads(x, y)).softmax(-1).detach()
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=3e-6, rtol=0)
        assert call.proof == "unproved"


@pytest.mark.parametrize("changes", [False, True])
def test_queries_and_keys_of_inference_mode_are_those_of_their_product(changes):
    """There torch counts no changes: they are copied at once, also where one is no number."""

    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        if changes:
            key[:, :, 0] = 1.0
        return weights @ key

    model, x, y = Heads(attend), torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    x[:, 2] = torch.nan
    with torch.inference_mode(), heedful.record(model) as recording:
        model(x, y)
    [call], real = recording, torch.arange(N) != 2
    expected = weighed(*model.heads(x, y))[0]
    torch.testing.assert_close(call.weights()[:, real], expected[:, real])


@pytest.mark.parametrize("shape", [(H, 1, 1), (H, 5, 1), (1, 5, 1), (H, 1, 5)])
@pytest.mark.parametrize("texts", [1, 2])
def test_rows_and_heads_that_are_hidden_as_a_whole_see_nothing(shape, texts):
    sees = torch.ones(shape, dtype=torch.bool)
    sees[-1, -2:] = False

    def attends(query, key):
        return nn.functional.scaled_dot_product_attention(query, key, key, sees, scale=1.0)

    model, x = Heads(attends), torch.randn(texts, 5, WIDTH)
    maps = weighed(*model.heads(x)).masked_fill(~sees, 0)
    maps = (maps / maps.sum(-1, keepdim=True)).nan_to_num(0)
    for [call], map_ in zip(looked_at(model, x).sequences, maps, strict=True):
        assert call.proof == ("proved" if texts == 1 else "assumed")
        torch.testing.assert_close(call.weights().detach(), map_, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", [torch.int8, torch.int64])
def test_scores_of_whole_numbers_are_shown_by_their_weights(kind):
    class Whole(nn.Module):
        def forward(self, query, key, value):
            return (query @ key.mT).float().softmax(-1) @ value

    query, key = (torch.randint(-3, 4, (1, 2, n, 4), dtype=kind) for n in (5, 6))
    with heedful.record(model := Whole()) as recording:
        model(query, key, torch.randn(1, 2, 6, 3))
    assert recording[0].proof == "unproved"
    torch.testing.assert_close(recording[0].weights(), (query[0] @ key[0].mT).float().softmax(-1))
