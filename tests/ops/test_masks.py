import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Packed, Padding, Window


@st.composite
def cases(draw):
    """Draw a mask, the shape of the scores, and the same mask as a NumPy table from loops."""
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    N, M = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    shape = (batch, heads, N, M)
    table = np.ones(shape, bool)
    parts = []
    for kind in draw(st.lists(st.sampled_from("cwpdbr"), min_size=1, max_size=4)):
        mask, allowed = _part(draw, kind, shape)
        parts.append(mask)
        for b, h, n, m in np.ndindex(shape):
            table[b, h, n, m] &= bool(allowed(b, h, n, m))
    combined = parts[0]
    for part in parts[1:]:
        combined = combined & part
    return combined, shape, table


def _part(draw, kind, shape):
    batch, _heads, N, M = shape
    offset = draw(st.none() | st.integers(-4, 6))
    shift = M - N if offset is None else offset
    if kind == "c":
        return Causal(offset), lambda b, h, n, m: m <= n + shift
    if kind == "w":
        size = draw(st.integers(1, 6))
        return Window(size, offset), lambda b, h, n, m: abs(n + shift - m) < size
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "p":
        keep = random.random((batch, M)) < 0.6
        return Padding(torch.from_numpy(keep)), lambda b, h, n, m: keep[b, m]
    if kind == "r":
        first, end = random.integers(-1, M + 2, (2, N))
        ranges = KeyRanges(torch.from_numpy(first), torch.from_numpy(end))
        return ranges, lambda b, h, n, m: first[n] <= m < end[n]
    dense = random.random((batch, 1, N, M)) < 0.6
    if kind == "b":
        packed = Packed.of(torch.from_numpy(dense))
        return packed, lambda b, h, n, m: dense[b, 0, n, m]
    return Dense(torch.from_numpy(dense)), lambda b, h, n, m: dense[b, 0, n, m]


@given(cases())
@settings(max_examples=100)
def test_combined_masks_equal_loops(case):
    mask, shape, table = case
    full = mask.crop(shape).expand(shape)
    np.testing.assert_array_equal(full.numpy(), table)


@given(cases(), st.data())
@settings(max_examples=100)
def test_a_crop_equals_a_crop_of_the_full_table(case, data):
    mask, shape, table = case
    N, M = shape[-2:]
    queries = data.draw(st.lists(st.integers(-N, N - 1), max_size=5))
    first = data.draw(st.integers(0, M))
    keys = slice(first, data.draw(st.integers(first, M)))
    crop = mask.crop(shape, queries, keys)
    expected = table[:, :, queries][..., keys] if queries else table[:, :, :0][..., keys]
    np.testing.assert_array_equal(crop.expand(expected.shape).numpy(), expected)


@given(cases(), st.data())
@settings(max_examples=100)
def test_nothing_is_allowed_outside_the_span(case, data):
    """Every pair in the common span is allowed."""
    mask, shape, table = case
    first = data.draw(st.integers(0, shape[-2] - 1))
    queries = range(first, data.draw(st.integers(first + 1, shape[-2])))
    span = mask.span(queries, shape)
    rows = table[:, :, queries.start : queries.stop]
    assert 0 <= span.start <= span.stop <= shape[-1]
    assert not rows[..., : span.start].any()
    assert not rows[..., span.stop :].any()
    common = mask.common_span(queries, shape)
    assert 0 <= common.start <= common.stop <= shape[-1]
    assert rows[..., common.start : common.stop].all()
    if mask.has_no_empty_row(shape):
        assert table.any(-1).all()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
@settings(max_examples=100)
def test_ranges_from_lengths_are_separate_documents(lengths, data):
    mask, total = KeyRanges.from_lengths(lengths), sum(lengths)
    document = [d for d, length in enumerate(lengths) for _ in range(length)]
    table = np.array([[a == b for b in document] for a in document], bool).reshape(total, total)
    np.testing.assert_array_equal(mask.crop((total, total)).numpy(), table)
    if not total:
        return
    assert mask.has_no_empty_row((total, total))
    first = data.draw(st.integers(0, total - 1))
    queries = range(first, data.draw(st.integers(first + 1, total)))
    rows = table[queries.start : queries.stop]  # both bounds are tight
    for span, keys in (
        (mask.span(queries, (total, total)), rows.any(0)),
        (mask.common_span(queries, (total, total)), rows.all(0)),
    ):
        assert list(span) == np.flatnonzero(keys).tolist()
    causal = (mask & Causal()).crop((total, total), queries)
    np.testing.assert_array_equal(causal.numpy(), rows & np.tri(total, dtype=bool)[queries])


def test_empty_ranges():
    """A range that ends before it starts, a range after the last key, and a normal range."""
    ranges = KeyRanges(torch.tensor([3, 9, 1]), torch.tensor([2, 11, 3]))
    shape = (3, 5)
    assert ranges.crop(shape).int().tolist() == [[0] * 5, [0] * 5, [0, 1, 1, 0, 0]]
    assert not ranges.has_no_empty_row(shape)
    assert [list(ranges.span(range(n, n + 1), shape)) for n in range(3)] == [[], [], [1, 2]]
    assert list(ranges.span(range(1), shape)) == list(ranges.common_span(range(3), shape)) == []
    assert KeyRanges(torch.tensor([0, 2]), torch.tensor([1, 5])).has_no_empty_row((2, 3))
    assert not KeyRanges(torch.tensor([0, 4]), torch.tensor([1, 5])).has_no_empty_row((2, 3))


