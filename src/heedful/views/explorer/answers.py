"""What a page may ask of recordings, each question a function that returns bytes.

Every answer says by its `word` what its numbers are: "exact", or "sampled", of some queries only.
Where the exact ones are being computed, `done` is the share that is there, and who asks again gets
them later; where they cannot be, `note` says why. Numbers of the page are indices from 0; heads are
the model's own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.head_kinds import SCORES
from heedful.ops.score_tables import as_slice, evenly
from heedful.recording import Call
from heedful.views.explorer import images, tiles
from heedful.views.explorer.asked import Asked, Where
from heedful.views.explorer.background import Background, Job
from heedful.views.explorer.overview import Overview
from heedful.views.explorer.pyramid import Pyramid
from heedful.views.explorer.region import Strongest, Sums
from heedful.views.explorer.shares import SharesOf
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.tiles import Place
from heedful.views.explorer.wire import packed

WHOLE_ROWS = 1 << 26  # weights of rows that are computed at once where their sums are not known
TOKENS, PART, RIVALS, STRONGEST = 4096, 1 << 20, 8, 1000  # at most so many in one answer
LONGEST = 200  # characters of a token that are sent; the page says how many it has
FOUND = 1000  # places of a text that are sent
SOME = 64  # queries of which a column is sampled
KEPT = 64  # sums of rows and other work, and tiles, that are kept
PYRAMIDS = 4  # that are kept: at 131,072 tokens one has 64 MB
PARTS = ("product", "scaled", "capped", "bias", "score", "log_sum_exp", "weight", "sink")


class Answers:
    """Answers about recordings; an exact one is the same for good.

    What takes long is in `background`, where the host lets it go on while nobody asks.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.model: dict[str, Any] | None = None  # what records a new text, and what it reads
        self.written: dict[str, Any] | None = None  # how a text goes on, where one can
        self.background = Background()
        self.shares = SharesOf(texts, self.background)
        self._jobs: dict[tuple, Job] = {}
        self._overviews: dict[Where, Overview] = {}
        self._sampled = lru_cache(KEPT)(
            lambda where, place: tiles.sampled(texts.call(*where), place)
        )

    def ask(self, question: str, words: Mapping[str, str]) -> bytes:
        """The answer to a question of `QUESTIONS`, as it comes from a page.

        Raises:
            LookupError: no such question.
            HeedfulError: words that do not fit, or a call that cannot be shown.
        """
        return QUESTIONS[question](self, Asked(words))

    def about(self) -> bytes:
        """All recordings, their texts and calls, and what the words for heads mean."""
        words = {name: score._asdict() for name, score in SCORES.items()}
        return packed({
            "recordings": self.texts.about(), "words": words, "model": self.model,
            "written": self.written, "moments": [one._asdict() for one in self.texts.moments],
        })  # fmt: skip

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

    def image(self, where: Where, axis: str) -> bytes:
        """The picture under an axis: its pixels (h, w, 3), and the patch of each token, (L,)."""
        picture = images.picture_of(self.texts.call(*where), axis)
        if picture is None:
            raise ArgumentError(f"no image under the {axis}", expected="an axis of patches")
        head, arrays = images.as_data(picture)
        return packed(head, **arrays)

    def find(self, where: Where, axis: str, text: str) -> bytes:
        """The places of tokens in which a text stands, whatever its case; the first thousand.

        First those of which it is all, but for white space.
        """
        call = self.texts.call(*where)
        names = (call.query_tokens if axis == "queries" else call.key_tokens) or []
        asked = text.casefold()
        found = [i for i, name in enumerate(names) if asked in name.casefold()]
        found.sort(key=lambda i: names[i].casefold().strip() != asked.strip())
        return packed(
            {"count": len(found)},
            places=torch.tensor(found[:FOUND], dtype=torch.int32, device="cpu"),
        )

    def small(self, where: Where) -> bytes:
        """A picture of each head: (H, r, c), the largest weight of each cell."""
        overview = self._overview(where)
        overview.call.checked()
        return packed(self._told(overview), maps=overview.maps())

    def scores(self, where: Where) -> bytes:
        """Every head's scores and kind; of a long call nothing at first, then sampled ones."""
        overview = self._overview(where)
        kinds, scores = overview.heads()
        return packed({**self._told(overview), "kinds": kinds}, **scores)

    def tile(self, where: Where, place: Place) -> bytes:
        """The pixels of a tile: exact where that is quick, or its pyramid has it; else sampled."""
        call = self.texts.call(*where)
        rows, _ = place.region(call)
        call.checked()
        if tiles.is_direct(call, place):
            sums = self._unknown(where, [place.head], rows)
            if not sums:
                # of half precision the model's kernel told the rows' sums in half precision too
                is_half = call.causes.query.element_size() < 4 and not tiles.is_small(call, place)
                word = "half precision" if is_half else "exact"
                return packed({"word": word}, tile=tiles.exact(call, place))
            return packed(self._told(*sums), tile=self._sampled(where, place))
        key = ("pyramid", where, place.head, place.reduce)
        pyramid = self._job(key, lambda: Pyramid(call, place.head, place.reduce))
        if pyramid.has(place):
            return packed({"word": "exact"}, tile=pyramid.tile(place))
        return packed(self._told(pyramid), tile=self._sampled(where, place))

    def row(self, where: Where, heads: list[int], query: int) -> bytes:
        """The weights of one query on every key, the mean over some heads, (M,)."""
        call = self.texts.call(*where)
        return packed({"word": "exact"}, weights=_mean(call, heads, [query], None)[0])

    def column(self, where: Where, heads: list[int], key: int) -> bytes:
        """The weights of every query on one key, the mean over some heads, (N,).

        Sampled it has NaN for a query that was not looked at.
        """
        call = self.texts.call(*where)
        N = call.shape[1]
        sums = self._unknown(where, heads, range(N))
        if not sums:
            return packed({"word": "exact"}, weights=_mean(call, heads, None, [key])[:, 0])
        some = evenly(N, SOME)
        found = torch.full((N,), torch.nan, dtype=torch.float32, device="cpu")
        found[some] = _mean(call, heads, some, [key])[:, 0]
        return packed(self._told(*sums), weights=found)

    def part(self, where: Where, head: int, queries: range, keys: range) -> bytes:
        """Single cells, (n, m), and which of them the mask lets be seen, (n, m), 0 or 1."""
        if len(queries) * len(keys) > PART:
            raise ArgumentError(
                f"{len(queries):,} × {len(keys):,} cells", expected=f"at most {PART:,} at once"
            )
        call = self.texts.call(*where)
        region = as_slice(queries), as_slice(keys)
        if self._unknown(where, [head], queries):
            raise RunError("rows that are not computed yet", remedy="ask again in a moment")
        seen = ~call.hidden_cells((1, 1), head, *region)
        return packed(
            {"word": "exact"}, weights=call.weights(head, *region), seen=seen.to(torch.uint8)
        )

    def cell(self, where: Where, head: int, query: int, key: int) -> bytes:
        """One weight with all that makes it, and its rivals in the row."""
        call = self.texts.call(*where)
        made = call.one_weight(head, query, key)
        scores = made.scores
        best = scores.topk(min(RIVALS, len(scores)))
        known = best.values > -torch.inf
        about = {name: getattr(made, name) for name in PARTS} | {
            "word": "exact", "scale": call.causes.scale, "softcap": call.causes.softcap,
            "seen": int((scores > -torch.inf).sum()), "rank": int((scores > made.score).sum()) + 1,
            "hidden": made.score == -torch.inf, "proof": call.proof, "why": call.why,
            "layout": call.layout,
            "name": call.name, "value": _value(call, head, key),
            "group": len(call.causes.query) // len(call.causes.key),
        }  # fmt: skip
        return packed(
            about, query=made.query, key=made.key, products=made.products,
            rivals=best.indices[known], scores=best.values[known],
            weights=(best.values[known] - made.log_sum_exp).exp(),
        )  # fmt: skip

    def strongest(self, where: Where, head: int, queries: range, keys: range, count: int) -> bytes:
        """The largest weights of a region, descending: [weight, query, key] each."""
        call = self.texts.call(*where)
        key = ("strongest", where, head, queries, keys, count)
        job = self._job(key, lambda: Strongest(call, head, queries, keys, count))
        call.checked()
        return packed({**self._told(job), "cells": [list(one) for one in job.cells]})

    def _overview(self, where: Where) -> Overview:
        if where not in self._overviews:
            call, even = self.texts.scored(*where)
            for before in [one for one in self._overviews if one[:3] == where[:3]]:
                self.background.drop(self._overviews.pop(before))  # of a text that has grown since
            self._overviews[where] = Overview(call, even)
        return self._overviews[where]

    def _unknown(self, where: Where, heads: list[int], queries: range) -> list[Job]:
        """What has to be computed before cells of these rows are quick."""
        call = self.texts.call(*where)
        if len(heads) * len(queries) * call.shape[2] <= WHOLE_ROWS:
            return []
        call.checked()
        jobs = [
            self._job(("sums", where, head, queries), lambda head=head: Sums(call, head, queries))
            for head in heads
            if not call.knows(head, queries)
        ]
        return [job for job in jobs if not job.is_whole]

    def _job(self, key: tuple, made: Any) -> Any:
        """The work of a name, made where there is none yet; the least used is forgotten."""
        job = self._jobs.pop(key, None) or made()
        self._jobs[key] = job  # the latest used stands last
        pyramids = [one for one in self._jobs if one[0] == "pyramid"]
        others = [one for one in self._jobs if one[0] != "pyramid"]
        for oldest in pyramids[:-PYRAMIDS] + others[:-KEPT]:
            self.background.forget(self._jobs.pop(oldest))
        return job

    def _told(self, *jobs: Job) -> dict[str, Any]:
        """What is said of numbers that rest on some work, which is wanted now."""
        for job in jobs:
            wanted = self.background.know if isinstance(job, Overview) else self.background.show
            wanted(job)
        waiting = [job for job in jobs if not job.is_whole]
        if not waiting:
            return {"word": "exact"}
        return {"word": "sampled", **min(waiting, key=lambda job: job.done).said}


