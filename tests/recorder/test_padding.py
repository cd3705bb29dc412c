"""Which rows and columns of a call are of a text, where neither door nor name tells it plainly."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.ops.masks import Dense, Mask, Packed
from heedful.recorder.observed import Observed
from heedful.recorder.owners.mask_structure import offset_of
from heedful.recorder.owners.padding import layouts_of

B, H, D = 2, 3, 4


def heads(x, turn):
    """(B, H, N, D) of vectors; unlike for queries and keys."""
    return (x @ turn).unflatten(-1, (H, D)).transpose(-3, -2)


class Attend(nn.Module):
    """Queries and keys of two sequences, and what may attend as it is told."""

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
    """(2, length), True for real ones; the first text has no padding."""
    keep = torch.arange(length) < torch.tensor([[length], [real]])
    return keep if side == "right" else keep.flip(1)


class Layer(nn.Module):
    """One that attends under a name of its own, and is told of padding under another."""

    def __init__(self, name, by_hand=False):
        super().__init__()
        self.name = name
        self.add_module(name, Attend(by_hand))

    def forward(self, x, y, allowed, **told):
        return self.get_submodule(self.name)(x, y, allowed)


def recorded(model, *given, **told):
    before = model(*given, **told)
    with heedful.record(model) as recording:
        assert torch.equal(model(*given, **told), before)
    assert recording.missed == {}
    return recording


def shows(recording, maps, queries, keys):
    """Each sequence is its map of some queries and keys."""
    assert len(recording.sequences) == len(maps)
    for [call], map_, rows, columns in zip(recording.sequences, maps, queries, keys, strict=True):
        expected = map_[:, rows][..., columns]
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=0)


TOLD = ("attention_mask", "encoder_attention_mask", "mask", "src_mask")


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("N", "M"), [(16, 7), (5, 11)])
def test_rows_of_cross_attention_that_is_not_called_so(N, M, side, told, by_hand):
    keep, model = padded(M, 4, side), Layer("attn2", by_hand)
    x, y, allowed = torch.randn(B, N, H * D), torch.randn(B, M, H * D), keep[:, None, None]
    found = recorded(model, x, y, allowed, **{told: keep})
    every = torch.ones(B, N, dtype=torch.bool)
    shows(found, model.attn2.expected(x, y, allowed), every, keep)
    assert found[0].kind == "cross"


@pytest.mark.parametrize("by_hand", [False, True])
def test_keys_of_another_input_are_no_empty_places_of_a_cache(by_hand):
    """No query sees the last of them, as where a text comes before its later images."""
    x, y, model = torch.randn(B, 5, H * D), torch.randn(B, 11, H * D), Layer("attn2", by_hand)
    allowed = (torch.arange(11) < 7).expand(B, 1, 5, 11)
    found = recorded(model, x, y, allowed)
    every = torch.ones(B, 11, dtype=torch.bool)
    shows(found, model.attn2.expected(x, y, allowed), every[:, :5], every)
    assert found[0].why == recorded(model, x, y, torch.ones_like(allowed))[0].why


@pytest.mark.parametrize("name", ["src_attn", "enc_dec_attention", "cross", "encdec"])
def test_names_that_tell_of_cross_attention_of_equal_lengths(name):
    keep, model = padded(7, 4, "right"), Layer(name)
    x, y = torch.randn(2, B, 7, H * D)
    found = recorded(model, x, y, keep[:, None, None], attention_mask=keep)
    every = torch.ones_like(keep)
    shows(found, model.get_submodule(name).expected(x, y, keep[:, None, None]), every, keep)
    assert found[0].kind == "cross"


def test_equal_lengths_without_such_a_name_are_taken_for_self_attention():
    """A limit that docs/how-to/record.md tells of: what is shown is right, some rows are not."""
    keep, model = padded(7, 4, "right"), Layer("attn2")
    x, y = torch.randn(2, B, 7, H * D)
    found = recorded(model, x, y, keep[:, None, None], attention_mask=keep)
    shows(found, model.attn2.expected(x, y, keep[:, None, None]), keep, keep)
    assert found[0].kind == "self"


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
def test_padding_by_the_names_that_it_has(side, way, by_hand):
    keep, model, x = padded(7, 4, side), Layer("attend", by_hand), torch.randn(B, 7, H * D)
    allowed = keep[:, None, None]
    found = recorded(model, x, x, allowed, **{way.split()[0]: NAMED[way](keep)})
    shows(found, model.attend.expected(x, x, allowed), keep, keep)


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
def test_a_mask_that_is_no_padding_cuts_nothing(way, by_hand):
    allowed, every = torch.ones(7, 7).tril().bool(), torch.ones(B, 7, dtype=torch.bool)
    model, x = Layer("attend", by_hand), torch.randn(B, 7, H * D)
    found = recorded(model, x, x, allowed, **OTHERS[way])
    shows(found, model.attend.expected(x, x, allowed), every, every)
    assert found[0].kind == "causal"


POOLS = {
    "two images in one row": [range(8), range(8, 12)],
    "three, and padding": [range(4), range(4, 6), range(6, 11)],
}


@pytest.mark.parametrize("way", POOLS)
def test_a_pool_of_packed_parts_is_not_causal(way):
    runs = POOLS[way]
    allowed = torch.tensor([[m in run for m in range(16)] for run in runs])
    x, y, model = torch.randn(1, len(runs), H * D), torch.randn(1, 16, H * D), Layer("pool")
    found = recorded(model, x, y, allowed)
    assert (found[0].kind, offset_of(found[0].causes.mask, 0, 0)) == ("cross", None)
    end = found[0].shape[-1]  # keys after the last that anybody sees are empty places
    expected = model.pool.expected(x, y, allowed)[0, ..., :end]
    torch.testing.assert_close(found[0].weights(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("behind", [2, 12])
def test_a_window_that_looks_ahead_is_not_causal(ahead, behind):
    places = torch.arange(9)
    apart = places[:, None] - places
    allowed = (apart <= behind) & (apart >= -ahead)
    x, model = torch.randn(1, 9, H * D), Layer("attend")
    found = recorded(model, x, x, allowed)
    assert found[0].kind == ("self" if ahead else "causal")
    expected = model.attend.expected(x, x, allowed)[0]
    torch.testing.assert_close(found[0].weights(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("start", [0, 3, 9])
def test_a_few_queries_after_many_keys_are_still_causal(start):
    """Left padding that the pass was not told of hides even a query's own place."""
    allowed = torch.ones(5, 12).tril(7).bool() & (torch.arange(12) >= start)
    x, y, model = torch.randn(1, 5, H * D), torch.randn(1, 12, H * D), Layer("attend")
    seen = allowed.any(-1)
    found = recorded(model, x, y, allowed)
    assert found[0].kind == "causal"
    assert offset_of(found[0].causes.mask, 0, 0) is not None
    expected = model.attend.expected(x, y, allowed)[0][:, seen]
    torch.testing.assert_close(found[0].weights()[:, seen], expected, atol=2e-6, rtol=0)


