"""`MultiHeadAttention` beside bare SDPA between the same projections, and torch's own module.

    python benchmarks/attention.py

Batch 8, 1,024 tokens, width 768, 12 heads, causal, float32. Outputs are compared before anything
is timed. `nn.MultiheadAttention` returns its weights, as one must ask of it to see any.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from timing import Turns, machine
from torch import nn

from heedful.layers import MultiHeadAttention

OURS = "MultiHeadAttention"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 8), ("tokens", 1024), ("width", 768), ("heads", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.manual_seed(0)
    ours = MultiHeadAttention(options.width, options.heads, bias=True)
    theirs = copy_of(ours, options.width, options.heads)
    x = torch.randn(options.batch, options.tokens, options.width, requires_grad=True)
    forbidden = torch.ones(options.tokens, options.tokens, dtype=torch.bool).triu(1)
    ways = {
        OURS: lambda: ours(x, causal=True),
        "bare SDPA": lambda: bare(ours, x),
        "nn.MultiheadAttention": lambda: theirs(
            x, x, x, attn_mask=forbidden, need_weights=True, average_attn_weights=False
        )[0],
    }
    with torch.no_grad():
        reference = ways["bare SDPA"]()
        for name, way in ways.items():
            torch.testing.assert_close(way(), reference, atol=1e-4, rtol=1e-4, msg=name)
    print(machine())
    print(f"{'':24}{'forward':>10}{'×':>7}{'fwd+bwd':>10}{'×':>7}   (× of MultiHeadAttention)")
    forward = Turns({name: no_grad(way) for name, way in ways.items()}, options.rounds)
    both = Turns({name: with_backward(way, x) for name, way in ways.items()}, options.rounds)
    for name in ways:
        print(f"{name:24}", end="")
        for turns in (forward, both):
            print(f"{1e3 * turns.median(name):7.0f} ms{turns.ratio(name, OURS):7.2f}", end="")
        print()
    for name, peer in ((OURS, "bare SDPA"), ("nn.MultiheadAttention", OURS)):
        ratios = [f"{turns.ratio(name, peer):.3f}" for turns in (forward, both)]
        print(f"{name} / {peer}: {ratios[0]} forward, {ratios[1]} forward and backward")


def bare(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """The same projections with nothing between them but torch's kernel."""
    batch, tokens, width = x.shape
    query, key, value = (
        t.view(batch, tokens, layer.heads, -1).transpose(1, 2)
        for t in layer.projection(x).split(width, dim=-1)
    )
    context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return layer.output(context.transpose(1, 2).reshape(batch, tokens, width))


def copy_of(layer: MultiHeadAttention, width: int, heads: int) -> nn.MultiheadAttention:
    """torch's module with the same weights."""
    copy = nn.MultiheadAttention(width, heads, batch_first=True)
    with torch.no_grad():
        copy.in_proj_weight.copy_(layer.projection.weight)
        copy.in_proj_bias.copy_(layer.projection.bias)
        copy.out_proj.load_state_dict(layer.output.state_dict())
    return copy


def no_grad(way):
    def call():
        with torch.no_grad():
            way()

    return call


def with_backward(way, x):
    def call():
        x.grad = None
        way().sum().backward()

    return call


if __name__ == "__main__":
    main()
