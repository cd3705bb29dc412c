"""What a model's weights are before the first step, where a recipe wants other than its own."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def begin_with(model: nn.Module, initial: str) -> None:
    """Set the weights that training begins with, in place.

    "normal" leaves those that the model drew. "zero" makes each block add nothing at first: the
    last product of attention and of the feed-forward layer is 0, as in Zhang et al. 2019,
    *Fixup* (arXiv:1901.09321), and modded-nanogpt.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=1))
    >>> begin_with(model, "zero")
    >>> states = model(torch.tensor([[1, 2, 3]])).hidden_states
    >>> bool((states[1] == model.norm(states[0])).all())
    True
    """
    if initial == "normal":
        return
    for blocks in model.modules():
        if isinstance(blocks, nn.ModuleList):
            for name, parameter in blocks.named_parameters():
                if name.endswith("output.weight"):
                    parameter.zero_()
