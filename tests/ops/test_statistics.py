"""Statistics in blocks, against their definitions in NumPy on the full map."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import (
    OFFSETS,
    all_scores,
    allowed_pairs,
    full_map,
    log_sum_exps,
    random_inputs,
    rounding,
)

from heedful.ops import statistics
from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Causal, Window
from heedful.ops.segments import SegmentShares
from heedful.ops.statistics import (
    Diagonal,
    Distance,
    Entropy,
    LargestScore,
    LargestWeight,
    LearnedSink,
    LogSumExp,
    Matching,
    Nearby,
    NormalizedEntropy,
    Received,
    Sink,
    Undefined,
    gather,
)
from heedful.ops.top_k import TopKeys, largest
from heedful.ops.weight_blocks import blocks


def by_definition(inputs, map_, is_nonempty):
    H, N, M = map_.shape
    start = inputs.mask.offset if N > M and inputs.mask in OFFSETS else M - N
    position = np.arange(N)[:, None] + start
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(map_ > 0, np.log(map_), 0.0)

    def rows(values):
        return np.where(is_nonempty, values, np.nan)

    allowed = np.broadcast_to(allowed_pairs(inputs), (H, N, M))

    def weight_on(keys_of):
        """Return the weight of each query on certain keys; NaN if it has no choice."""
        values = np.full((H, N), np.nan)
        for h, n in np.ndindex(H, N):
            keys = [m for m in keys_of(n) if allowed[h, n, m]]
            if 0 < len(keys) < allowed[h, n].sum():
                values[h, n] = map_[h, n, keys].sum()
        return values

    def diagonal(offset):
        return weight_on(lambda n: [n + start - offset] if 0 <= n + start - offset < M else [])

    def sink(first=0, crosses=False):
        return weight_on(lambda n: [first] if crosses or n + start > first else [])

    def matching(shift, unknown=None):
        def keys_of(n):
            p = n + start
            is_known = p < M and IDS[p] != unknown
            return [m for m in range(shift, p) if IDS[m - shift] == IDS[p]] if is_known else []

        return weight_on(keys_of)

    entropy, count = -(map_ * log).sum(-1), allowed_pairs(inputs).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        evenness = np.where(count > 1, entropy / np.log(count), np.nan)
    received_by = allowed_pairs(inputs).sum(1)
    last = M - 1
    return {
        "entropy": rows(entropy),
        "evenness": rows(evenness),
        "nearby": weight_on(lambda n: [m for m in range(M) if abs(n + start - m) <= 2]),
        **{f"match {shift}, {unknown}": matching(shift, unknown) for shift, unknown in MATCHES},
        "largest": rows(map_.max(-1)),
        "largest score": rows(all_scores(inputs)[..., :M].max(-1)),
        "distance": rows((map_ * np.abs(position - np.arange(M))).sum(-1)),
        "self": diagonal(0),
        "previous": diagonal(1),
        "next": diagonal(-1),
        "sink": sink(),
        "sink, padded": sink(last // 2),
        "sink, crossing": sink(crosses=True),
        "unplaced": np.full((H, N), np.nan),
        "learned_sink": rows(1 - map_.sum(-1)),
        "log_sum_exp": log_sum_exps(inputs),
        "received": map_.sum(1),
        "received, mean": map_.sum(1) / np.where(received_by > 0, received_by, np.nan),
    }


def new_statistics(inputs):
    M = inputs.shape[-1]
    return {
        "entropy": Entropy(),
        "evenness": NormalizedEntropy(),
        "nearby": Nearby(2),
        **{f"match {s}, {unknown}": Matching(IDS[:M], s, unknown) for s, unknown in MATCHES},
        "largest": LargestWeight(),
        "largest score": LargestScore(),
        "distance": Distance(),
        "self": Diagonal(0),
        "previous": Diagonal(1),
        "next": Diagonal(-1),
        "sink": Sink(),
        "sink, padded": Sink((M - 1) // 2),
        "sink, crossing": Sink(crosses=True),
        "unplaced": Undefined(),
        "learned_sink": LearnedSink(),
        "log_sum_exp": LogSumExp(),
        "received": Received(),
        "received, mean": Received(mean=True),
    }


MATCHES = [(0, None), (0, 5), (1, None), (1, 5)]  # shift, unknown
IDS = torch.tensor([5, 6, 5, 5, 7, 6, 8, 5, 6, 6, 7, 5, 6])
PARTS = torch.tensor([[1], [2], [3]])
SIZES = {"entries": st.integers(1, 200), "queries": st.integers(1, 9)}


@settings(max_examples=50)
@given(case=random_inputs(), sizes=st.fixed_dictionaries(SIZES))
def test_statistics_equal_their_definitions(case, sizes):
    inputs, (map_, is_nonempty) = case
    statistics = new_statistics(inputs)
    results = dict(zip(statistics, gather(inputs, *statistics.values(), **sizes), strict=True))
    for name, value in by_definition(inputs, map_, is_nonempty).items():
        np.testing.assert_allclose(results[name], value, atol=4e-6, rtol=1e-6, err_msg=name)


@settings(max_examples=20)
@given(case=random_inputs(), sizes=st.fixed_dictionaries(SIZES), seed=st.integers(0, 99))
def test_blocks_in_any_order(case, sizes, seed):
    """Statistics of blocks in any order equal those of a single pass."""
    inputs, _ = case

    def all_statistics():
        _, N, M = inputs.shape
        shares = SegmentShares(torch.arange(N) % PARTS == 0, torch.arange(M) // 4 == PARTS)
        return [*new_statistics(inputs).values(), shares, TopKeys(3)]

    *expected, top = gather(inputs, *all_statistics())
    parts = [
        block._replace(weights=block.weights.clone(), scores=block.scores.clone())
        for block in blocks(inputs, **sizes)
    ]
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(seed)).tolist()
    statistics = all_statistics()
    for index in order:
        for statistic in statistics:
            statistic.update(parts[index])
    *results, last_top = [statistic.result() for statistic in statistics]
    torch.testing.assert_close(results, expected, atol=4e-6, rtol=1e-6, equal_nan=True)
    torch.testing.assert_close(
        last_top.weights, top.weights, atol=rounding(inputs), rtol=1e-6, equal_nan=True
    )
    if inputs.query.dtype == torch.float64:  # in other types, rounding may break ties
        assert torch.equal(last_top.keys, top.keys)


@settings(max_examples=25)
@given(case=random_inputs(), k=st.integers(1, 15), sizes=st.fixed_dictionaries(SIZES))
def test_top_keys(case, k, sizes):
    inputs, (map_, is_nonempty) = case
    [top] = gather(inputs, TopKeys(k), **sizes)
    ordered = -np.sort(-map_, axis=-1)[..., :k]
    ordered = np.pad(ordered, ((0, 0), (0, 0), (0, k - ordered.shape[-1])))
    expected = np.where(is_nonempty[..., None], ordered, np.nan)
    np.testing.assert_allclose(top.weights, expected, atol=rounding(inputs))
    for index in np.ndindex(*map_.shape[:2]):
        keys = [m for m in top.keys[index].tolist() if m >= 0]
        assert len(set(keys)) == len(keys)
        weights_ = top.weights[index][: len(keys)]
        np.testing.assert_allclose(map_[index][keys], weights_, atol=rounding(inputs))


@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5),
    k=st.integers(1, 6),
)
def test_equal_scores_are_ordered_by_index(rows, k):
    scores = torch.tensor(rows, dtype=torch.float32)[None]
    values, indices = largest(scores, k)
    expected = np.argsort(-np.array(rows), axis=-1, kind="stable")[:, :k]
    assert indices[0].tolist() == expected.tolist()
    assert torch.equal(values, scores.gather(-1, indices))


def test_entropy_of_large_scores_is_exact():
    """Scores near 10,000 in steps of 1/8 are exact in float32, but their sums are not."""
    query, key = torch.ones(1, 3, 1), 10_000 + torch.arange(13.0).view(1, -1, 1) / 8
    inputs = AttentionInputs(query, key, 1.0, Causal())
    expected = by_definition(inputs, *full_map(inputs))["entropy"]
    np.testing.assert_allclose(gather(inputs, Entropy())[0], expected, atol=5e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shift", [0.0, -1e4, 1e6])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 13), (1, 7, 1), (3, 5, 11), (2, 1, 257), (4, 130, 3), (1, 3, 5000)]
)
def test_weighted_sums(shape, shift, dtype):
    """They use the gradient of batch norm, which other versions of torch could change.

    The subtrahend differs between rows, so that exchanged rows or channels are detected.
    """
    weights, scores = torch.rand(shape, dtype=dtype), torch.randn(shape, dtype=dtype) + shift
    subtrahend = shift + torch.linspace(-3, 5, shape[0] * shape[1], dtype=dtype).view(shape[:2])
    copies = [tensor.clone() for tensor in (weights, scores, subtrahend)]
    sums = statistics._weighted_sums(weights, scores, subtrahend)
    w, s, c = (tensor.numpy().astype(np.float64) for tensor in copies)
    products = w * (s - c[..., None])
    assert sums.dtype == dtype
    assert sums.shape == shape[:2]
    tolerance = (4 + shape[-1] ** 0.5) * torch.finfo(dtype).eps * np.abs(products).sum(-1).max()
    np.testing.assert_allclose(sums.numpy(), products.sum(-1), atol=tolerance, rtol=0)
    for tensor, copy in zip((weights, scores, subtrahend), copies, strict=True):
        assert torch.equal(tensor, copy)


@settings(max_examples=25)
@given(case=random_inputs(), sizes=st.fixed_dictionaries(SIZES))
def test_the_fields_of_a_block_equal_the_map(case, sizes):
    inputs, (map_, is_nonempty) = case
    tolerance = {"atol": 4 * rounding(inputs)}
    for block in blocks(inputs, **sizes):
        rows, nonempty = (part[block.heads, block.rows] for part in (map_, is_nonempty))
        cells = rows[..., block.columns]
        np.testing.assert_allclose(block.weights, cells, **tolerance)
        np.testing.assert_allclose(cells.sum(-1), rows.sum(-1), **tolerance)  # others: masked
        np.testing.assert_allclose(block.largest, rows.max(-1), **tolerance)
        empty = np.zeros_like(nonempty) if block.empty is None else block.empty.numpy()
        np.testing.assert_array_equal(empty, ~nonempty)
        assert (block.log_sum_exp.numpy()[empty] == -math.inf).all()
        shares = (block.scores.double() - block.log_sum_exp.double()[..., None]).exp().numpy()
        np.testing.assert_allclose(shares[nonempty], cells[nonempty], **tolerance)


def test_no_block_exceeds_its_limit():
    query = torch.randn(4, 500, 8)
    inputs = AttentionInputs(query, query, 1.0, Causal() & Window(30))
    sizes = [block.weights.numel() for block in blocks(inputs, entries=4000, queries=16)]
    assert max(sizes) <= 4000
    assert sum(sizes) < 4 * 500 * 60  # blocks outside the window are skipped


@pytest.mark.parametrize(
    ("heads", "fit", "threads", "sizes"),
    [
        (12, 3, 2, [2] * 6),  # with blocks of three, one thread would be idle
        (12, 3, 1, [3] * 4),
        (12, 5, 2, [4] * 3),
        (7, 7, 2, [7]),
        (5, 4, 2, [2, 2, 1]),
        (3, 1, 2, [1] * 3),
    ],
)
def test_threads_share_the_products_of_a_block(monkeypatch, heads, fit, threads, sizes):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    words = torch.randn(heads, 4, 6)
    result = blocks(AttentionInputs(words, words, 1.0), entries=fit * 4 * 4)
    assert [len(block.weights) for block in result] == sizes


def test_log_sum_exp_of_long_rows_is_exact():
    """torch's softmax rounds when it adds equal numbers, so its weights do not sum to 1."""
    query, key = torch.randn(2, 3, 4), torch.zeros(2, 70_000, 4)
    key[:, 0] = query[:, 0] / query[:, 0].norm(dim=-1, keepdim=True)
    inputs = AttentionInputs(query, key, 1.0)
    [exact] = gather(inputs, LogSumExp())
    np.testing.assert_allclose(exact, log_sum_exps(inputs), atol=3e-6, rtol=0)