PLACES = torch.arange(9)
SEES = {  # whether a query at a row sees the key at a column
    "all before": lambda row, column: column <= row,
    "a window": lambda row, column: (column <= row) & (column > row - 3),
    "a prefix": lambda row, column: (column <= row) | (column < 2),
}


class Roomy(nn.Module):
    """A cache of nine places, whose empty ones the mask of the texts hides as it does padding.

    x: the tokens so far, of which those from `start` on ask.
    """

    def __init__(self, way="all before"):
        super().__init__()
        self.made = nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.way = way

    def heads(self, x):
        return [one(x).unflatten(-1, (2, 4)).transpose(1, 2) for one in self.made]

    def allows(self, attention_mask, start, end):
        sees = SEES[self.way](PLACES[start:end, None], PLACES) if self.way in SEES else True
        return sees & attention_mask[:, None, None].expand(-1, 1, end - start, 9)

    def forward(self, x, attention_mask, start=0):
        query, key = self.heads(x)
        place = torch.full((*key.shape[:2], 9, 4), 0.3)  # of a text before
        place[:, :, : x.shape[1]] = key
        hidden = ~self.allows(attention_mask, start, x.shape[1])
        scores = (query[:, :, start:] @ place.mT).masked_fill(hidden, torch.finfo(x.dtype).min)
        return scores.softmax(-1) @ place


PADS = [
    *(("left", one) for one in ([0], [0, 0, 0], [0, 2, 3], [2])),
    *(("right", one) for one in ([0, 1, 2], [1])),
]


def of_cache(pads, side, start, end):
    """Which places of a cache hold real tokens: padding is before, or at the end of, its prompt."""
    pads, prompt, places = torch.tensor(pads)[:, None], start or end, torch.arange(9)
    behind = (places < prompt) & (places >= prompt - pads)
    return (places < end) & ~(places < pads if side == "left" else behind)


