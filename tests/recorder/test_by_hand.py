"""A softmax and a product by hand: other axes, other sides, windows, and what has no map at all."""

import weakref
from contextlib import nullcontext

import pytest
import torch
from looked import looked_at, shows, weighed
from torch import nn

import heedful
from heedful.recorder import softmax_matmul

B, H, N, M, D = 2, 3, 5, 7, 4


class Given(nn.Module):
    """Does what it is told."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, *given):
        return self.does(*given)


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
    x, y = torch.randn(B, H, N, D), torch.randn(B, H, keys, D)
    shows(looked_at(Given(OTHER_AXES[way]), x, y), weighed(x, y))


OVER_QUERIES = {
    "slots": lambda scores, x, y: scores.softmax(-2) @ y,
    "slots, scaled": lambda scores, x, y: (scores.softmax(-2) * 0.9) @ y,
    "on the left": lambda scores, x, y: x.mT @ scores.softmax(-1),
    "an einsum": lambda scores, x, y: torch.einsum("bhij,bhid->bhjd", scores.softmax(-1), x),
}


@pytest.mark.parametrize("way", OVER_QUERIES)
def test_a_product_over_another_axis_than_the_softmax_is_no_attention(way):
    def both(x, y):
        return OVER_QUERIES[way](x @ y.mT, x, y), nn.functional.scaled_dot_product_attention(
            x, y, y
        )

    found = looked_at(Given(both), torch.randn(B, H, N, D), torch.randn(B, H, M, D))
    assert [call.door for call in found] == ["scaled_dot_product_attention"]


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

    x, y = torch.randn(B, H, N, D), torch.randn(B, H, M, D)
    of_each(looked_at(Given(both), x, y), weighed(x, y), weighed(y, x))


def test_softmaxes_inside_torch_func_do_not_end_the_pass():
    def both(x, y):
        scores = x @ y.mT
        of_x, of_y = scores.softmax(-1), scores.softmax(-2)
        return of_x @ y, of_y.mT @ x

    model, given = Given(torch.func.vmap(both)), (torch.randn(B, N, D), torch.randn(B, M, D))
    before = model(*given)
    with heedful.record(model) as recording:
        during = model(*given)
    assert all(torch.equal(one, other) for one, other in zip(before, during, strict=True))
    assert (list(recording), list(recording.missed)) == ([], ["Given"])


def linear(query, key, value):
    """Axes b, h, n, d."""
    query, key = query.softmax(-1) * D**-0.5, key.softmax(-2)
    return query @ (key.mT @ value)


def linear_in_einsums(query, key, value):
    query, key = query.softmax(-1), key.softmax(-2)
    context = torch.einsum("bhnd,bhne->bhde", key, value)
    return torch.einsum("bhnd,bhde->bhne", query, context)


def linear_over_an_image(query, key, value):
    """Axes b, h, d, n, as a U-Net has them."""
    query, key = query.mT.softmax(-2), key.mT.softmax(-1)
    context = torch.einsum("b h d n, b h e n -> b h d e", key, value.mT)
    return torch.einsum("b h d e, b h d n -> b h e n", context, query)


class Beside(nn.Module):
    """Linear attention, and an ordinary layer after it."""

    def __init__(self, does):
        super().__init__()
        self.linear, self.attend = Given(does), Given(lambda x: (x @ x.mT).softmax(-1) @ x)

    def forward(self, query, key, value):
        return self.linear(query, key, value), self.attend(value)


@pytest.mark.parametrize("keys", [N, M])  # of both sides as many, or not
@pytest.mark.parametrize("does", [linear, linear_in_einsums, linear_over_an_image])
def test_linear_attention_has_no_map_and_is_refused_by_name(does, keys):
    query, key, value = torch.randn(B, H, N, D), *torch.randn(2, B, H, keys, D)
    with heedful.record(model := Beside(does)) as recording:
        model(query, key, value)
    assert [call.name for call in recording] == ["attend"]
    torch.testing.assert_close(
        recording[0].weights(), weighed(value, value)[0], atol=2e-6, rtol=1e-5
    )
    assert list(recording.missed) == ["linear"]
    assert "linear attention" in recording.missed["linear"]


SHARED = {
    "one for each group": lambda key: key[:, :, None],
    "expanded": lambda key: key[:, :, None].expand(-1, -1, 4, -1, -1),
}


@pytest.mark.parametrize("way", SHARED)
def test_heads_that_share_values_as_an_axis_of_their_own(way):
    def grouped(query, key):
        key = SHARED[way](key)
        return (query @ key.mT).softmax(-1) @ key

    query, key = torch.randn(B, H, 4, N, D), torch.randn(B, H, M, D)
    map_ = weighed(query, key[:, :, None].expand(-1, -1, 4, -1, -1))
    shows(looked_at(Given(grouped), query, key), map_.flatten(1, 2))


class Windows(nn.Module):
    """As SAM's image encoder has them: in the batch, and heads with them in one axis."""

    def __init__(self):
        super().__init__()
        self.attend = Given(self.attended)

    def attended(self, x):
        self.heads = x.flatten(1, 2).unflatten(-1, (H, D)).transpose(1, 2)  # (windows, H, 9, D)
        flat = self.heads.flatten(0, 1)
        return (flat @ flat.mT).softmax(-1) @ flat

    def forward(self, image):
        parts = image.unflatten(1, (2, 3)).unflatten(3, (4, 3)).transpose(2, 3)
        return self.attend(parts.flatten(0, 2))


