"""Real rows and columns of calls whose padding is not evident from the door or a name."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.ops.masks import Dense, Mask, Packed
from heedful.recorder.axes.mask_structure import offset_of, recognise

B, H, D = 2, 3, 4


def heads(x, turn):
    """Project vectors to (B, H, N, D), differently for queries and keys."""
    return (x @ turn).unflatten(-1, (H, D)).transpose(-3, -2)


class Attend(nn.Module):
    """Attention between two sequences, with the mask in several forms."""

    def __init__(self, by_hand=False):
        super().__init__()
        self.by_hand = by_hand
        self.register_buffer("turns", torch.randn(2, H * D, H * D))

    def forward(self, x, y, allowed):
        query, key = heads(x, self.turns[0]) / D, heads(y, self.turns[1])
        if not self.by_hand:
            return scaled_dot_product_attention(query, key, key, allowed)
        scores = query @ key.mT / D**0.5
        return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ key

    def expected(self, x, y, allowed):
        """The maps by their definition, in float64."""
        turns = self.turns.double()
        query, key = heads(x.double(), turns[0]), heads(y.double(), turns[1])
        raised = (torch.einsum("bhnd,bhmd->bhnm", query, key) / D**1.5).exp() * allowed
        return (raised / raised.sum(-1, keepdim=True)).float()


def padded(length, real, side):
    """A padding mask (2, length), True for real tokens; the first text has no padding."""
    keep = torch.arange(length) < torch.tensor([[length], [real]])
    return keep if side == "right" else keep.flip(1)


class Layer(nn.Module):
    """A module that attends under one name, with a padding mask under another."""

    def __init__(self, name, by_hand=False):
        super().__init__()
        self.name = name
        self.add_module(name, Attend(by_hand))

    def forward(self, x, y, allowed, **masks):
        return self.get_submodule(self.name)(x, y, allowed)


def recorded(model, *inputs, **masks):
    before = model(*inputs, **masks)
    with heedful.record(model) as recording:
        assert torch.equal(model(*inputs, **masks), before)
    assert recording.missed == {}
    return recording


def shows(recording, maps, queries, keys):
    """Check the map of each sequence on its real queries and keys."""
    assert len(recording.sequences) == len(maps)
    for [call], map_, rows, columns in zip(recording.sequences, maps, queries, keys, strict=True):
        expected = map_[:, rows][..., columns]
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=0)


TOLD = ("attention_mask", "encoder_attention_mask", "mask", "src_mask")


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("argument", TOLD)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("N", "M"), [(16, 7), (5, 11)])
def test_real_rows_of_cross_attention_without_such_a_name(N, M, side, argument, by_hand):
    keep, model = padded(M, 4, side), Layer("attn2", by_hand)
    x, y, allowed = torch.randn(B, N, H * D), torch.randn(B, M, H * D), keep[:, None, None]
    recording = recorded(model, x, y, allowed, **{argument: keep})
    every = torch.ones(B, N, dtype=torch.bool)
    shows(recording, model.attn2.expected(x, y, allowed), every, keep)
    assert recording[0].kind == "cross"


@pytest.mark.parametrize("name", ["src_attn", "enc_dec_attention", "cross", "encdec"])
def test_names_of_cross_attention_with_equal_lengths(name):
    keep, model = padded(7, 4, "right"), Layer(name)
    x, y = torch.randn(2, B, 7, H * D)
    recording = recorded(model, x, y, keep[:, None, None], attention_mask=keep)
    every = torch.ones_like(keep)
    shows(recording, model.get_submodule(name).expected(x, y, keep[:, None, None]), every, keep)
    assert recording[0].kind == "cross"


def test_equal_lengths_without_such_a_name_are_self_attention():
    """A documented limit (docs/how-to/record.md): the recorded map is right but lacks some rows."""
    keep, model = padded(7, 4, "right"), Layer("attn2")
    x, y = torch.randn(2, B, 7, H * D)
    recording = recorded(model, x, y, keep[:, None, None], attention_mask=keep)
    shows(recording, model.attn2.expected(x, y, keep[:, None, None]), keep, keep)
    assert recording[0].kind == "self"


NAMED = {
    "attention_mask": lambda keep: keep,
    "mask": lambda keep: keep,
    "src_mask": lambda keep: keep[:, None],  # (B, 1, M)
    "src_mask as numbers": lambda keep: keep.long(),
    "mask added": lambda keep: torch.zeros(keep.shape).masked_fill(~keep, -math.inf),
    "padding_mask": lambda keep: ~keep,
    "key_padding_mask": lambda keep: ~keep,
    "src_key_padding_mask": lambda keep: ~keep,
    "src_key_padding_mask added": lambda keep: torch.zeros(keep.shape).masked_fill(~keep, -1e9),
}


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("way", NAMED)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_by_the_names_of_arguments(side, way, by_hand):
    keep, model, x = padded(7, 4, side), Layer("attend", by_hand), torch.randn(B, 7, H * D)
    allowed = keep[:, None, None]
    recording = recorded(model, x, x, allowed, **{way.split()[0]: NAMED[way](keep)})
    shows(recording, model.attend.expected(x, x, allowed), keep, keep)


BEGINS, ENDS = torch.arange(7) < torch.tensor([[7], [4]]), torch.arange(7) >= 4
OTHERS = {
    "a part that counts for the loss": {"mask": BEGINS},
    "none counts": {"mask": torch.zeros(2, 7, dtype=torch.bool)},
    "the end": {"src_mask": torch.stack([ENDS, ENDS])},
    "True for padding": {"padding_mask": ~BEGINS},
    "True for real ones": {"padding_mask": BEGINS},
    "queries and keys": {"mask": torch.ones(7, 7).tril().bool()},
    "of each text": {"mask": torch.ones(2, 7, 7).tril().bool()},
}


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("way", OTHERS)
def test_a_mask_that_is_not_padding_removes_no_token(way, by_hand):
    allowed, every = torch.ones(7, 7).tril().bool(), torch.ones(B, 7, dtype=torch.bool)
    model, x = Layer("attend", by_hand), torch.randn(B, 7, H * D)
    recording = recorded(model, x, x, allowed, **OTHERS[way])
    shows(recording, model.attend.expected(x, x, allowed), every, every)
    assert recording[0].kind == "causal"


def test_a_pool_of_packed_parts_is_not_causal():
    runs = range(8), range(8, 12)
    table = torch.tensor([[m in run for m in range(16)] for run in runs])
    assert offset_of(recognise(Dense(table), (1, 2, 16)), 0, 0) is None


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("behind", [2, 12])
def test_a_window_that_looks_ahead_is_not_causal(ahead, behind):
    places = torch.arange(9)
    apart = places[:, None] - places
    allowed = (apart <= behind) & (apart >= -ahead)
    x, model = torch.randn(1, 9, H * D), Layer("attend")
    recording = recorded(model, x, x, allowed)
    assert recording[0].kind == ("self" if ahead else "causal")
    expected = model.attend.expected(x, x, allowed)[0]
    torch.testing.assert_close(recording[0].weights(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("start", [0, 3, 9])
def test_a_few_queries_after_many_keys_are_still_causal(start):
    """Left padding that no input describes hides even a query's own position."""
    allowed = torch.ones(5, 12).tril(7).bool() & (torch.arange(12) >= start)
    x, y, model = torch.randn(1, 5, H * D), torch.randn(1, 12, H * D), Layer("attend")
    visible = allowed.any(-1)
    recording = recorded(model, x, y, allowed)
    assert recording[0].kind == "causal"
    assert offset_of(recording[0].causes.mask, 0, 0) is not None
    expected = model.attend.expected(x, y, allowed)[0][:, visible]
    torch.testing.assert_close(recording[0].weights()[:, visible], expected, atol=2e-6, rtol=0)


class OfItsOwn(Mask):
    """A mask of a user-defined class, different for each sequence."""

    def allowed(self, query, key, shape):
        return PATTERNS[:, :, query, key]


PATTERNS = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.6
PATTERNS[..., 0] = True


@pytest.mark.parametrize("kind", [Dense, Packed.of, lambda table: OfItsOwn(), lambda table: table])
def test_each_sequence_has_its_own_mask(kind):
    mask, x = kind(PATTERNS), torch.randn(4, 2, 6, 8)

    class Attends(nn.Module):
        def forward(self, x):
            return heedful.attention(x, x, x, mask=mask)

    with heedful.record(model := Attends()) as recording:
        model(x)
    for text, own, allowed in zip(recording.sequences, x, PATTERNS, strict=True):
        scores = (own @ own.mT * 8**-0.5).masked_fill(~allowed, -torch.inf)
        torch.testing.assert_close(text[0].weights(), scores.softmax(-1), atol=2e-6, rtol=0)