def truth_of(model, x, real, start):
    """Weights of each sequence: all queries, and the keys so far."""
    heads = zip(*model.heads(x), model.allows(real, start, x.shape[1]), strict=True)
    for query, key, sees in heads:
        scores = query[:, start:].double() @ key.double().mT
        yield scores.masked_fill(~sees[..., : x.shape[1]], -torch.inf).softmax(-1).float()


PARTS = [(0, 4), (0, 5), (0, 7), (0, 8), (4, 5), (4, 8), (7, 8)]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("start", "end"), PARTS)
@pytest.mark.parametrize(("side", "pads"), PADS)
@pytest.mark.parametrize("way", SEES)
def test_a_mask_as_long_as_a_cache_with_empty_places(way, side, pads, start, end, behind):
    """These are told to be padding, or to be tokens, which nobody sees yet."""
    model, x = Roomy(way), torch.randn(len(pads), end, 8)
    real = of_cache(pads, side, start, end)
    with heedful.record(model) as recording:
        model(x, attention_mask=real | (behind & (PLACES - end >= 0)), start=start)
    assert recording.missed == {}
    truth = truth_of(model, x, real, start)
    for (call,), told, map_ in zip(recording.sequences, real, truth, strict=True):
        expected = map_[:, told[start:end]][..., told[:end]]
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("start", "end"), PARTS)
@pytest.mark.parametrize(("side", "pads"), PADS)
def test_where_no_mask_tells_where_queries_stand_none_is_left_out(side, pads, start, end):
    """All of them see all tokens so far."""
    model, x = Roomy("all"), torch.randn(len(pads), end, 8)
    real = of_cache(pads, side, start, end)
    with heedful.record(model) as recording:
        model(x, attention_mask=real, start=start)
    for (call,), told, map_ in zip(
        recording.sequences, real, truth_of(model, x, real, start), strict=True
    ):
        expected = map_[..., told[:end]]
        if call.shape[1] < end - start:  # the last told token can only be the last query's
            expected = expected[:, told[start:end]]
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=1e-5)


def test_a_step_of_texts_that_are_not_equally_long():
    """Each writes at a place of its own, and sees its own tokens so far."""
    model, x = Roomy("all"), torch.randn(3, 8, 8)
    real = torch.tensor([4, 6, 3])[:, None] > PLACES
    with heedful.record(model) as recording:
        model(x, attention_mask=real, start=7)
    for (call,), told, map_ in zip(
        recording.sequences, real, truth_of(model, x, real, 7), strict=True
    ):
        torch.testing.assert_close(call.weights(), map_[..., told[:8]], atol=2e-6, rtol=1e-5)


class Goes(Roomy):
    """Goes on from four tokens, with a mask of its own or none."""

    def forward(self, x, past, attention_mask):
        query, key = self.heads(torch.cat([past, x], dim=1))
        sees = self.sees(attention_mask)[:, None] if self.sees else None
        return scaled_dot_product_attention(query[:, :, 4:], key, key, attn_mask=sees)


def later_hidden(real):
    """Each of the last queries sees what is real up to its own place."""
    rows, places = torch.arange(4, real.shape[1])[:, None], torch.arange(real.shape[1])
    return real[:, None] & (places <= rows)


def but_for_its_own(real):
    return later_hidden(real) | torch.eye(real.shape[1], dtype=torch.bool)[4:]


def both_ways(real):
    return real[:, None].expand(-1, real.shape[1] - 4, -1)


def one_ahead(real):
    rows, places = torch.arange(5, real.shape[1] + 1)[:, None], torch.arange(real.shape[1])
    return real[:, None] & (places <= rows)


GOES_ON = torch.tensor(
    [
        [1, 1, 0, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 0],
        [1, 0, 0, 0, 1, 0, 0, 0],
        [0, 1, 1, 1, 1, 1, 1, 1],
    ]
).bool()


def each(*texts):
    return [slice(first, last) for first, last in texts]


SECOND = {
    "own": [
        *((None, texts) for texts in each((1, 2), (0, 2), (0, 1), (2, 3))),
        *((later_hidden, texts) for texts in each((1, 2), (0, 2), (3, 4))),
        *((but_for_its_own, texts) for texts in each((1, 2), (0, 2), (0, 1), (2, 3))),
        *((both_ways, texts) for texts in each((3, 4), (1, 4))),
        (one_ahead, slice(3, 4)),
    ],
    # of queries that see the same keys, any may be the one token; or they see more than their own
    "all": [
        *((later_hidden, texts) for texts in each((0, 1), (2, 3))),
        *((sees, slice(1, 2)) for sees in (both_ways, one_ahead)),
    ],
}


