"""Changes of heads by their definitions, from the weights of eager attention.

`changed_eager` replaces the eager attention of one module of a transformers model.
"""

import sys
from contextlib import contextmanager

import torch


def new_output(weights, values, output, kind, heads, other=None):
    """The output (B, H, N, v) after a change, from weights (B, H, N, M), values (B, H, M, v) and
    `other`, the weights and values of another run."""
    B, _, N, M = weights.shape
    result = output.clone()
    for b in range(B):
        for h in heads:
            for n in range(N):
                row = weights[b, h, n]
                seen = [m for m in range(M) if row[m] > 0]
                if not seen:  # a row of padding
                    continue
                if kind == "zero":
                    new = 0 * output[b, h, n]
                elif kind == "scale":
                    new = 0.5 * output[b, h, n]
                elif kind == "first":
                    new = values[b, h, seen[0]]
                elif kind == "uniform":
                    new = sum(values[b, h, m] for m in seen) / len(seen)
                elif kind == "block" and n in (4, N - 1):  # the rest of the row is scaled up
                    kept = [m for m in seen if m not in (3, 4)]
                    lost = sum(row[m] for m in seen if m in (3, 4))
                    new = 0 * output[b, h, n]
                    for m in kept:
                        new = new + row[m] / (1 - lost) * values[b, h, m]
                elif kind == "pattern_from":
                    new = other[0][b, h, n] @ values[b, h]
                elif kind == "output_from":
                    new = other[0][b, h, n] @ other[1][b, h]
                else:
                    continue
                result = result.index_put(tuple(map(torch.tensor, (b, h, n))), new)
    return result


@contextmanager
def changed_eager(model, module, kind, heads, other=None):
    """Change heads of an eager model; yields a list of the weights and values of the module."""
    modeling = sys.modules[type(module).__module__]
    original, runs = modeling.eager_attention_forward, []

    def attend(running, query, key, value, *rest, **keywords):
        output, weights = original(running, query, key, value, *rest, **keywords)
        if running is not module:
            return output, weights
        values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        runs.append((weights, values))
        new = new_output(weights, values, output.transpose(1, 2), kind, heads, other)
        return new.transpose(1, 2), weights

    modeling.eager_attention_forward = attend
    try:
        yield runs
    finally:
        modeling.eager_attention_forward = original
