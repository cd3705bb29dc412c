"""Models without heads or edges, made by hand, and what they predict."""

import copy

import torch

WIDTH = 4  # of a head in `small_models`


def predicted(model, ids):
    """Return the loss of each token after the first, and the next tokens' probabilities (N, V)."""
    with torch.no_grad():
        chances = model(ids[None]).logits[0].double().softmax(-1)
    return -chances[:-1].gather(1, ids[1:, None])[:, 0].log(), chances


def reduced(model, projection, heads, row=slice(None), new=0.0):
    """Return a copy of a model whose output projection reads `new` from heads, in some rows."""
    model = copy.deepcopy(model)

    def changed(module, inputs):
        output = inputs[0].clone()
        for head in heads:
            output[0, row, head * WIDTH : (head + 1) * WIDTH] = new
        return (output,)

    model.get_submodule(projection).register_forward_pre_hook(changed)
    return model


def row_without(call, head, query, key):
    """Return the output of a row without a key: its other weights are scaled to sum to 1."""
    weights = call.weights(head)[query].clone()
    weights[key] = 0
    return weights / weights.sum() @ call.value[head].float()
