"""Models of transformers with peaked attention, whose maps are far from even."""

import copy

import torch
import transformers


def pair(name, config, implementation="sdpa", seed=3):
    """A model of a class, and the same one with eager attention."""
    kind, generator = getattr(transformers, name), torch.Generator().manual_seed(seed)
    eager = kind._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.normal_(std=0.3, generator=generator)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    model.load_state_dict(eager.state_dict())
    return model, eager
