"""The likeliest targets of a source, greedily or by beam search, with a cache: from ids to ids.

B sources, K beams of each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.models.sampling import Search
from heedful.models.seq2seq import Seq2Seq


class Translation(NamedTuple):
    """A target that was found.

    ids: its tokens, without begin and end. logarithm: that of its probability, the end's with it.
    score: the logarithm over the penalty of its length, by which targets are compared. finished:
    whether it has its end, or was cut at the longest.
    """

    ids: list[int]
    logarithm: float
    score: float
    finished: bool


def translate(
    model: Seq2Seq,
    sources: Sequence[Sequence[int]],
    search: Search | None = None,
) -> list[list[Translation]]:
    """The best targets of each source, best first, at most as many as there are beams.

    The K likeliest ways to go on are kept at each step. One that ends is finished and leaves its
    place empty, as in Bahdanau et al. 2014 (arXiv:1409.0473), so that unlikely early ends do not
    crowd out the rest; one that can no longer beat the best finished target is let go. Where none
    is finished by the longest length, the unfinished ones are returned.

    Args:
        model: in evaluation mode.
        sources: ids of each, without an end.
        search: default `Search()`.

    Raises:
        ArgumentError: no sources, or one that the context does not hold.
    """
    if not len(sources):
        raise ArgumentError("no sources", expected="at least one")
    search = search or Search()
    with torch.inference_mode():
        return _Beams(model, sources, search).run()


class _Beams:
    """The search: rows b·K to b·K + K − 1 of every tensor are the beams of source b."""

    def __init__(self, model: Seq2Seq, sources: Sequence[Sequence[int]], search: Search) -> None:
        config = model.config
        self.model, self.search, self.count = model, search, len(sources)
        self.longest = min(search.longest or config.context_length, config.context_length)
        device = next(model.parameters()).device
        lengths = torch.tensor([len(source) + 1 for source in sources])
        keep = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.zeros(keep.shape, dtype=torch.int64)
        ids[keep] = torch.tensor([id for source in sources for id in (*source, config.end)])
        K = search.beams
        self.keep = keep.to(device).repeat_interleave(K, dim=0)
        self.memory = model.encode(ids.to(device), keep=keep.to(device)).repeat_interleave(K, dim=0)
        rows, length = self.keep.shape
        self.cache = model.new_cache(rows, length, self.longest)
        self.targets = torch.full((rows, 1), config.begin, device=device)
        # Only the first beam of each source is real yet: all of them are still the same
        self.logarithms = torch.full((self.count, K), -math.inf, device=device)
        self.logarithms[:, 0] = 0.0
        self.finished: list[list[Translation]] = [[] for _ in sources]

    def run(self) -> list[list[Translation]]:
        for _ in range(self.longest):
            self._step()
            if self.logarithms.isneginf().all():
                break
        return [
            sorted(found or self._unfinished(b), key=lambda target: -target.score)
            for b, found in enumerate(self.finished)
        ]

    def _step(self) -> None:
        K, V = self.search.beams, self.model.config.vocabulary
        onward = self.logarithms[:, :, None] + self._next().unflatten(0, (self.count, K))
        best = onward.flatten(1).topk(K)
        beams, tokens = best.indices // V, best.indices % V
        rows = (beams + K * torch.arange(self.count, device=beams.device)[:, None]).flatten()
        places = torch.tensor([K - len(found) for found in self.finished], device=beams.device)
        kept = torch.arange(K, device=beams.device) < places[:, None]
        ends = kept & (tokens == self.model.config.end) & ~best.values.isneginf()
        self._finish(best.values, rows.view_as(beams), ends)
        hopeless = best.values / self.search.penalty(self.longest) <= self._best_scores()
        self.logarithms = best.values.masked_fill(~kept | ends | hopeless, -math.inf)
        self.targets = torch.cat([self.targets[rows], tokens.view(-1, 1)], dim=1)
        if K > 1:
            self.cache.reorder(rows)

    def _best_scores(self) -> Tensor:
        """Of each source the best finished target's, (B, 1)."""
        scores = [max((target.score for target in found), default=-math.inf)
                  for found in self.finished]  # fmt: skip
        return torch.tensor(scores, device=self.targets.device)[:, None]

    def _next(self) -> Tensor:
        """Log-probabilities (B·K, V) of the next token; a target never begins again."""
        states = self.model.decoder_states(
            self.targets[:, -1:], self.memory, memory_keep=self.keep, cache=self.cache
        )
        likely = self.model.head(states[-1][:, -1]).float().log_softmax(-1)
        likely[:, self.model.config.begin] = -math.inf
        return likely

    def _finish(self, values: Tensor, rows: Tensor, ends: Tensor) -> None:
        for b, place in ends.nonzero().tolist():
            logarithm, ids = float(values[b, place]), self.targets[rows[b, place], 1:].tolist()
            score = logarithm / self.search.penalty(len(ids) + 1)
            self.finished[b].append(Translation(ids, logarithm, score, True))

    def _unfinished(self, source: int) -> list[Translation]:
        K = self.search.beams
        return [
            Translation(ids, value, value / self.search.penalty(len(ids)), False)
            for ids, value in zip(
                self.targets[source * K : source * K + K, 1:].tolist(),
                self.logarithms[source].tolist(),
                strict=True,
            )
            if value > -math.inf
        ]
