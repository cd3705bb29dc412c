"""A reference implementation of attention in NumPy, with loops and float64."""

import numpy as np


def numpy(tensor):
    return tensor.detach().double().cpu().numpy()


def attention(query, key, value, allowed=None, bias=None, scale=None):
    """Return output and weights for (..., H, N, d) with grouped key heads, or for fewer axes."""
    query, key, value = numpy(query), numpy(key), numpy(value)
    lead = query.shape[:-2]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    shape = (*lead, query.shape[-2], key.shape[-2])
    weights = np.zeros(shape)
    output = np.zeros((*shape[:-1], value.shape[-1]))
    allowed = np.broadcast_to(True if allowed is None else np.asarray(allowed), shape)
    bias = np.broadcast_to(0.0 if bias is None else numpy(bias), shape)
    for index in np.ndindex(*shape[:-1]):
        head = _key_index(index[:-1], query, key)
        scores = [scale * float(np.dot(query[index], k)) for k in key[head]] + bias[index]
        keys = np.flatnonzero(allowed[index])
        if len(keys) == 0:
            continue
        powers = np.exp(scores[keys] - scores[keys].max())
        weights[index][keys] = powers / powers.sum()
        for m in keys:
            output[index] += weights[index][m] * value[head][m]
    return output, weights


def _key_index(lead, query, key):
    if query.ndim < 4:
        return lead
    groups = query.shape[-3] // key.shape[-3]
    return (*lead[:-1], lead[-1] // groups)
