"""Padding, token ids and the number of texts, found from the inputs of a pass."""

import math

import pytest
import torch
from shown_maps import recorded
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.module_stack import Frame

B, H, N, D = 2, 3, 7, 4
IDS = torch.randint(3, 20, (B, N), generator=torch.Generator().manual_seed(2))
KEEP = {
    "right": torch.tensor([[True] * N, [True] * 4 + [False] * 3]),
    "left": torch.tensor([[False] * 2 + [True] * 5, [True] * N]),
}


def split(x):
    """Different queries, keys and values of H heads, (B, H, N, D)."""
    heads = x.unflatten(-1, (H, D)).transpose(-3, -2)
    return heads.sin(), heads.cos(), heads


def expected(x, allowed):
    """The maps (…, N, N) of `split(x)` by definition."""
    query, key, _ = split(x)
    scores = torch.einsum("...nd,...md->...nm", query, key) / D**0.5
    raised = scores.double().exp() * allowed
    return (raised / raised.sum(-1, keepdim=True)).float()


class Words(nn.Module):
    """Ids and a padding mask; the heads have an axis, or share one with the texts.

    The recorder does not know this class, so it never takes its ids for those of the keys.
    """

    def __init__(self, flat=False, heeds=True):
        super().__init__()
        self.embed = nn.Embedding(20, H * D)
        self.flat, self.heeds = flat, heeds

    def forward(self, ids, attention_mask=None):
        return self.attend(self.embed(ids), attention_mask)

    def attend(self, x, attention_mask):
        parts, mask = split(x), None
        if attention_mask is not None and self.heeds:
            is_table = attention_mask.shape == (N, N)
            mask = attention_mask if is_table else attention_mask[:, None, None]
        if self.flat:
            parts = [part.flatten(0, 1) for part in parts]
            mask = None if mask is None else mask.expand(len(x), H, N, N).flatten(0, 1)
        return scaled_dot_product_attention(*parts, attn_mask=mask)


def same(recording, maps, keep, layout="usual"):
    """Check the map of each sequence without padding."""
    assert len(recording.sequences) == len(maps)
    for [call], map_, real in zip(recording.sequences, maps, keep, strict=True):
        assert call.check.passed
        assert call.ids is None
        assert (call.proof, call.layout) == ("proved", layout)
        whole = map_[..., real, :][..., real]
        torch.testing.assert_close(call.weights(), whole, atol=2e-6, rtol=0)


TABLES = {
    "causal": torch.ones(N, N).tril().bool(),
    "documents": torch.block_diag(torch.ones(3, 3), torch.ones(N - 3, N - 3)).bool(),
    "random": (torch.rand(N, N) < 0.5) | torch.eye(N).bool(),
}


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("texts", [B, N])  # N texts: then the table has the shape of a padding mask
def test_a_mask_of_queries_and_keys_is_not_padding(texts, table, added):
    ids, allowed = IDS[:1].expand(texts, N).clone(), TABLES[table]
    inputs = torch.zeros(N, N).masked_fill(~allowed, -math.inf) if added else allowed
    recording = recorded(model := Words(), ids, inputs)
    same(recording, expected(model.embed(ids), allowed), torch.ones(texts, N, dtype=torch.bool))


@pytest.mark.parametrize("side", KEEP)
@pytest.mark.parametrize("flat", [False, True])
def test_padding_that_the_attention_ignores_is_not_removed(flat, side):
    recording = recorded(model := Words(flat, heeds=False), IDS, KEEP[side])
    same(recording, expected(model.embed(IDS), torch.ones(N, N)), torch.ones_like(KEEP[side]))


@pytest.mark.parametrize("side", KEEP)
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_padding_by_position_and_by_name_and_heads_of_all_texts_in_one_axis(named, flat, side):
    keep, model = KEEP[side], Words(flat)
    if named:
        recording = recorded(model, IDS, named={"attention_mask": keep})
    else:
        recording = recorded(model, IDS, keep)
    same(recording, expected(model.embed(IDS), keep[:, None, None]), keep)


class Vectors(Words):
    """The same for vectors: positions first if `first`; one text if there is one axis."""

    def __init__(self, first=False):
        super().__init__()
        self.first = first

    def forward(self, x):
        if not self.first:
            return scaled_dot_product_attention(*split(x))
        # (N, texts · heads, width) is transposed, as in nn.MultiheadAttention
        parts = (part.flatten(0, 1) for part in split(x.transpose(0, 1)))
        return scaled_dot_product_attention(*parts)


def test_positions_that_come_first():
    x = torch.randn(N, B, H * D)
    recording = recorded(Vectors(first=True), x)
    everything = torch.ones(B, N, dtype=torch.bool)
    same(recording, expected(x.transpose(0, 1), torch.ones(N, N)), everything)


@pytest.mark.parametrize("length", [2, H, N])
def test_one_text_without_an_axis_for_it(length):
    x = torch.randn(length, H * D)
    recording = recorded(Vectors(), x)
    same(recording, [expected(x, torch.ones(()))], torch.ones(1, length).bool())