def test_without_keys_every_row_is_empty():
    assert Causal(2).has_no_empty_row((3, 1))
    for mask in (Causal(2), KeyRanges.from_lengths([3])):
        assert not mask.has_no_empty_row((3, 0))
        assert list(mask.span(range(3), (3, 0))) == list(mask.common_span(range(3), (3, 0))) == []


def test_a_crop_of_a_million_by_a_million_costs_only_the_crop():
    tokens = 1_000_000
    mask = Causal() & Window(4096) & Padding(torch.ones(2, tokens, dtype=torch.bool))
    shape = (2, 12, tokens, tokens)
    crop = mask.crop(shape, slice(5000, 5100), slice(4900, 5200))
    assert crop.shape == (2, 1, 100, 300)
    assert crop[0, 0, 0, :101].all()
    assert not crop[0, 0, 0, 101:].any()


def test_padding_sides():
    right = Padding.from_lengths([1, 3], total=4).keep
    left = Padding.from_lengths([1, 3], total=4, side="left").keep
    assert right.tolist() == [[True, False, False, False], [True, True, True, False]]
    assert left.tolist() == [[False, False, False, True], [False, True, True, True]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dense(torch.zeros(3, 3)), "torch.bool"),
        (lambda: Padding(torch.ones(2, 3)), "torch.bool"),
        (lambda: Window(0), "at least 1"),
        (lambda: Padding.from_lengths([1], 2, side="top"), "left"),
        (lambda: Padding(torch.ones(5, dtype=torch.bool)).crop((2, 1, 3, 4)), r"\(keys,\)"),
        (lambda: Padding(torch.ones(2, 4, dtype=torch.bool)).crop((3, 4)), r"\(keys,\)"),
        (lambda: Dense(torch.ones(5, 4, dtype=torch.bool)).crop((2, 1, 3, 4)), "broadcasts"),
        (lambda: Padding(torch.ones(5, 7).bool()).crop((2, 1, 3, 7)), r"\(batch, keys\)"),
        (lambda: Padding(torch.ones(3, 7).bool()).crop((3, 2, 1, 3, 7)), r"\(batch, keys\)"),
        (lambda: Padding.from_lengths([9], total=4), "from 0 to 4"),
        (lambda: Padding([True]), "type list"),
        (lambda: Dense(torch.tensor(True)), "without axes"),
        (lambda: Dense(np.ones((3, 3))), "type float64.*additive"),
        (lambda: Causal(1.5), "whole number"),
        (lambda: Window(2.5), "whole number"),
        (lambda: KeyRanges(torch.zeros(3), torch.ones(3)), "torch.float32"),
        (lambda: KeyRanges(torch.zeros(3).long(), torch.ones(4).long()), "one number for each"),
        (lambda: KeyRanges(torch.zeros(1, 3).long(), torch.ones(1, 3).long()), r"\(1, 3\)"),
        (lambda: KeyRanges([0], [1]), "list"),
        (lambda: KeyRanges.from_lengths([2, 1]).crop((4, 3)), "ranges of 3 queries; expected 4"),
        (lambda: Causal().crop((3, 4), queries=[3]), "query index 3"),
        (lambda: Causal().crop((3, 4), keys=[-5]), "key index -5"),
    ],
)
def test_wrong_masks_raise_one_line(make, words, as_a_user):
    with pytest.raises(ArgumentError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_padding_of_several_batch_axes_and_of_none():
    keep = torch.tensor([[True, False, True], [True, True, False]])
    crop = Padding(keep.view(1, 2, 3)).crop((4, 2, 5, 6, 3))
    assert torch.equal(crop.expand(4, 2, 5, 6, 3)[3, 1, 4, 5], keep[1])
    assert torch.equal(Padding(keep).crop((2, 6, 3))[1, 5], keep[1])
    assert torch.equal(Padding(keep[0]).crop((6, 3))[5], keep[0])


def test_a_custom_mask(as_a_user):
    class Even(Mask):
        def allowed(self, query, key, shape):
            return (key % 2 == 0).expand(query.shape[0], -1)

    crop = (Even() & Causal()).crop((3, 3))
    assert crop.int().tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]


def test_ranges_are_on_the_device_of_the_lengths():
    lengths = torch.tensor([2, 3], device="meta")
    with pytest.raises(RuntimeError, match="meta tensor"):  # a meta tensor has no values
        KeyRanges.from_lengths(lengths)
    ranges = KeyRanges.from_lengths(torch.tensor([2, 3], dtype=torch.int32))
    assert ranges.end.tolist() == KeyRanges.from_lengths([2, 3]).end.tolist() == [2, 2, 5, 5, 5]
    assert ranges.end.dtype == torch.long


def test_masks_must_derive_from_mask_itself():
    """An inherited span could be wrong."""
    for parents in ((Causal,), (Combined,), (Window, Causal)):
        with pytest.raises(ArgumentError, match="derived from Mask itself"):
            type("Ahead", parents, {})
    within = Combined((Combined((Causal(), Window(2))), Dense(torch.ones(3, 3) > 0)))
    assert [type(part) for part in within.parts] == [Causal, Window, Dense]
    with pytest.raises(TypeError):
        Causal() & torch.ones(2, 2, dtype=torch.bool)
