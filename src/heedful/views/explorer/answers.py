"""What a page may ask of recordings, each question a function that returns bytes.

Every answer says what its numbers are: "exact", "sampled" (of some queries only). Numbers of the
page are indices from 0; heads are the model's own numbers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.head_kinds import MEANS, SCORES
from heedful.recorder import Call
from heedful.recorder.kept.heads import heads_of
from heedful.views.explorer import tiles
from heedful.views.explorer.pyramid import FINEST, Pyramid
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.tiles import Place
from heedful.views.explorer.wire import packed

SMALL = 32  # cells of a head's small picture
AT_ONCE = 1 << 28  # weights that may be computed to answer at once, some seconds
ROWS = 4  # queries that are computed for each row of a sampled small picture
TOKENS, PART, RIVALS = 4096, 1 << 20, 8  # at most so many in one answer
LONGEST = 200  # characters of a token that are sent; the page says how many it has

Where = tuple[int, int, int]  # a call: the number of its recording, of its text, and its own


class Answers:
    """Answers about recordings; the same question has the same answer for good, but for tiles."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self._pyramids: dict[tuple, Pyramid] = {}
        self._lock = threading.Lock()

    def about(self) -> bytes:
        """All recordings, their texts and calls."""
        return packed({"recordings": self.texts.about(), "finest": FINEST, "side": tiles.SIDE})

    def tokens(self, where: Where, axis: str, start: int, stop: int) -> bytes:
        """The text of some queries or keys; null where it is not known."""
        call = self.texts.call(*where)
        names = call.query_tokens if axis == "queries" else call.key_tokens
        if names is None:
            return packed({"start": start, "tokens": None})
        part = names[start : min(stop, start + TOKENS)]
        lengths = {start + i: len(name) for i, name in enumerate(part) if len(name) > LONGEST}
        cut = [name[:LONGEST] for name in part]
        return packed({"start": start, "tokens": cut, "cut": lengths})

    def find(self, where: Where, axis: str, text: str) -> bytes:
        """The places of tokens in which a text stands, whatever its case; the first thousand."""
        call = self.texts.call(*where)
        names = (call.query_tokens if axis == "queries" else call.key_tokens) or []
        asked = text.casefold()
        found = [i for i, name in enumerate(names) if asked in name.casefold()]
        return packed({"count": len(found)}, places=torch.tensor(found[:1000], dtype=torch.int32))

    def small(self, where: Where) -> bytes:
        """A picture of each head: (H, r, c), the largest weight of each cell."""
        call = self.texts.call(*where)
        H, N, M = call.shape
        if H * N * M <= AT_ONCE // 16:
            maps = call.heatmap(SMALL, reduce="max")
            return packed({"word": "exact"}, maps=maps)
        some = torch.linspace(0, N - 1, min(N, SMALL * ROWS)).long().unique()
        cell = -(-M // SMALL)
        rows = tiles.pooled_keys(call.weights(queries=some), cell, "max")
        return packed({"word": "sampled"}, maps=_fewer(rows, SMALL))

    def scores(self, where: Where, progress: Callable[[float], None]) -> bytes:
        """Every head's scores and kind."""
        call = self.texts.call(*where)
        found = heads_of([call], progress)
        arrays = {name: _array(head.scores[name] for head in found) for name in SCORES}
        arrays |= {name: _array(getattr(head, name) for head in found) for name in MEANS}
        return packed({"kinds": [head.kind for head in found]}, **arrays)

    def tile(self, where: Where, place: Place) -> bytes:
        """The pixels of a tile: exact where that is quick, or its pyramid stands; else sampled."""
        call = self.texts.call(*where)
        if tiles.is_direct(call, place):
            return packed({"word": "exact"}, tile=tiles.exact(call, place))
        pyramid = self._pyramids.get((*where, place.head, place.reduce))
        if pyramid is not None and pyramid.is_whole:
            return packed({"word": "exact"}, tile=pyramid.tile(place))
        done = 0.0 if pyramid is None else pyramid.done
        return packed({"word": "sampled", "done": done}, tile=tiles.sampled(call, place))

    def pyramid(self, where: Where, head: int, reduce: str) -> Pyramid:
        """The pyramid of a head, which somebody has to build."""
        with self._lock:
            key = (*where, head, reduce)
            if key not in self._pyramids:
                self._pyramids[key] = Pyramid(self.texts.call(*where), head, reduce)
            return self._pyramids[key]

    def row(self, where: Where, heads: list[int], query: int) -> bytes:
        """The weights of one query on every key, the mean over some heads, (M,)."""
        call = self.texts.call(*where)
        return packed({"word": "exact"}, weights=_mean(call, heads, [query], None)[0])

    def column(self, where: Where, heads: list[int], key: int) -> bytes:
        """The weights of every query on one key, the mean over some heads, (N,)."""
        call = self.texts.call(*where)
        return packed({"word": "exact"}, weights=_mean(call, heads, None, [key])[:, 0])

    def part(self, where: Where, head: int, queries: range, keys: range) -> bytes:
        """Single cells, (n, m)."""
        if len(queries) * len(keys) > PART:
            raise ArgumentError(
                f"{len(queries):,} × {len(keys):,} cells", expected=f"at most {PART:,} at once"
            )
        call = self.texts.call(*where)
        part = call.weights(head, tiles.slice_of(queries), tiles.slice_of(keys))
        return packed({"word": "exact", "seen": None}, weights=part)

    def cell(self, where: Where, head: int, query: int, key: int) -> bytes:
        """One weight with all that makes it, and its rivals in the row."""
        call = self.texts.call(*where)
        made = call.one_weight(head, query, key)
        scores = made.scores
        best = scores.topk(min(RIVALS, len(scores)))
        seen = int((scores > -torch.inf).sum())
        about = {
            name: getattr(made, name)
            for name in ("product", "scaled", "capped", "bias", "score", "log_sum_exp", "weight",
                         "sink")
        }  # fmt: skip
        about |= {
            "scale": call.causes.scale, "softcap": call.causes.softcap, "seen": seen,
            "rank": int((scores > made.score).sum()) + 1, "hidden": made.score == -torch.inf,
            "proof": call.proof, "why": call.why, "name": call.name,
            "value": _value(call, head, key),
            "group": len(call.causes.query) // len(call.causes.key),
        }  # fmt: skip
        known = best.values > -torch.inf
        return packed(
            about, query=made.query, key=made.key, products=made.products,
            rivals=best.indices[known], scores=best.values[known],
            weights=(best.values[known] - made.log_sum_exp).exp(),
        )  # fmt: skip

    def strongest(self, where: Where, head: int, queries: range, keys: range, count: int) -> bytes:
        """The largest weights of a region: of all its cells, or of those of some of its queries."""
        call = self.texts.call(*where)
        step = -(-len(queries) * len(keys) // (AT_ONCE // 16))
        rows = list(queries[::step])
        band = max(1, (1 << 22) // max(1, len(keys)))
        best: list[tuple[float, int, int]] = []
        for start in range(0, len(rows), band):
            some = rows[start : start + band]
            found = call.weights(head, some, tiles.slice_of(keys)).flatten()
            top = found.topk(min(count, len(found)))
            best += [
                (float(w), some[int(i) // len(keys)], keys[int(i) % len(keys)])
                for w, i in zip(*top, strict=True)
            ]
            best = sorted(best, key=lambda one: -one[0])[:count]
        head_of = {"word": "exact" if step == 1 else "sampled"}
        return packed({**head_of, "cells": [list(one) for one in best]})


def _mean(call: Call, heads: list[int], queries: Any, keys: Any) -> Tensor:
    """Weights of some heads, their mean."""
    total = sum((call.weights(head, queries, keys) for head in heads[1:]),
                call.weights(heads[0], queries, keys))  # fmt: skip
    return total / len(heads)


def _array(numbers: Iterable[float | None]) -> Tensor:
    return torch.tensor([math.nan if number is None else number for number in numbers])


def _fewer(rows: Tensor, size: int) -> Tensor:
    """(H, n, c) pooled to at most `size` rows, the largest of each run."""
    cell = -(-rows.shape[1] // size)
    return tiles.pooled_keys(rows.mT, cell, "max").mT


def _value(call: Call, head: int, key: int) -> float | None:
    """The length of the value that a key carried, where values were recorded."""
    if call.value is None:
        return None
    at = call.heads.index(head) // (call.shape[0] // len(call.value))
    return float(call.value[at, key].float().norm())