def _mean(call: Call, heads: list[int], queries: Any, keys: Any) -> Tensor:
    """Weights of some heads, their mean."""
    if len(heads) == 1:
        return call.weights(heads[0], queries, keys)
    return torch.stack([call.weights(head, queries, keys) for head in heads]).mean(0)


def _value(call: Call, head: int, key: int) -> float | None:
    """The length of the value that a key carried, where values were recorded."""
    if call.value is None:
        return None
    at = call.heads.index(head) // (call.shape[0] // len(call.value))
    return float(call.value[at, key].float().norm())


def _tile(of: Answers, asked: Asked) -> bytes:
    where = asked.where()
    head, level, row, column = asked.numbers("place", 4)
    call = of.texts.call(*where)
    if head not in call.heads:
        raise ArgumentError(f"head {head}", expected=f"one of {call.heads}")
    reduce = asked.choice("reduce", "mean", "max")
    return of.tile(where, Place(head, level, row, column, reduce))


def _axis(of: Answers, asked: Asked) -> tuple[Where, str, int]:
    """A call, one of its axes, and how long that is."""
    where, axis = asked.where(), asked.choice("axis", "keys", "queries")
    return where, axis, of.texts.call(*where).shape[1 if axis == "queries" else 2]


def _tokens(of: Answers, asked: Asked) -> bytes:
    where, axis, size = _axis(of, asked)
    start = asked.number("start", size + 1)
    return of.tokens(where, axis, start, asked.number("stop", 10**12, start))


