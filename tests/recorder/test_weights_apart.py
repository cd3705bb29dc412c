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
from heedful.recorder.sequences.mask_structure import Masks

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


def is_outgrown(size, kind, changes):
    return room_in_types.is_outgrown(size, kind, changes, room_in_types.factors_of(changes))


def change(kind, value, dtype=torch.float16):
    return SimpleNamespace(kind=kind, value=value, dtype=dtype)


@pytest.mark.parametrize(
    ("changes", "limit"),  # up to which size nothing is outgrown
    [
        ([], 65504),
        ([change("scale", 1e3)], 65504),  # it is as large in the end
        ([change("scale", 0.1)], 65504),
        ([change("scale", 1e3), change("scale", 1e-3)], 65.504),
        ([change("scale", -1e3), change("divide", 1e3)], 65.504),
        ([change("scale", 1e3), change("add", -1e4), change("scale", 1e-3)], 55.504),
        ([change("scale", 1e2), change("add", -6e4), change("scale", 1e-3)], 55.04),
        ([change("add", -65504.0), change("scale", 0.5)], 65504),  # what it hides stays hidden
        ([change("scale", 1e3, torch.float32), change("scale", 1e-3)], 65504),
        ([change("scale", 1e3, torch.float32), change("cast", None), change("scale", 0.1)], 65.504),
        ([change("divide", torch.tensor([1e-3, 10.0])), change("scale", 0.1)], 65.504),
        ([change("scale", torch.tensor([1e3, NAN, INF])), change("divide", 2)], 65.504),
        ([change("scale", torch.tensor([2.0, -8.0])), change("divide", 0.5)], 65504),
        ([change("scale", 1e3), change("softcap", None), change("divide", 0.1)], 65504),
        ([change("scale", 1e3), change("softcap", None), change("scale", 0.1)], 65504),
        ([change("softcap", None), change("scale", 1e3), change("scale", 0.1)], 65504),
        ([change("scale", 1e3), change("divide", 0), change("scale", 0.1)], 65.504),
        ([change("scale", torch.tensor([True, False])), change("scale", 0.1)], 65504),
    ],
)
def test_scores_that_outgrow_float16_and_shrink_again(changes, limit):
    for size in (limit * 0.99, limit * 1.01):
        assert is_outgrown(size, torch.float16, changes) == (size > limit)


@pytest.mark.parametrize(("queries", "keys"), [(0, M), (N, 0)])
def test_no_scores_have_room(queries, keys):
    query, key = (torch.rand(1, H, n, D).half() for n in (queries, keys))
    assert not room_in_types.may_lack(query, key, [change("scale", 0.1)])


@pytest.mark.parametrize(("kind", "most"), [(torch.float32, 3.4e38), (torch.bfloat16, 3.38e38)])
@pytest.mark.parametrize(
    ("scale", "size", "may"),
    [
        (1.0, 1e5, False),
        (1e-28, 1e5, False),  # what was infinite is still 1e10, and hides
        (1e-29, 1e5, True),
        (1e-29, 0.9, False),  # nothing was infinite
        (-1e-29, 1.1, True),
        (torch.tensor([1.0, 1e-29]), 1.1, True),
        (torch.tensor([1.0, 0.0]), 1.1, False),  # what is infinite is no number times 0
    ],
)
def test_scores_of_other_types_that_outgrow_them_and_shrink_again(kind, most, scale, size, may):
    query, key = (torch.zeros(1, H, n, D, dtype=kind) for n in (N, M))
    query[0, 1, 2, 0], key[0, 1, 3, 0], key[0, 1, 4] = most / 1e15, size * 1e15, NAN
    changes = [change("scale", scale, kind)]
    assert room_in_types.may_lack(query, key, changes) == may


@pytest.mark.parametrize(
    ("changes", "has"),
    [
        ([change("scale", 1e-4), change("scale", 3e4)], False),
        ([change("scale", 1e-4), change("scale", 4e4)], True),
        ([change("scale", 1e-4), change("divide", 2.5e-5)], True),
        ([change("scale", 200.0), change("cast", None), change("scale", 200.0)], True),
        ([change("scale", 4e4)], True),  # the product itself is rounded
        ([change("add", 4e4), change("divide", torch.tensor([0.0, 1.0, NAN]))], False),
        ([change("scale", 4e4, torch.float32), change("scale", 1e-4)], False),
    ],
)
def test_scores_that_are_too_small_for_float16_before_they_grow_again(changes, has):
    query, key = (torch.rand(1, H, n, D).half() for n in (N, M))
    assert room_in_types.may_lack(query, key, changes) == has
    wide = [change(one.kind, one.value, torch.float32) for one in changes]
    assert not room_in_types.may_lack(query.float(), key.float(), wide)


@pytest.mark.parametrize(
    ("size", "changes", "may"),
    [
        (1.0, [change("scale", 1e5)], False),  # the product is one of float32
        (1.0, [change("cast", None), change("scale", 1e5)], True),
        (1.0, [change("scale", 1e5, torch.float32), change("cast", None)], False),
        (1e5, [change("scale", 0.1)], False),
        (1e5, [change("cast", None), change("scale", 0.1)], True),
    ],
)
def test_scores_that_become_those_of_another_type(size, changes, may):
    query, key = torch.zeros(1, H, N, D), torch.zeros(1, H, M, D)
    query[0, 1, 2, 0], key[0, 1, 3, 0] = 1.0, size
    assert room_in_types.may_lack(query, key, changes) == may
