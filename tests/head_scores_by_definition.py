"""Scores of a call for tests, and the same scores by their definitions in loops."""

import numpy as np

from heedful.head_kinds import MEANS, REACH, SCORES
from heedful.recording.head_scores import evidence


def means(call):
    """Return each score, entropy and distance of a call, (H,) each."""
    return {name: score.mean for name, score in evidence(call).items()}


def rows(map_, ids, causal=True, unknown=None):
    """Return each score of the queries that have it, (H, q), of a self-attention map, float64."""
    H, N, _ = map_.shape
    visible = [n + 1 if causal else N for n in range(N)]

    def earlier(n, after):
        """Return the keys before n with its token, or `after` places after such a key."""
        is_known = ids[n] != unknown
        return [m for m in range(after, n) if is_known and ids[m - after] == ids[n]]

    def over(queries, number):
        values = [number(n) for n in queries]
        return np.stack(values, 1) if values else np.zeros((H, 0))

    def entropy(n):
        weights = map_[:, n, : visible[n]]
        return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)

    def near(n):
        return map_[:, n, max(0, n - REACH) : n + REACH + 1].sum(-1)

    after_first = range(1, N)
    has_choice = [n for n in range(N) if visible[n] > 1]
    see_further = [n for n in range(N) if max(n, visible[n] - 1 - n) > REACH]
    return {
        "previous": over(after_first, lambda n: map_[:, n, n - 1]),
        "sink": over(after_first, lambda n: map_[:, n, 0]),
        "self": over(after_first, lambda n: map_[:, n, n]),
        "local": over(see_further, near),
        "broad": over(has_choice, lambda n: entropy(n) / np.log(visible[n])),
        "induction": over(
            [n for n in range(N) if earlier(n, 1)], lambda n: map_[:, n, earlier(n, 1)].sum(-1)
        ),
        "duplicate": over(
            [n for n in range(N) if earlier(n, 0)], lambda n: map_[:, n, earlier(n, 0)].sum(-1)
        ),
        "entropy": over(range(N), entropy),
        "distance": over(range(N), lambda n: map_[:, n] @ np.abs(n - np.arange(N))),
    }


def over_texts(maps, causal=True, unknown=None):
    """Return the mean of each score over all queries of several maps (H, N, N), each with its ids.

    Also returns the chances and the numbers of queries, by score; (H,) each.
    """
    maps = [(np.asarray(map_, np.float64), list(ids)) for map_, ids in maps]
    all_of = [rows(map_, ids, causal, unknown) for map_, ids in maps]
    even = [rows(_even(map_.shape, causal), ids, causal, unknown) for map_, ids in maps]
    scores = {name: np.concatenate([x[name] for x in all_of], 1) for name in (*SCORES, *MEANS)}
    evenly = {name: np.concatenate([x[name] for x in even], 1) for name in SCORES}
    return (
        {name: values_of.mean(1) for name, values_of in scores.items()},
        {name: values_of.mean(1) for name, values_of in evenly.items() if name != "broad"},
        {name: scores[name].shape[1] for name in SCORES},
    )


def _even(shape, causal):
    """Return the map of uniform attention."""
    allowed = np.tril(np.ones(shape[1:])) if causal else np.ones(shape[1:])
    return np.broadcast_to(allowed / allowed.sum(-1, keepdims=True), shape)
