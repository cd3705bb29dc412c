"""What a page may ask of recordings, each question a function that returns bytes.

Every answer says by its `word` what its numbers are: "exact", or "sampled", of some queries only.
Where the exact ones are being computed, `done` is the share that is there, and who asks again gets
them later; where they cannot be, `note` says why. Numbers of the page are indices from 0; heads are
the model's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.head_kinds import SCORES
from heedful.ops.indexing import as_slice, evenly
from heedful.recording import Call
from heedful.views.explorer import tiles
from heedful.views.explorer.catalogue import Texts
from heedful.views.explorer.jobs import Background, Job
from heedful.views.explorer.overview import Overview
from heedful.views.explorer.region_jobs import Strongest, Sums, shares
from heedful.views.explorer.request import Asked, Where
from heedful.views.explorer.text import as_data, picture_of
from heedful.views.explorer.tiles import Place, Pyramid
from heedful.views.explorer.wire import packed

WHOLE_ROWS = 1 << 26  # weights of rows that are computed at once where their sums are not known
TOKENS, PART, RIVALS, STRONGEST = 4096, 1 << 20, 8, 1000  # at most so many in one answer
LONGEST = 200  # characters of a token that are sent; the page says how many it has
FOUND = 1000  # places of a text that are sent
SOME = 64  # queries of which a column is sampled
KEPT, TILES = 4000, 64  # work, of some kilobytes each, and sampled tiles that are kept
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
        self._jobs: dict[tuple, Job] = {}
        self._overviews: dict[Where, Overview] = {}
        self._sampled = lru_cache(TILES)(
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

    def tokens(self, asked: Asked) -> bytes:
        """The text of some queries or keys; null where it is not known."""
        where, axis, size = self._axis(asked)
        start = asked.number("start", size + 1)
        stop = asked.number("stop", 10**12, start)
        names = self._names(where, axis)
        if names is None:
            return packed({"start": start, "tokens": None})
        part = names[start : min(stop, start + TOKENS)]
        lengths = {start + i: len(name) for i, name in enumerate(part) if len(name) > LONGEST}
        cut = [name[:LONGEST] for name in part]
        return packed({"start": start, "tokens": cut, "cut": lengths})

    def image(self, asked: Asked) -> bytes:
        """The picture under an axis: its pixels (h, w, 3), and the patch of each token, (L,)."""
        where, axis, _ = self._axis(asked)
        picture = picture_of(self.texts.call(*where), axis)
        if picture is None:
            raise ArgumentError(f"no image under the {axis}", expected="an axis of patches")
        head, arrays = as_data(picture)
        return packed(head, **arrays)

    def find(self, asked: Asked) -> bytes:
        """The places of tokens in which a text stands, whatever its case; the first thousand.

        First those of which it is all, but for white space.
        """
        where, axis, _ = self._axis(asked)
        text = asked.text("text").casefold()
        names = [name.casefold() for name in self._names(where, axis) or []]
        places = [i for i, name in enumerate(names) if text in name]
        places.sort(key=lambda i: names[i].strip() != text.strip())
        return packed(
            {"count": len(places)},
            places=torch.tensor(places[:FOUND], dtype=torch.int32, device="cpu"),
        )

    def small(self, asked: Asked) -> bytes:
        """A picture of each head: (H, r, c), the largest weight of each cell."""
        overview = self._overview(asked.where())
        overview.call.checked()
        return packed(self._told(overview), maps=overview.maps())

    def scores(self, asked: Asked) -> bytes:
        """Every head's scores and kind; of a long call nothing at first, then sampled ones."""
        overview = self._overview(asked.where())
        kinds, scores = overview.heads()
        return packed({**self._told(overview), "kinds": kinds}, **scores)

    def tile(self, asked: Asked) -> bytes:
        """The pixels of a tile: exact where that is quick, or its pyramid has it; else sampled."""
        where, call = self._call(asked)
        head, level, row, column = asked.numbers("place", 4)
        if head not in call.heads:
            raise ArgumentError(f"head {head}", expected=f"one of {call.heads}")
        place = Place(head, level, row, column, asked.choice("reduce", "mean", "max"))
        rows, columns = place.region(call)
        call.checked()
        if len(rows) * len(columns) <= tiles.CELLS:
            sums = self._unknown(where, [head], rows)
            if not sums:
                # of half precision the model's kernel told the rows' sums in half precision too
                is_half = call.causes.query.element_size() < 4 and not tiles.is_small(call, place)
                word = "half precision" if is_half else "exact"
                return packed({"word": word}, tile=tiles.exact(call, place))
            return packed(self._told(*sums), tile=self._sampled(where, place))
        key = ("pyramid", where, head, place.reduce)
        pyramid = self._job(key, lambda: Pyramid(call, head, place.reduce))
        if pyramid.has(place):
            return packed({"word": "exact"}, tile=pyramid.tile(place))
        return packed(self._told(pyramid), tile=self._sampled(where, place))

    def row(self, asked: Asked) -> bytes:
        """The weights of one query on every key, the mean over some heads, (M,)."""
        _, call = self._call(asked)
        heads, query = asked.heads(call), asked.number("at", call.shape[1])
        return packed({"word": "exact"}, weights=_mean(call, heads, [query], None)[0])

    def column(self, asked: Asked) -> bytes:
        """The weights of every query on one key, the mean over some heads, (N,).

        Sampled it has NaN for a query that was not looked at.
        """
        where, call = self._call(asked)
        _, N, M = call.shape
        heads, key = asked.heads(call), asked.number("at", M)
        sums = self._unknown(where, heads, range(N))
        if not sums:
            return packed({"word": "exact"}, weights=_mean(call, heads, None, [key])[:, 0])
        some = evenly(N, SOME)
        weights = torch.full((N,), torch.nan, dtype=torch.float32, device="cpu")
        weights[some] = _mean(call, heads, some, [key])[:, 0]
        return packed(self._told(*sums), weights=weights)

    def part(self, asked: Asked) -> bytes:
        """Single cells, (n, m), and which of them the mask lets be seen, (n, m), 0 or 1."""
        where, call = self._call(asked)
        head, queries, keys = _region(asked, call)
        if len(queries) * len(keys) > PART:
            raise ArgumentError(
                f"{len(queries):,} × {len(keys):,} cells", expected=f"at most {PART:,} at once"
            )
        region = as_slice(queries), as_slice(keys)
        if self._unknown(where, [head], queries):
            raise RunError("rows that are not computed yet", remedy="ask again in a moment")
        seen = ~call.hidden_cells((1, 1), head, *region)
        return packed(
            {"word": "exact"}, weights=call.weights(head, *region), seen=seen.to(torch.uint8)
        )

    def cell(self, asked: Asked) -> bytes:
        """One weight with all that makes it, and its rivals in the row."""
        _, call = self._call(asked)
        _, N, M = call.shape
        head, query, key = asked.head(call), asked.number("query", N), asked.number("key", M)
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

    def strongest(self, asked: Asked) -> bytes:
        """The largest weights of a region, descending: [weight, query, key] each."""
        where, call = self._call(asked)
        head, queries, keys = _region(asked, call)
        count = asked.number("count", STRONGEST + 1, 1)
        key = ("strongest", where, head, queries, keys, count)
        job = self._job(key, lambda: Strongest(call, head, queries, keys, count))
        call.checked()
        return packed({**self._told(job), "cells": [list(cell) for cell in job.cells]})

    def segments(self, asked: Asked) -> bytes:
        """How much each head of a call reads of each segment, or how far that is.

        `keys` are the marks, as 0-40,50-60;60-80; `queries` those of another text. What is in no
        segment comes last, if there is any.
        """
        where, call = self._call(asked)
        _, N, M = call.shape
        keys = asked.marks("keys", M)
        queries = asked.marks("queries", N) if call.crosses else None
        key = ("shares", where, repr(keys), repr(queries))
        job = self._job(key, lambda: shares(call, keys, queries))
        if not job.is_whole:
            self.background.show(job)
            return packed({"word": "not computed yet", **job.said})
        about = {"word": "exact", "sinks": call.causes.sinks is not None}
        return packed(about, **job.arrays)

    def _call(self, asked: Asked) -> tuple[Where, Call]:
        where = asked.where()
        return where, self.texts.call(*where)

    def _axis(self, asked: Asked) -> tuple[Where, str, int]:
        """A call, one of its axes, and how long that is."""
        where, call = self._call(asked)
        axis = asked.choice("axis", "keys", "queries")
        return where, axis, call.shape[1 if axis == "queries" else 2]

    def _names(self, where: Where, axis: str) -> list[str] | None:
        call = self.texts.call(*where)
        return call.query_tokens if axis == "queries" else call.key_tokens

    def _overview(self, where: Where) -> Overview:
        if where not in self._overviews:
            call, even = self.texts.scored(*where)
            for before in [one for one in self._overviews if one[:3] == where[:3]]:
                self.background.forget(self._overviews.pop(before))  # of a text that grew
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


def _region(asked: Asked, call: Call) -> tuple[int, range, range]:
    """A head, and some of its queries and keys."""
    _, N, M = call.shape
    return asked.head(call), asked.run("queries", N), asked.run("keys", M)


QUESTIONS: dict[str, Callable[[Answers, Asked], bytes]] = {
    "about": lambda answers, asked: answers.about(),
    "small": Answers.small,
    "scores": Answers.scores,
    "tile": Answers.tile,
    "tokens": Answers.tokens,
    "find": Answers.find,
    "image": Answers.image,
    "row": Answers.row,
    "column": Answers.column,
    "cell": Answers.cell,
    "part": Answers.part,
    "segments": Answers.segments,
    "strongest": Answers.strongest,
}
