"""Models of the library transformers with large random weights, so that attention is peaked."""

import copy

import torch
import transformers


def pair(name, config, implementation="sdpa", seed=3):
    """Return a model of a class, and a copy with eager attention."""
    kind, generator = getattr(transformers, name), torch.Generator().manual_seed(seed)
    eager = kind._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.normal_(std=0.3, generator=generator)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    model.load_state_dict(eager.state_dict())
    return model, eager
