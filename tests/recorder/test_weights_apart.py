"""What the model's own weights tell: rows of NaN, and what a type has no room for on the way."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from heedful.ops.causes import Causes
from heedful.ops.cells import weights
from heedful.ops.masks import Dense
from heedful.recorder.doors import room_in_types, weights_apart
from heedful.recorder.observed import Observed
from heedful.recorder.owners.mask_structure import Masks

H, G, N, M, D = 4, 2, 5, 7, 3
INF, NAN = torch.inf, torch.nan


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("scale", [0.5, -0.5])
@pytest.mark.parametrize("is_boolean", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_call_shows_numbers_where_its_own_map_has_them(seed, is_boolean, scale, softcap):
    torch.manual_seed(seed)
    query, key = torch.rand(1, H, N, D), torch.rand(1, G, M, D)
    if seed % 4:
        key[0, seed % G, seed % M] = [INF, -INF, NAN][seed % 3]
    query[0, seed % H, 1] *= [1, NAN, -INF, -1][seed % 4]
    query[0, (seed + 1) % H, 2] *= 3e38  # whose products with keys may have no room
    key[0, :, 3] *= 2.0
    sees = torch.rand(1, 1, N, M) < 0.5
    bias = torch.randn(1, H, N, M).masked_fill(torch.rand(1, H, N, M) < 0.2, -INF)
    added = torch.zeros(1, 1, N, M).masked_fill(~sees, -INF)
    mask = sees if is_boolean else bias + added
    seen = Observed(query, key, None, None, scale, mask=mask, softcap=softcap)
    if is_boolean:
        seen.bias = bias
    split = Masks().split(replace(seen))  # as it will be shown
    allowed = None if split.mask is None else Dense(split.mask.expand(1, H, N, M)[0])
    whole = None if split.bias is None else split.bias.expand(1, H, N, M)[0]
    shown = weights(Causes(query[0], key[0], scale, allowed, whole, softcap))
    has_numbers = (shown > 0).any(dim=-1) & ~shown.isnan().any(dim=-1)
    for head in range(H):
        for row in range(N):
            is_nan = torch.zeros(1, H, N, dtype=torch.bool)
            is_nan[0, head, row] = True
            found = weights_apart.shows_numbers_for_nan(is_nan, seen)
            assert found == bool(has_numbers[head, row]), (head, row)


def change(kind, value, dtype=torch.float16):
    return SimpleNamespace(kind=kind, value=value, dtype=dtype)


class Unread(torch.Tensor):
    """A table whose numbers must not be looked at."""

    def to(self, *kinds):
        raise AssertionError


TABLE = Unread()
HALF, FLOAT, BRAIN = torch.float16, torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("kind", "changes", "limit"),  # up to which size all scores have room
    [
        (HALF, [], 65504),
        (HALF, [change("scale", 1e3)], 65.504),
        (HALF, [change("scale", 0.1)], 65504),
        (HALF, [change("divide", -1e-3)], 65.504),
        (HALF, [change("scale", 1e3), change("add", -1e4), change("scale", 1e-3)], 55.504),
        (HALF, [change("scale", 1e2), change("add", -6e4), change("scale", 1e-3)], 55.04),
        (HALF, [change("add", -65504.0), change("scale", 0.5)], 65504),  # what it hides stays so
        (HALF, [change("add", 900.0)], 64604),
        (HALF, [change("add", 900.0), change("scale", 60.0), change("scale", 0.01)], 191.7),
        (HALF, [change("add", 3e4), change("scale", 2.0), change("scale", 0.01)], 2752),
        (FLOAT, [change("add", TABLE, FLOAT), change("divide", 8.0, FLOAT)], 1e9 - 8e3),
        (HALF, [change("scale", 1e3, FLOAT), change("scale", 1e-3)], 65504),
        (HALF, [change("scale", 1e3, FLOAT), change("cast", None), change("scale", 0.1)], 65.504),
        (HALF, [change("divide", torch.tensor([1e-3, 10.0])), change("scale", 0.1)], 65.504),
        (HALF, [change("scale", torch.tensor([1e3, NAN, INF])), change("divide", 2)], 65.504),
        (HALF, [change("scale", torch.tensor([2.0, -8.0]))], 8188),
        (HALF, [change("scale", torch.tensor([2, -8]))], 8188),
        (HALF, [change("scale", torch.tensor([True, False])), change("scale", 0.1)], 65504),
        (HALF, [change("scale", 1e3), change("softcap", None), change("scale", 6e4)], 65.504),
        (HALF, [change("scale", 0), change("divide", 0.0), change("divide", NAN)], 65504),
        (FLOAT, [], 1e9),
        (BRAIN, [change("scale", 1e3, BRAIN), change("scale", 1e-6, BRAIN)], 1e6),
        (FLOAT, [change("cast", None)], 65504),
        (torch.float64, [change("scale", 0.5, torch.float64)], 1e9),
        (FLOAT, [change("add", 9e8, FLOAT), change("scale", 1e-6, FLOAT)], 1e8),
    ],
)
def test_scores_that_have_room_in_each_type(kind, changes, limit):
    factors = room_in_types.factors_of(changes)
    for size in (limit * 0.99, limit * 1.01):
        assert room_in_types.has_room(size, kind, changes, factors) == (size < limit)


@pytest.mark.parametrize(
    ("kind", "of_query", "of_key", "lacks"),  # the numbers of all features
    [(HALF, 200.0, 200.0, True), (HALF, 100.0, 100.0, False),
     (FLOAT, 0.9e15, 1e-20, True), (FLOAT, 0.4e15, 1e-20, False)],
)  # fmt: skip
def test_all_features_together_make_a_score_and_a_length(kind, of_query, of_key, lacks):
    query, key = (
        torch.full((1, 1, n, 4), one, dtype=kind) for n, one in ((2, of_query), (3, of_key))
    )
    assert room_in_types.may_lack(query, key, []) == lacks
    assert room_in_types.may_lack(-query, key, []) == lacks


@pytest.mark.parametrize("kind", [torch.float64, FLOAT, BRAIN, HALF])
@pytest.mark.parametrize("other", [1.0, NAN, INF])
def test_the_longest_query_and_key_of_a_head_tell_of_its_scores(other, kind):
    limit = 65504 if kind == HALF else 1e9
    for near in (0.9, 1.1):
        query, key = torch.zeros(1, H, N, D, dtype=kind), torch.zeros(1, H, M, D, dtype=kind)
        query[0, 1, 2, 0] = key[0, 1, 3, 2] = (limit * near) ** 0.5
        query[0, 2, 3] = key[0, 0, 4] = limit**0.5  # long ones of two heads, which do not meet
        query[0, 0, 0, 0] = other
        assert room_in_types.may_lack(query, key, []) == (near > 1)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", [torch.float64, FLOAT, BRAIN])
def test_long_vectors_have_room_beside_short_ones(kind, which):
    for size in (1e14, 1e16, torch.finfo(kind).max / 2):
        ends = [torch.zeros(1, H, n, D, dtype=kind) for n in (N, M)]
        ends[which][0, 1, 2, 1] = size
        assert room_in_types.may_lack(*ends, []) == (size > 1e15)


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ([change("scale", 1e11, FLOAT)], False),
        ([change("scale", 1e13, FLOAT)], True),
        ([change("divide", -1e-13, FLOAT)], True),
        ([change("divide", torch.tensor([1.0, 1e-13]), FLOAT)], True),
        ([change("scale", 1e-30, FLOAT), change("divide", 1e30, FLOAT)], False),
        ([change("divide", torch.tensor([1.0, INF, 0.0]), FLOAT)], False),
        ([change("scale", 1e7, FLOAT), change("scale", 1e7, FLOAT)], True),
        ([change("scale", 1e-7, FLOAT), change("scale", 1e7, FLOAT)] * 2, False),
        ([change("scale", 1e-20, FLOAT), change("scale", 1e20, FLOAT)], True),
        ([change("scale", 1e20, FLOAT), change("scale", 1e-20, FLOAT)], True),
        ([change("scale", one, FLOAT) for one in (1e-20, 1e20, 1e-20)], True),
        ([change("divide", 1e200, FLOAT), change("add", 1.0, FLOAT)] * 3, False),
    ],
)
def test_factors_may_be_too_far_from_one(changes, may):
    query, key = (1e-20 * torch.rand(1, H, n, D) for n in (N, M))
    assert room_in_types.may_lack(query, key, changes) == may
    query[0, 1, 2] = NAN  # so that the quick bounds say nothing
    assert room_in_types.may_lack(query, key, changes) == may


@pytest.mark.parametrize(
    ("changes", "has"),
    [
        ([change("scale", 1e-4), change("scale", 1.6e5)], False),
        ([change("scale", 1e-4), change("scale", 1.7e5)], True),
        ([change("scale", 1e-4), change("divide", 5.5e-6)], True),
        ([change("scale", 500.0), change("cast", None), change("scale", 500.0)], True),
        ([change("scale", 2e5)], True),  # the product itself is rounded
        ([change("add", 4e4), change("divide", torch.tensor([0.0, 1.0, NAN]))], False),
        ([change("scale", 1e5, FLOAT), change("scale", 1e-4)], False),
    ],
)
def test_scores_that_are_too_small_for_float16_before_they_grow_again(changes, has):
    query, key = (1e-3 * torch.rand(1, H, n, D).half() for n in (N, M))
    assert room_in_types.may_lack(query, key, changes) == has
    wide = [change(one.kind, one.value, FLOAT) for one in changes]
    assert not room_in_types.may_lack(query.float(), key.float(), wide)


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ([change("scale", 2e5)], False),  # the product is one of float32
        ([change("cast", None), change("scale", 2e5)], True),
        ([change("scale", 2e5, FLOAT), change("cast", None)], False),
    ],
)
def test_small_scores_that_become_those_of_float16(changes, may):
    query, key = (1e-3 * torch.rand(1, H, n, D) for n in (N, M))
    assert room_in_types.may_lack(query, key, changes) == may


@pytest.mark.parametrize("number", [1.0, NAN, 1e4])
@pytest.mark.parametrize(("queries", "keys"), [(0, M), (N, 0)])
def test_no_scores_have_room(queries, keys, number):
    query, key = (number * torch.rand(1, H, n, D).half() for n in (queries, keys))
    assert not room_in_types.may_lack(query, key, [change("scale", 0.1)])
