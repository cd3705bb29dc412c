"""The scores of a call as a test compares them, and by their definitions in loops."""

import numpy as np

from heedful.head_kinds import MEANS, REACH, SCORES
from heedful.recording.head_scores import evidence


def means(call):
    """(H,) for each score, and for entropy and distance."""
    return {name: found.mean for name, found in evidence(call).items()}


def rows(map_, ids, causal=True, unknown=None):
    """Each score of the queries that have one, (H, q), of a map of self-attention, float64."""
    H, N, _ = map_.shape
    seen = [n + 1 if causal else N for n in range(N)]

    def earlier(n, after):
        """Keys before n that hold its token, or come after one that does."""
        known = ids[n] != unknown
        return [m for m in range(after, n) if known and ids[m - after] == ids[n]]

    def over(queries, number):
        found = [number(n) for n in queries]
        return np.stack(found, 1) if found else np.zeros((H, 0))

    def entropy(n):
        weights = map_[:, n, : seen[n]]
        return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)

    def near(n):
        return map_[:, n, max(0, n - REACH) : n + REACH + 1].sum(-1)

    after_first = range(1, N)
    see_further = [n for n in range(N) if max(n, seen[n] - 1 - n) > REACH]
    return {
        "previous": over(after_first, lambda n: map_[:, n, n - 1]),
        "sink": over(after_first, lambda n: map_[:, n, 0]),
        "self": over(after_first, lambda n: map_[:, n, n]),
        "local": over(see_further, near),
        "broad": over([n for n in range(N) if seen[n] > 1], lambda n: entropy(n) / np.log(seen[n])),
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
    """The mean of each score over all queries of some maps, each (H, N, N) with the ids of its N.

    Returns:
        the means, chance and the numbers of queries, by the names of scores; (H,) each.
    """
    maps = [(np.asarray(map_, np.float64), list(ids)) for map_, ids in maps]
    all_of = [rows(map_, ids, causal, unknown) for map_, ids in maps]
    even = [rows(_even(map_.shape, causal), ids, causal, unknown) for map_, ids in maps]
    found = {name: np.concatenate([one[name] for one in all_of], 1) for name in (*SCORES, *MEANS)}
    evenly = {name: np.concatenate([one[name] for one in even], 1) for name in SCORES}
    return (
        {name: one.mean(1) for name, one in found.items()},
        {name: one.mean(1) for name, one in evenly.items() if name != "broad"},
        {name: found[name].shape[1] for name in SCORES},
    )


def _even(shape, causal):
    """A map that spreads each row over all keys that the query may see."""
    allowed = np.tril(np.ones(shape[1:])) if causal else np.ones(shape[1:])
    return np.broadcast_to(allowed / allowed.sum(-1, keepdims=True), shape)
