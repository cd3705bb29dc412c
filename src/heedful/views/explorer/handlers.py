"""The handlers of a page's requests about recordings; each returns a response in bytes.

The field `word` of a response is the precision of its numbers: "exact", "sampled" (from some of the
queries), "half precision" or "not computed yet". While a job computes the exact numbers, `done` is
the job's completed share. If it failed, `note` is its error. Heads have their numbers in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.head_kinds import SCORES
from heedful.ops.indexing import as_slice, evenly_spaced
from heedful.ops.rollout import rollout
from heedful.recording import Call
from heedful.recording.sequence import rollout_calls
from heedful.views.explorer import tiles
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.jobs import Background, Job
from heedful.views.explorer.overview import Overview
from heedful.views.explorer.region_jobs import Strongest, Sums, shares
from heedful.views.explorer.request import Indices, Request
from heedful.views.explorer.text import image_data, image_of
from heedful.views.explorer.tiles import Pyramid, Tile
from heedful.views.explorer.wire import packed
from heedful.views.explorer.without import predictor, without

WHOLE_ROWS = 1 << 26  # rows of up to so many weights are computed at once, without stored sums
TOKENS, PART, RIVALS, STRONGEST = 4096, 1 << 20, 8, 1000  # limits of a response
LONGEST = 200  # characters of a token that are sent, besides the number of all characters
MATCHES = 1000  # search results that are sent
SAMPLED = 64  # queries of a sampled column
ROLLED = 4096  # tokens of a rollout
JOBS, TILES = 4000, 64  # cached jobs (of some kilobytes each); cached sampled tiles
PYRAMIDS = 4  # cached pyramids: at 131,072 tokens, each takes 64 MB
TERMS = ("product", "scaled", "capped", "bias", "score", "log_sum_exp", "weight", "sink")


class Handlers:
    """Handles requests about recordings; the exact response to a request never changes.

    Long computations are jobs in `background`, which the server runs while no request waits.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.models: dict[str, Any] = {}  # the models of the recordings, in turn, by their names
        self.generation: dict[str, Any] | None = None  # the options of a generation, if any
        self.background = Background()
        self._jobs: dict[tuple, Job] = {}
        self._overviews: dict[Indices, Overview] = {}
        self._sampled = lru_cache(TILES)(
            lambda indices, tile: tiles.sampled(catalogue.call(*indices), tile)
        )

    def handle(self, endpoint: str, parameters: Mapping[str, str]) -> bytes:
        """Return the response of one of `ENDPOINTS` to the parameters of a request.

        Raises:
            LookupError: an unknown endpoint.
            HeedfulError: a missing or malformed parameter, or a call that cannot be shown.
        """
        return ENDPOINTS[endpoint](self, Request(parameters))

    def about(self, _: Request | None = None) -> bytes:
        """Return all recordings with their texts and calls, and the meaning of each head score."""
        words = {name: score._asdict() for name, score in SCORES.items()}
        models = self.models.values()
        model = {
            "name": " and ".join(self.models), "pairs": all(each.reads_pairs for each in models),
            "predicts": [predictor(each) is not None for each in models],
        }  # fmt: skip
        steps = [step._asdict() for step in self.catalogue.training_steps]
        return packed({
            "recordings": self.catalogue.about(), "words": words, "written": self.generation,
            "moments": steps, "model": model if models else None,
            "ablation": self.catalogue.ablation,
        })  # fmt: skip

    def tokens(self, request: Request) -> bytes:
        """Return the tokens of a range of queries or keys, or null if they are unknown."""
        call, axis = self._axis(request)
        start = request.number("start", call.shape[1 if axis == "queries" else 2] + 1)
        stop = request.number("stop", 10**12, start)
        names = _names(call, axis)
        if names is None:
            return packed({"start": start, "tokens": None})
        part = names[start : min(stop, start + TOKENS)]
        lengths = {start + i: len(name) for i, name in enumerate(part) if len(name) > LONGEST}
        cut = [name[:LONGEST] for name in part]
        return packed({"start": start, "tokens": cut, "cut": lengths})

    def image(self, request: Request) -> bytes:
        """Return the image of an axis: its pixels (h, w, 3), and the patch of each token (L,)."""
        call, axis = self._axis(request)
        picture = image_of(call, axis)
        if picture is None:
            raise ArgumentError(f"{axis} without an image", expected="an axis of image patches")
        head, arrays = image_data(picture)
        return packed(head, **arrays)

    def find(self, request: Request) -> bytes:
        """Return the number of tokens that contain a text, and the first `MATCHES` positions.

        Case is ignored. Tokens that equal the text, apart from white space at the ends, come first.
        """
        call, axis = self._axis(request)
        text = request.text("text").casefold()
        names = [name.casefold() for name in _names(call, axis) or []]
        places = [i for i, name in enumerate(names) if text in name]
        places.sort(key=lambda i: names[i].strip() != text.strip())
        return packed(
            {"count": len(places)},
            places=torch.tensor(places[:MATCHES], dtype=torch.int32, device="cpu"),
        )

    def small(self, request: Request) -> bytes:
        """Return the thumbnail of each head: (H, r, c), the largest weight in each pixel."""
        overview = self._overview(request.indices())
        overview.call.checked_inputs()
        return packed(self._status(overview), maps=overview.maps().nan_to_num(nan=torch.inf))

    def scores(self, request: Request) -> bytes:
        """Return the kind and scores of each head; in a long call, first none, then samples."""
        overview = self._overview(request.indices())
        kinds, scores = overview.heads()
        return packed({**self._status(overview), "kinds": kinds}, **scores)

    def tile(self, request: Request) -> bytes:
        """Return the pixels of a tile: exact if cheap or computed by a job before, else sampled."""
        indices, call = self._call(request)
        head, level, row, column = request.numbers("place", 4)
        if head not in call.heads:
            raise ArgumentError(f"head {head}", expected=f"one of {call.heads}")
        tile = Tile(head, level, row, column, request.choice("reduce", "mean", "max"))
        rows, columns = tile.region(call)
        call.checked_inputs()
        if len(rows) * len(columns) <= tiles.CELLS:
            sums = self._missing_sums(indices, [head], rows)
            if not sums:
                # in half precision, the log-sum-exps of the model's kernel are inexact
                is_half = call.causes.query.element_size() < 4 and not tiles.is_small(call, tile)
                word = "half precision" if is_half else "exact"
                return packed({"word": word}, tile=tiles.exact(call, tile))
            return packed(self._status(*sums), tile=self._sampled(indices, tile))
        key = ("pyramid", indices, head, tile.reduce)
        pyramid = self._job(key, lambda: Pyramid(call, head, tile.reduce))
        if pyramid.has(tile):
            return packed({"word": "exact"}, tile=pyramid.tile(tile))
        return packed(self._status(pyramid), tile=self._sampled(indices, tile))

    def row(self, request: Request) -> bytes:
        """Return the weights of a query on all keys, (M,), averaged over some heads."""
        _, call = self._call(request)
        heads, query = request.heads(call), request.number("at", call.shape[1])
        return packed({"word": "exact"}, weights=_mean(call, heads, [query], None)[0])

    def column(self, request: Request) -> bytes:
        """Return the weights of all queries on a key, (N,), averaged over some heads.

        In a sampled column, queries that were not computed are NaN.
        """
        indices, call = self._call(request)
        _, N, M = call.shape
        heads, key = request.heads(call), request.number("at", M)
        sums = self._missing_sums(indices, heads, range(N))
        if not sums:
            return packed({"word": "exact"}, weights=_mean(call, heads, None, [key])[:, 0])
        queries = evenly_spaced(N, SAMPLED)
        weights = torch.full((N,), torch.nan, dtype=torch.float32, device="cpu")
        weights[queries] = _mean(call, heads, queries, [key])[:, 0]
        return packed(self._status(*sums), weights=weights)

    def part(self, request: Request) -> bytes:
        """Return the weights of a region, (n, m), and an array that is 0 where masked, else 1."""
        indices, call = self._call(request)
        head, queries, keys = _region(request, call)
        if len(queries) * len(keys) > PART:
            raise ArgumentError(
                f"{len(queries):,} × {len(keys):,} weights", expected=f"at most {PART:,} at once"
            )
        region = as_slice(queries), as_slice(keys)
        if self._missing_sums(indices, [head], queries):
            raise RunError("rows that are not computed yet", remedy="request them again later")
        visible = ~call.masked_cells((1, 1), head, *region)
        return packed(
            {"word": "exact"}, weights=call.weights(head, *region), seen=visible.to(torch.uint8)
        )

    def cell(self, request: Request) -> bytes:
        """Return all terms of a weight, and the keys with the largest scores of its row."""
        _, call = self._call(request)
        _, N, M = call.shape
        head, query, key = request.head(call), request.number("query", N), request.number("key", M)
        terms, norms = call.one_weight(head, query, key), _value_norms(call, head)
        scores = terms.scores
        best = scores.topk(min(RIVALS, len(scores)))
        visible = best.values != -torch.inf
        about = {name: getattr(terms, name) for name in TERMS} | {
            "word": "exact", "scale": call.causes.scale, "softcap": call.causes.softcap,
            "seen": int((scores != -torch.inf).sum()),
            "rank": int((scores > terms.score).sum()) + 1,
            "hidden": terms.score == -torch.inf, "proof": call.proof, "why": call.why,
            "layout": call.layout,
            "name": call.name, "value": None if norms is None else float(norms[key]),
            "group": len(call.causes.query) // len(call.causes.key),
        }  # fmt: skip
        return packed(
            about, query=terms.query, key=terms.key, products=terms.products,
            rivals=best.indices[visible], scores=best.values[visible],
            weights=(best.values[visible] - terms.log_sum_exp).exp(),
        )  # fmt: skip

    def all_heads(self, request: Request) -> bytes:
        """Return the weight of a query on a key in every head of a call, (H,)."""
        _, call = self._call(request)
        _, N, M = call.shape
        query, key = request.number("query", N), request.number("key", M)
        return packed({"word": "exact"}, weights=call.weights(None, [query], [key]).flatten())

    def norms(self, request: Request) -> bytes:
        """Return the norm of each key's value vector, (M,), for a head."""
        _, call = self._call(request)
        norms = _value_norms(call, request.head(call))
        if norms is None:
            raise RunError("no values in this recording", remedy="record with values=True")
        return packed({"word": "exact"}, norms=norms)

    def rollout(self, request: Request) -> bytes:
        """Return the attention rollout of a query through all calls up to this one, (N,)."""
        indices, call = self._call(request)
        query, N = request.number("at", call.shape[1]), call.shape[1]
        if N > ROLLED:
            raise ArgumentError(f"a rollout of {N:,} tokens", expected=f"at most {ROLLED:,}")
        recording, text, last, *tokens = indices
        calls = [self.catalogue.call(recording, text, n, *tokens) for n in range(last + 1)]
        shares = rollout((map(each.weights, each.heads) for each in rollout_calls(calls)), query)
        return packed({"word": "exact"}, weights=shares.float())

    def strongest(self, request: Request) -> bytes:
        """Return the largest weights of a region, descending, as [weight, query, key]."""
        indices, call = self._call(request)
        head, queries, keys = _region(request, call)
        count = request.number("count", STRONGEST + 1, 1)
        key = ("strongest", indices, head, queries, keys, count)
        job = self._job(key, lambda: Strongest(call, head, queries, keys, count))
        call.checked_inputs()
        return packed({**self._status(job), "cells": [list(cell) for cell in job.cells]})

    def segments(self, request: Request) -> bytes:
        """Return the segment shares of each head of a call, or the progress of their job.

        The parameter `keys` lists the segments of the keys, as in 0-40,50-60;60-80. In
        cross-attention, `queries` lists the segments of the queries. Tokens that are in no segment
        form an additional last segment.
        """
        indices, call = self._call(request)
        _, N, M = call.shape
        keys = request.segments("keys", M)
        queries = request.segments("queries", N) if call.is_cross else None
        key = ("shares", indices, repr(keys), repr(queries))
        job = self._job(key, lambda: shares(call, keys, queries))
        if not job.is_complete:
            self.background.prioritize(job)
            return packed({"word": "not computed yet", **job.status})
        about = {"word": "exact", "sinks": call.causes.sinks is not None}
        return packed(about, **job.arrays)

    def without(self, request: Request) -> bytes:
        """Return what the text's model predicts without some heads and edges."""
        (recording, text, _, *tokens), call = self._call(request)
        models, call_at = [*self.models.values()] or [None], self.catalogue.call
        parts, at = request.parts("removed"), request.number("at", call.shape[1])
        removed = [(call_at(recording, text, n, *tokens).name, *part) for n, *part in parts]
        return without(models[recording % len(models)], call.ids, removed, at)

    def _call(self, request: Request) -> tuple[Indices, Call]:
        indices = request.indices()
        return indices, self.catalogue.call(*indices)

    def _axis(self, request: Request) -> tuple[Call, str]:
        """Return a call, and one of its axes."""
        return self._call(request)[1], request.choice("axis", "keys", "queries")

    def _overview(self, indices: Indices) -> Overview:
        if indices not in self._overviews:
            call, chance_scores = self.catalogue.scored(*indices)
            for old in [other for other in self._overviews if other[:3] == indices[:3]]:
                self.background.remove(self._overviews.pop(old))  # earlier lengths of a live text
            self._overviews[indices] = Overview(call, chance_scores)
        return self._overviews[indices]

    def _missing_sums(self, indices: Indices, heads: list[int], queries: range) -> list[Job]:
        """Return the unfinished jobs whose log-sum-exps make weights of these rows fast."""
        call = self.catalogue.call(*indices)
        if len(heads) * len(queries) * call.shape[2] <= WHOLE_ROWS:
            return []
        jobs = [
            self._job(("sums", indices, head, queries), lambda head=head: Sums(call, head, queries))
            for head in heads
            if not call.has_row_sums(head, queries)
        ]
        return [job for job in jobs if not job.is_complete]

    def _job(self, key: tuple, create: Any) -> Any:
        """Return the cached job of a key, or create it; drop the least recently used jobs."""
        job = self._jobs.pop(key, None) or create()
        self._jobs[key] = job  # the most recently used is last
        pyramids = [cached for cached in self._jobs if cached[0] == "pyramid"]
        others = [cached for cached in self._jobs if cached[0] != "pyramid"]
        for oldest in pyramids[:-PYRAMIDS] + others[:-JOBS]:
            self.background.remove(self._jobs.pop(oldest))
        return job

    def _status(self, *jobs: Job) -> dict[str, Any]:
        """Queue the jobs of a response; return its `word`, and the progress of the slowest job."""
        for job in jobs:
            background = self.background
            (background.enqueue if isinstance(job, Overview) else background.prioritize)(job)
        waiting = [job for job in jobs if not job.is_complete]
        if not waiting:
            return {"word": "exact"}
        return {"word": "sampled", **min(waiting, key=lambda job: job.fraction_done).status}


def _names(call: Call, axis: str) -> list[str] | None:
    return call.query_tokens if axis == "queries" else call.key_tokens


def _mean(call: Call, heads: list[int], queries: Any, keys: Any) -> Tensor:
    """Return the mean weights of some heads."""
    return torch.stack([call.weights(head, queries, keys) for head in heads]).mean(0)


def _value_norms(call: Call, head: int) -> Tensor | None:
    """Return the norms of the value vectors of a head, (M,), if values were recorded."""
    if call.value is None:
        return None
    group = call.heads.index(head) // (call.shape[0] // len(call.value))
    return call.value[group].float().norm(dim=-1)


def _region(request: Request, call: Call) -> tuple[int, range, range]:
    """Return a head, and ranges of queries and keys."""
    _, N, M = call.shape
    return request.head(call), request.run("queries", N), request.run("keys", M)


ENDPOINTS: dict[str, Callable[[Handlers, Request], bytes]] = {
    name: getattr(Handlers, name)
    for name in (
        "about", "small", "scores", "tile", "tokens", "find", "image", "row", "column", "cell",
        "all_heads", "norms", "rollout", "part", "segments", "strongest",
        "without",
    )
}  # fmt: skip