def test_windows_of_an_image_are_texts_and_no_heads():
    found = looked_at(model := Windows(), torch.randn(B, 6, 12, H * D) / 2)
    assert len(found.sequences) == B * 8
    shows(found, weighed(model.heads, model.heads))


class Core(nn.Module):
    """As Megatron has it: positions first, and for the product texts and heads in one axis."""

    def forward(self, query, key):
        _, B, H, _ = query.shape
        query, key = (one.flatten(1, 2).transpose(0, 1) for one in (query, key))
        weights = torch.bmm(query, key.mT).unflatten(0, (B, H)).softmax(-1)
        return torch.bmm(weights.flatten(0, 1), key)


class Around(nn.Module):
    """Is given texts first."""

    def __init__(self):
        super().__init__()
        self.core = Core()

    def forward(self, x, y):
        return self.core(*(one.unflatten(-1, (-1, D)).transpose(0, 1) for one in (x, y)))


@pytest.mark.parametrize(("texts", "length"), [(1, 3), (1, 4), (2, 4), (3, 4), (2, 12), (2, 24)])
def test_heads_after_positions_that_come_first(texts, length):
    x, y = torch.randn(texts, length, 12 * D), torch.randn(texts, length + 1, 12 * D)
    query, key = (one.unflatten(-1, (12, D)).transpose(1, 2) for one in (x, y))
    shows(looked_at(Around(), x, y), weighed(query, key))


def test_heads_before_their_text_in_one_axis():
    """As the Set Transformer has them; right of one text, as docs/how-to/record.md says."""

    def folded(query, key):
        query, key = (torch.cat(one.split(D, dim=2), dim=0) for one in (query, key))
        return torch.cat(((query @ key.mT).softmax(2) @ key).split(1, dim=0), dim=2)

    query, key = torch.randn(1, N, H * D), torch.randn(1, M, H * D)
    heads = (one.unflatten(-1, (H, D)).transpose(1, 2) for one in (query, key))
    shows(looked_at(Given(folded), query, key), weighed(*heads))


@pytest.mark.parametrize("does", [lambda x: (x @ x.mT).sigmoid() @ x, lambda x: x.exp() @ x.mT @ x])
def test_what_has_no_softmax_is_told_what_was_looked_for(does):
    with heedful.record(model := Given(does)) as recording:
        model(torch.randn(B, N, D))
    assert list(recording.missed) == ["Given"]
    assert "no softmax and product after it" in recording.missed["Given"]


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
        torch.testing.assert_close(call.dropped(), expected, atol=5e-7, rtol=0.02)
        torch.testing.assert_close(call.weights(), map_, atol=1e-6, rtol=1e-6)


def test_values_that_came_through_a_gate_are_no_weights():
    x, y = torch.randn(B, N, D), torch.randn(B, M, D)

    def attend(x, y):
        gated = y * y.softmax(-1)
        return (x @ y.mT).softmax(-1) @ gated

    shows(looked_at(Given(attend), x, y), weighed(x, y)[:, None])


def test_a_module_after_a_gate_runs_once():
    norms = [nn.BatchNorm1d(N) for _ in range(2)]
    x = torch.randn(B, N, D)
    for i, norm in enumerate(norms):
        model = Given(lambda x, norm=norm: norm(nn.functional.dropout(x * x.softmax(1), 0.5)))
        model.norm = norm
        torch.manual_seed(3)
        # nothing is recorded, which is told
        told = pytest.warns(UserWarning, match="not recorded") if i else nullcontext()
        with told, heedful.record(model) if i else nullcontext():
            model(x)
    torch.testing.assert_close(norms[1].running_mean, norms[0].running_mean, atol=0, rtol=0)


def test_what_is_long_followed_is_let_go():
    alive = []

    def gate(x):
        made = x * x.softmax(1)
        seen = []
        for _ in range(30):
            made = made + 1
            seen.append(weakref.ref(made))
        alive[:] = [one() is not None for one in seen]
        return made

    model = Given(gate)
    with torch.no_grad(), pytest.warns(UserWarning, match="not recorded"), heedful.record(model):
        model(torch.randn(B, N, D))
    assert sum(alive) <= by_hand.STEPS
