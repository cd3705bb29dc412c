"""Greedy and beam search for the most probable targets of a source, with a key/value cache.

B sources, K beams per source, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from heedful.errors import ArgumentError
from heedful.models.checks import check_logits
from heedful.models.sampling import Search
from heedful.models.seq2seq import Seq2Seq


class Translation(NamedTuple):
    """A translation found by the search.

    ids: the target's ids, without begin and end. log_prob: the log-probability of ids and end.
    score: log_prob divided by the length penalty, for ranking. finished: whether the target has
    an end; if not, it was truncated at the maximum length.
    """

    ids: list[int]
    log_prob: float
    score: float
    finished: bool


def translate(
    model: Seq2Seq, sources: Sequence[Sequence[int]], search: Search | None = None
) -> list[list[Translation]]:
    """Return at most K targets of each source, the best first; K is `search.beams`.

    For each source, a step keeps the K most probable beams. Each finished target reduces this K by
    one (Bahdanau et al. 2014, arXiv:1409.0473). A beam that can no longer beat the best finished
    target is dropped. If none finishes within the maximum length, unfinished ones are returned.

    Args:
        model: a model in evaluation mode.
        sources: the ids of each source, without the end id.
        search: default `Search()`.

    Raises:
        ArgumentError: no sources, a source longer than the context, or an unknown id.
    """
    if not len(sources):
        raise ArgumentError("no sources", expected="at least one")
    search = search or Search()
    with torch.inference_mode():
        return _Beams(model, sources, search).run()


class _Beams:
    """The state of a search; source b has rows b·K to b·K + K − 1 of targets, memory and cache."""

    def __init__(self, model: Seq2Seq, sources: Sequence[Sequence[int]], search: Search) -> None:
        config = model.config
        self.model, self.search, self.source_count = model, search, len(sources)
        self.max_length = min(search.longest or config.context_length, config.context_length)
        device = next(model.parameters()).device
        lengths = torch.tensor([len(source) + 1 for source in sources])
        keep = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.zeros(keep.shape, dtype=torch.int64)
        ids[keep] = torch.tensor([id for source in sources for id in (*source, config.end)])
        K = search.beams
        self.keep = keep.to(device).repeat_interleave(K, dim=0)
        self.memory = model.encode(ids.to(device), keep=keep.to(device)).repeat_interleave(K, dim=0)
        rows, length = self.keep.shape
        self.cache = model.new_cache(rows, length, self.max_length)
        self.targets = torch.full((rows, 1), config.begin, device=device)
        # The beams of a source are identical at first, so only the first one is active
        self.log_probabilities = torch.full((self.source_count, K), -math.inf, device=device)
        self.log_probabilities[:, 0] = 0.0
        self.finished: list[list[Translation]] = [[] for _ in sources]

    def run(self) -> list[list[Translation]]:
        for _ in range(self.max_length):
            self._step()
            if self.log_probabilities.isneginf().all():
                break
        return [
            sorted(targets or self._unfinished(b), key=lambda target: -target.score)
            for b, targets in enumerate(self.finished)
        ]

    def _step(self) -> None:
        K, V = self.search.beams, self.model.config.vocabulary
        states = self.model.decoder_states(
            self.targets[:, -1:], self.memory, memory_keep=self.keep, cache=self.cache
        )
        following = check_logits(self.model.head(states[-1][:, -1])).log_softmax(-1)
        following[:, self.model.config.begin] = -math.inf
        following = following.unflatten(0, (self.source_count, K))
        extended = self.log_probabilities[:, :, None] + following
        best = extended.flatten(1).topk(K)
        beams, tokens = best.indices // V, best.indices % V
        rows = (beams + K * torch.arange(self.source_count, device=beams.device)[:, None]).flatten()
        active = torch.tensor([K - len(targets) for targets in self.finished], device=beams.device)
        is_active = torch.arange(K, device=beams.device) < active[:, None]
        is_end = is_active & (tokens == self.model.config.end) & ~best.values.isneginf()
        for b, k in is_end.nonzero().tolist():
            value, ids = float(best.values[b, k]), self.targets[rows[b * K + k], 1:].tolist()
            score = value / self.search.penalty(len(ids) + 1)
            self.finished[b].append(Translation(ids, value, score, True))
        scores = [max((target.score for target in targets), default=-math.inf)
                  for targets in self.finished]  # fmt: skip
        best_scores = torch.tensor(scores, device=self.targets.device)[:, None]
        is_beaten = best.values / self.search.penalty(self.max_length) <= best_scores
        is_dropped = ~is_active | is_end | is_beaten
        self.log_probabilities = best.values.masked_fill(is_dropped, -math.inf)
        self.targets = torch.cat([self.targets[rows], tokens.view(-1, 1)], dim=1)
        if K > 1:
            self.cache.reorder(rows)

    def _unfinished(self, source: int) -> list[Translation]:
        K = self.search.beams
        return [
            Translation(ids, value, value / self.search.penalty(len(ids)), False)
            for ids, value in zip(
                self.targets[source * K : source * K + K, 1:].tolist(),
                self.log_probabilities[source].tolist(),
                strict=True,
            )
            if value > -math.inf
        ]