def test_one_text_of_ids_without_an_axis_for_it():
    recording = recorded(model := Words(), IDS[0])
    same(recording, [expected(model.embed(IDS[0]), torch.ones(()))], [KEEP["right"][0]])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_multi_head_attention_to_itself_with_keys_of_its_own(options, batch_first, need_weights):
    layer = nn.MultiheadAttention(12, 3, batch_first=batch_first, **options).eval()
    x = torch.randn(B, N, 12)
    x, padding = x if batch_first else x.transpose(0, 1), ~KEEP["left"]
    _, maps = layer(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    with heedful.record(layer) as recording:
        layer(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    for b, [call] in enumerate(recording.sequences):
        real = ~padding[b]
        appended = torch.ones(maps.shape[-1] - N, dtype=torch.bool)  # after the keys of the text
        whole = maps[b][:, real][..., torch.cat([real, appended])]
        torch.testing.assert_close(call.weights(), whole, atol=2e-6, rtol=0)
        assert call.check.passed


class TwoWays(nn.Module):
    """Two layers by hand with equally many scores; only the first masks the padding."""

    def __init__(self, heeding):
        super().__init__()
        self.embed, self.heeding = nn.Embedding(20, H * D), heeding

    def forward(self, ids, attention_mask):
        query, key, value = split(self.embed(ids))
        outputs = []
        for heeds in self.heeding:
            scores = query @ key.mT / D**0.5
            if heeds:
                scores = scores.masked_fill(~attention_mask[:, None, None], -math.inf)
            outputs.append(scores.softmax(-1) @ value)
        return outputs


@pytest.mark.parametrize("heeding", [(True, False), (False, True), (False, True, False)])
@pytest.mark.parametrize("side", KEEP)
def test_padding_is_removed_only_from_layers_that_mask_it(side, heeding):
    keep = KEEP[side]
    recording = recorded(model := TwoWays(heeding), IDS, keep)
    x = model.embed(IDS)
    for b, sequence in enumerate(recording.sequences):
        for call, heeds in zip(sequence, heeding, strict=True):
            real = keep[b] if heeds else torch.ones(N, dtype=torch.bool)
            whole = expected(x[b], real)[:, real][..., real]
            torch.testing.assert_close(call.weights(), whole, atol=2e-6, rtol=0)
            assert (call.ids, call.proof) == (None, "proved")


class TwoViews(Words):
    """Each text twice, one after the other, like the windows of an image."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(H * D, H * D)

    def forward(self, ids, attention_mask):
        return self.attend(self.views(ids), attention_mask.repeat_interleave(2, 0))

    def views(self, ids):
        x = self.embed(ids)
        return self.project(torch.stack([x, x.flip(-1)], dim=1).flatten(0, 1))


@pytest.mark.parametrize("side", KEEP)
def test_parts_of_a_text_have_its_padding(side):
    keep = KEEP[side]
    recording = recorded(model := TwoViews(), IDS, keep)
    maps = expected(model.views(IDS), keep.repeat_interleave(2, 0)[:, None, None])
    for b, [call] in enumerate(recording.sequences):
        assert (call.proof, call.layout, len(call.parts)) == ("proved", "usual", 2)
        for part, map_ in zip(call.parts, maps[2 * b :], strict=False):
            whole = map_[:, keep[b]][..., keep[b]]
            torch.testing.assert_close(part.weights(), whole, atol=2e-6, rtol=0)


def test_without_ids_texts_label_every_call_of_their_length():
    recording = recorded(Vectors(), torch.randn(B, N, H * D))
    recording.tokens = [list("abcdefg"), list("hijklmn")]
    first, second = recording.sequences
    assert (first[0].tokens, second[0].tokens) == (list("abcdefg"), list("hijklmn"))


class Placed(nn.Module):
    """Vectors, and positions for all texts, or of time, height and width, as in Qwen2-VL."""

    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(20, H * D)

    def forward(self, position_ids, x):
        x = x + self.place(position_ids[:1] if position_ids.ndim == 2 else position_ids.sum(0))
        query, key, value = split(x)
        return (query @ key.mT).softmax(-1) @ value


@pytest.mark.parametrize("length", [3, 6])
@pytest.mark.parametrize(("texts", "of_each"), [(1, True), (2, False), (2, True)])
def test_position_ids_do_not_determine_the_number_of_texts(texts, of_each, length):
    shape = (3, texts, length) if of_each else (1, length)
    model, x = Placed(), torch.randn(texts, length, H * D)
    recording = recorded(model, torch.randint(5, shape), x)
    assert len(recording.sequences) == texts
    assert (recording[0].proof, recording[0].layout) == ("proved", "usual")


def integers(*shape):
    return torch.ones(shape, dtype=torch.long)


@pytest.mark.parametrize(
    ("inputs", "queries", "texts"),
    [
        ({"input_ids": integers(1, 1), "position_ids": integers(3, 1, 1)}, 0, (1, None)),
        ({"input_ids": integers(3, N)}, N, (3, None)),
        ({"input_ids": integers(N, 3)}, N, (N, 3)),  # its positions may come first
        ({"input_ids": integers(N, N)}, N, (N, None)),
        ({"x": torch.ones(N, 3, 12)}, N, (3, N)),
    ],
)
def test_the_number_of_texts_by_the_shapes_of_inputs(inputs, queries, texts):
    assert Inputs(Frame("", nn.Module(), (), inputs)).texts(queries) == texts
