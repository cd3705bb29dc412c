"""Finds padding before a text, from pass to pass, where only the mask of queries and keys tells it.

A model of transformers that generates with a static cache is given such a mask, and none of tokens
any more. A key that nobody sees, not even the query that stands at it, is padding: windows, blocks
and documents all let a token see itself. Of keys whose queries came in passes before, a mask by
itself cannot tell padding from what a window has left behind: those passes have told it.

What no mask tells is left as it is. That is padding of a pass that was not recorded; padding in a
pass where no query sees anything; padding whose own queries look at the text, since they may as
well be queries of another text; and in cross-attention, keys that only some queries see.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.ops.masks import Mask
from heedful.ops.score_tables import ALL
from heedful.recorder.observed import Observed, Real

ENTRIES = 1 << 22  # how many entries of a mask are looked at in one go


class Before(NamedTuple):
    """What the passes of a module have told so far.

    done: the number of tokens so far, with padding.
    padding: how many of them are padding before each text, (B,).
    pass_index: the number of the last pass.
    """

    done: int
    padding: Tensor
    pass_index: int


class _Visible(NamedTuple):
    """Which keys of each sequence some query sees, (B, M), and which queries see any, (B, N).

    alike: whether all queries of a sequence see the same keys.
    """

    keys: Tensor
    queries: Tensor
    alike: bool


def so_far(
    seen: Observed, real: Real, before: Before | None, pass_index: int
) -> tuple[Real, Before | None]:
    """Which tokens of a call are no padding, where nobody told it, and what the next pass needs.

    Args:
        seen: the call, whose mask has been split from its bias.
        real: what was told; where it tells of the keys, it holds.
        before: what the last pass of the same module gave back; None where it had no padding.
        pass_index: the number of the pass.
    """
    if real.keys is not None or seen.mask is None or 0 in seen.shape:
        return real, None
    if before is None and bool(_crop(seen, keys=slice(1)).flatten(1).any(dim=1).all()):
        return real, None  # of all texts some query sees the first key
    visible = _visible(seen)
    if not bool(visible.keys.any()):
        return real, None
    if seen.cross:
        return _of_cross(visible, real), None
    return _of_self(visible, real, before, pass_index)


def _of_cross(visible: _Visible, real: Real) -> Real:
    N, M = visible.queries.shape[1], visible.keys.shape[1]
    if N == 1 or not visible.alike:  # keys that are not seen may lie behind a window
        return real
    return Real(torch.arange(M, device="cpu") >= _first(visible.keys)[:, None])


def _of_self(
    visible: _Visible, real: Real, before: Before | None, pass_index: int
) -> tuple[Real, Before | None]:
    (B, N), M = visible.queries.shape, visible.keys.shape[1]
    end = 1 + int(visible.keys.any(dim=0).nonzero().max())
    if end <= N < M or N == M:  # a text begins; with N < M, in a cache that has room for more
        before = Before(0, torch.zeros(B, dtype=torch.long, device="cpu"), pass_index - 1)
    if before is None or len(before.padding) != B:
        return real, None
    done = before.done + N * (pass_index - before.pass_index)
    start, gone = done - N, max(0, done - M)  # `gone`: tokens that the cache has forgotten
    if start and end != done - gone:  # the pass is of another text
        return real, None
    hidden = torch.minimum(gone + _first(visible.keys), start + _first(visible.queries))
    told = hidden.where(before.padding == start, hidden.minimum(before.padding))
    if not bool((told > gone).any()):
        return real, None
    keys = torch.arange(gone, gone + M, device="cpu")
    queries = torch.arange(start, done, device="cpu")
    is_real = told[:, None] <= keys
    is_real[:, done - gone :] = False  # places of the cache that are still empty
    return Real(is_real, told[:, None] <= queries), Before(done, told, pass_index)


def _visible(seen: Observed) -> _Visible:
    B, H, N, M = seen.shape
    rows = max(1, ENTRIES // (B * H * M))
    some, every, seeing = [], [], []
    for start in range(0, N, rows):
        table = _crop(seen, slice(start, start + rows))
        some.append(table.any(dim=1).any(dim=1))
        every.append(table.all(dim=1).all(dim=1))
        seeing.append(table.any(dim=1).any(dim=2))
    seen_by_some, seen_by_all = torch.stack(some).any(dim=0), torch.stack(every).all(dim=0)
    return _Visible(
        seen_by_some.expand(B, -1).cpu(),
        torch.cat(seeing, dim=1).expand(B, -1).cpu(),
        torch.equal(seen_by_some, seen_by_all),
    )


def _crop(seen: Observed, queries: slice = ALL, keys: slice = ALL) -> Tensor:
    """A part of the mask of a call, with axes for texts, heads, queries and keys."""
    mask: Any = seen.mask
    if isinstance(mask, Mask):
        # that of a structure is made on the CPU, and no GPU is waited for
        table = mask.crop(seen.shape, queries, keys)
    else:
        table = torch.atleast_2d(mask)
        table = table.expand(*table.shape[:-2], *seen.shape[2:])[..., queries, keys]
    return table.reshape(*[1] * (4 - table.ndim), *table.shape)


def _first(table: Tensor) -> Tensor:
    """The index of the first True of each row, (B,); the row's length where there is none."""
    return torch.where(table.any(dim=1), table.int().argmax(dim=1), table.shape[1])
