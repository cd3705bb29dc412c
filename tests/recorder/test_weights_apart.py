"""What the model's own weights tell: rows of NaN, and what float16 has no room for on the way."""

from types import SimpleNamespace

import pytest
import torch

from heedful.ops.causes import Causes
from heedful.ops.cells import weights
from heedful.ops.masks import Dense
from heedful.recorder.doors import room_in_float16, weights_apart
from heedful.recorder.observed import Observed

H, G, N, M, D = 4, 2, 5, 7, 3
INF, NAN = torch.inf, torch.nan


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("scale", [0.5, -0.5])
@pytest.mark.parametrize("is_boolean", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_call_shows_numbers_where_its_own_map_has_them(seed, is_boolean, scale, softcap):
    torch.manual_seed(seed)
    query, key = torch.rand(1, H, N, D), torch.rand(1, G, M, D)
    key[0, seed % G, seed % M] = [INF, -INF, NAN][seed % 3]
    query[0, seed % H, 1] *= [1, NAN, -INF, -1][seed % 4]
    sees = torch.rand(1, 1, N, M) < 0.5
    bias = torch.randn(1, H, N, M).masked_fill(torch.rand(1, H, N, M) < 0.2, -INF)
    added = torch.zeros(1, 1, N, M).masked_fill(~sees, -INF)
    mask = sees if is_boolean else bias + added
    seen = Observed(query, key, None, None, scale, mask=mask, softcap=softcap)
    if is_boolean:
        seen.bias = bias
    allowed = Dense(sees[0, 0]) if is_boolean else None
    whole = seen.bias if is_boolean else mask
    shown = weights(Causes(query[0], key[0], scale, allowed, whole[0], softcap))
    has_numbers = (shown > 0).any(dim=-1) & ~shown.isnan().any(dim=-1)
    for head in range(H):
        for row in range(N):
            given = torch.zeros(1, H, N, M)
            given[0, head, row] = NAN
            found = weights_apart.shows_numbers_for_nan(given, seen)
            assert found == bool(has_numbers[head, row]), (head, row)


def change(kind, value, dtype=torch.float16):
    return SimpleNamespace(kind=kind, value=value, dtype=dtype)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], 1),
        ([change("scale", 1e3)], 1),  # it is as large in the end
        ([change("scale", 1e3), change("scale", 1e-3)], 1e3),
        ([change("scale", -1e3), change("divide", 1e3)], 1e3),
        ([change("scale", 1e3), change("add", -1e4), change("scale", 1e-3)], 1e3),
        ([change("scale", 1e3, torch.float32), change("scale", 1e-3)], 1),
        ([change("divide", torch.tensor([1e-3, 10.0])), change("scale", 0.1)], 1e3),
        ([change("scale", torch.tensor([0.5, -8.0]))], 8),  # it may have become smaller
    ],
)
def test_by_how_much_scores_were_larger_on_the_way_in_float16(changes, expected):
    assert room_in_float16._highest_factor(changes) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("queries", "keys"), [(0, M), (N, 0)])
def test_no_scores_have_room(queries, keys):
    query, key = (torch.rand(1, H, n, D).half() for n in (queries, keys))
    assert not room_in_float16.may_lack(query, key, [])