def _find(of: Answers, asked: Asked) -> bytes:
    where, axis, _ = _axis(of, asked)
    return of.find(where, axis, asked.text("text"))


def _row(of: Answers, asked: Asked) -> bytes:
    where = asked.where()
    call = of.texts.call(*where)
    return of.row(where, asked.heads(call), asked.number("at", call.shape[1]))


def _column(of: Answers, asked: Asked) -> bytes:
    where = asked.where()
    call = of.texts.call(*where)
    return of.column(where, asked.heads(call), asked.number("at", call.shape[2]))


def _cell(of: Answers, asked: Asked) -> bytes:
    where = asked.where()
    call = of.texts.call(*where)
    _, N, M = call.shape
    return of.cell(where, asked.head(call), asked.number("query", N), asked.number("key", M))


def _region(of: Answers, asked: Asked) -> tuple[Where, int, range, range]:
    where = asked.where()
    call = of.texts.call(*where)
    _, N, M = call.shape
    return where, asked.head(call), asked.run("queries", N), asked.run("keys", M)


QUESTIONS = {
    "about": lambda of, asked: of.about(),
    "small": lambda of, asked: of.small(asked.where()),
    "scores": lambda of, asked: of.scores(asked.where()),
    "tile": _tile,
    "tokens": _tokens,
    "find": _find,
    "image": lambda of, asked: of.image(*_axis(of, asked)[:2]),
    "row": _row,
    "column": _column,
    "cell": _cell,
    "part": lambda of, asked: of.part(*_region(of, asked)),
    "segments": lambda of, asked: of.shares.ask(asked),
    "strongest": lambda of, asked: of.strongest(
        *_region(of, asked), asked.number("count", STRONGEST + 1, 1)
    ),
}