@pytest.mark.parametrize(
    ("rows", "sees", "texts"), [(rows, *one) for rows, several in SECOND.items() for one in several]
)
def test_padding_at_the_end_of_a_second_part_is_no_empty_place(rows, sees, texts):
    model, real = Goes(), GOES_ON[texts]
    model.sees, x = sees, torch.randn(len(real), real.shape[1], 8)
    with heedful.record(model) as recording:
        model(x[:, 4:], x[:, :4], attention_mask=real)
    assert recording.missed == {}
    for (call,), query, key, told in zip(recording.sequences, *model.heads(x), real, strict=True):
        scores = (query[:, 4:].double() @ key.double().mT) / 2
        if sees:
            scores = scores.masked_fill(~sees(told[None]), -torch.inf)
            scores = scores[:, told[4:] if rows == "own" else slice(None)][..., told]
        truth = scores.softmax(-1).float()
        torch.testing.assert_close(call.weights(), truth, atol=2e-6, rtol=1e-5)


class Remembers(nn.Module):
    """Hidden states go into a buffer that is an input, and are projected there."""

    def __init__(self):
        super().__init__()
        self.attend = Layer("attend").attend

    def forward(self, x, buffer, allowed):
        states = buffer.clone()
        states[:, 4 : 4 + x.shape[1]] = x
        return self.attend(x, states, allowed)


def test_an_input_that_is_written_into_is_no_other_text():
    x, buffer = torch.randn(1, 3, H * D), torch.randn(1, 9, H * D)
    allowed = torch.ones(3, 9).tril(4).bool()
    [call] = recorded(Remembers(), x, buffer, allowed)
    assert (call.kind, call.shape[-1]) == ("causal", 7)  # the rest of the buffer is empty


def test_looking_back_in_another_text_is_not_causal():
    x, y, model = torch.randn(1, 5, H * D), torch.randn(1, 11, H * D), Layer("attend")
    [call] = recorded(model, x, y, torch.ones(5, 11).tril().bool())
    assert (call.kind, call.shape[1:]) == ("cross", (5, 11))


EYE = torch.eye(11).bool()
CHANGED = {
    "causal": torch.ones(11, 11).tril().bool(),
    "window": torch.ones(11, 11).tril().triu(-3).bool(),
    "runs": torch.block_diag(torch.ones(4, 4), torch.ones(7, 7)).bool(),
    "any": (torch.arange(121) % 3 == 0).view(11, 11) | EYE,
    "of heads": (torch.arange(363) % 5 < 2).view(1, 3, 11, 11) | EYE,
    "of texts": (torch.arange(242) % 5 < 2).view(2, 1, 11, 11) | EYE,
    "of keys": padded(11, 6, "right")[:, None, None] & (torch.arange(11) > 0),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_mask_that_is_changed_later_is_what_it_was(kind):
    x, allowed = torch.randn(B, H, 11, D), CHANGED[kind].clone()
    layouts = layouts_of(Observed(x, x, x, x, 1.0, mask=allowed))
    allowed.logical_not_()
    before = CHANGED[kind].expand(B, H, 11, 11)
    for layout, table in zip(layouts, before, strict=True):
        assert torch.equal(layout.mask.crop((H, 11, 11)).expand(H, 11, 11), table)


class OfItsOwn(Mask):
    """A mask of a class that heedful does not know, other for each sequence."""

    def allowed(self, query, key, shape):
        return PATTERNS[:, :, query, key]


PATTERNS = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.6
PATTERNS[..., 0] = True


@pytest.mark.parametrize("kind", [Dense, Packed.of, lambda table: OfItsOwn(), lambda table: table])
def test_each_sequence_has_its_own_mask_whatever_its_class(kind):
    mask, x = kind(PATTERNS), torch.randn(4, 2, 6, 8)

    class Attends(nn.Module):
        def forward(self, x):
            return heedful.attention(x, x, x, mask=mask)

    with heedful.record(model := Attends()) as recording:
        model(x)
    for text, own, allowed in zip(recording.sequences, x, PATTERNS, strict=True):
        scores = (own @ own.mT * 8**-0.5).masked_fill(~allowed, -torch.inf)
        torch.testing.assert_close(text[0].weights(), scores.softmax(-1), atol=2e-6, rtol=0)
