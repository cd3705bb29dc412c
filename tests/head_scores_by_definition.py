"""Head scores computed by their definitions, in loops; and the scores of a call to compare."""

import numpy as np

from heedful.head_kinds import MEANS, REACH, SCORES
from heedful.recording.head_scores import evidence


def means(call):
    """Return the scores, entropy and distance of a call by name, (H,) each."""
    return {name: score.mean for name, score in evidence(call).items()}


def rows(map_, ids, causal=True, unknown=None):
    """Return each score of a self-attention map for the queries that have it, (H, q), float64."""
    H, N, _ = map_.shape
    visible = [n + 1 if causal else N for n in range(N)]

    def earlier(n, offset):
        """Return the keys before n that are `offset` tokens after an occurrence of token n."""
        is_known = ids[n] != unknown
        return [m for m in range(offset, n) if is_known and ids[m - offset] == ids[n]]

    def scores(queries, score):
        values = [score(n) for n in queries]
        return np.stack(values, 1) if values else np.zeros((H, 0))

    def entropy(n):
        weights = map_[:, n, : visible[n]]
        return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)

    def local(n):
        return map_[:, n, max(0, n - REACH) : n + REACH + 1].sum(-1)

    after_first = range(1, N)
    has_choice = [n for n in range(N) if visible[n] > 1]
    has_distant_keys = [n for n in range(N) if max(n, visible[n] - 1 - n) > REACH]
    return {
        "previous": scores(after_first, lambda n: map_[:, n, n - 1]),
        "sink": scores(after_first, lambda n: map_[:, n, 0]),
        "self": scores(has_choice, lambda n: map_[:, n, n]),
        "local": scores(has_distant_keys, local),
        "broad": scores(has_choice, lambda n: entropy(n) / np.log(visible[n])),
        "induction": scores(
            [n for n in range(N) if earlier(n, 1)], lambda n: map_[:, n, earlier(n, 1)].sum(-1)
        ),
        "duplicate": scores(
            [n for n in range(N) if earlier(n, 0)], lambda n: map_[:, n, earlier(n, 0)].sum(-1)
        ),
        "entropy": scores(range(N), entropy),
        "distance": scores(range(N), lambda n: map_[:, n] @ np.abs(n - np.arange(N))),
    }


def over_texts(maps, causal=True, unknown=None):
    """Return the mean, the chance and the number of queries of each score over several texts.

    `maps` are pairs of a map (H, N, N) and its token ids. Means and chances are (H,).
    """
    maps = [(np.asarray(map_, np.float64), list(ids)) for map_, ids in maps]
    texts = [rows(map_, ids, causal, unknown) for map_, ids in maps]
    uniform_texts = [rows(_uniform(map_.shape, causal), ids, causal, unknown) for map_, ids in maps]
    scores = {name: np.concatenate([x[name] for x in texts], 1) for name in (*SCORES, *MEANS)}
    uniform = {name: np.concatenate([x[name] for x in uniform_texts], 1) for name in SCORES}
    return (
        {name: values.mean(1) for name, values in scores.items()},
        {name: values.mean(1) for name, values in uniform.items() if name != "broad"},
        {name: scores[name].shape[1] for name in SCORES},
    )


def _uniform(shape, causal):
    """Return the map of uniform attention."""
    allowed = np.tril(np.ones(shape[1:])) if causal else np.ones(shape[1:])
    return np.broadcast_to(allowed / allowed.sum(-1, keepdims=True), shape)
