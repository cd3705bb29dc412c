"""Every form of attention as a layer, each beside a peer with the same weights.

    python benchmarks/attention.py

`MultiHeadAttention` beside bare SDPA between the same projections and torch's own module (batch
8, 1,024 tokens, width 768, 12 heads, causal, float32; `nn.MultiheadAttention` returns its weights,
as one must ask of it to see any). `StackedHeads`, the heads one by one, beside the one product, at
that size and at one for learning (batch 8, 64 tokens, width 96). Layers with one head beside the
bare kernel. Outputs are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from timing import Turns, machine
from torch import Tensor, nn

from heedful.layers import (
    CausalAttention,
    CrossAttention,
    MultiHeadAttention,
    SelfAttention,
    SimpleSelfAttention,
    StackedHeads,
)

Ways = Mapping[str, Callable[[], Tensor]]
OURS = "MultiHeadAttention"
HEADS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 8), ("tokens", 1024), ("width", 768), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(machine())
    many_heads(options.batch, options.tokens, options.width, options.rounds)
    many_heads(8, 64, 96, 5 * options.rounds)
    many_heads(4, 16, 96, 5 * options.rounds)
    one_head(8, 1024, 64, options.rounds)


def many_heads(batch: int, tokens: int, width: int, rounds: int) -> None:
    ours = MultiHeadAttention(width, HEADS, bias=True)
    stacked, theirs = StackedHeads.from_product(ours), copy_of(ours, width)
    x = torch.randn(batch, tokens, width, requires_grad=True)
    forbidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    compare(
        f"batch {batch}, {tokens:,} tokens, width {width}, {HEADS} heads, causal",
        {
            OURS: lambda: ours(x, causal=True),
            "bare SDPA": lambda: bare(ours, x),
            "nn.MultiheadAttention": lambda: theirs(
                x, x, x, attn_mask=forbidden, need_weights=True, average_attn_weights=False
            )[0],
            "StackedHeads": lambda: stacked(x, causal=True),
        },
        [("bare SDPA", [OURS]), (OURS, ["nn.MultiheadAttention", "StackedHeads"])],
        x,
        rounds,
    )


def one_head(batch: int, tokens: int, width: int, rounds: int) -> None:
    x = torch.randn(batch, tokens, width, requires_grad=True)
    memory = torch.randn(batch, tokens // 2, width)
    simple, cross = SimpleSelfAttention(), CrossAttention(width)
    projected = SelfAttention(width, width // 4, project_back=True, residual=True)
    layers = {"SelfAttention": SelfAttention(width), "CausalAttention": CausalAttention(width)}
    pairs: list[tuple[str, Callable[[], Tensor], Callable[[], Tensor]]] = [
        ("SimpleSelfAttention", lambda: simple(x), lambda: sdpa(x, x, x, scale=1.0)),
        (
            "projected back",
            lambda: projected(x),
            lambda: x + projected.output(kernel(projected, x)),
        ),
        ("CrossAttention", lambda: cross(x, memory), lambda: bare_cross(cross, x, memory)),
    ]
    for name, layer in layers.items():
        causal = name == "CausalAttention"
        pairs.append(
            (
                name,
                lambda layer=layer: layer(x),
                lambda layer=layer, causal=causal: kernel(layer, x, is_causal=causal),
            )
        )
    for name, ours, peer in pairs:
        compare(
            f"{name}, batch {batch}, {tokens:,} tokens, width {width}, one head",
            {name: ours, "bare SDPA": peer},
            [("bare SDPA", [name])],
            x,
            rounds,
        )


def compare(
    title: str, ways: Ways, pairs: list[tuple[str, list[str]]], x: Tensor, rounds: int
) -> None:
    """A table of times, and the ratios of the pairs: (to, [those whose ratio to it is shown])."""
    with torch.no_grad():
        first, *others = [way() for way in ways.values()]
        for name, other in zip(list(ways)[1:], others, strict=True):
            torch.testing.assert_close(other, first, atol=1e-4, rtol=1e-4, msg=name)
    print(f"\n{title}\n{'':24}{'forward':>12}{'with backward':>16}")
    forward = Turns({name: no_grad(way) for name, way in ways.items()}, rounds)
    both = Turns({name: with_backward(way, x) for name, way in ways.items()}, rounds)
    for name in ways:
        print(f"{name:24}{1e3 * forward.median(name):9.1f} ms{1e3 * both.median(name):13.1f} ms")
    for to, names in pairs:
        for name in names:
            ratios = " ".join(f"{turns.ratio(name, to):15.3f}" for turns in (forward, both))
            print(f"{name + ' / ' + to:20}{ratios}")


def sdpa(query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    """torch's kernel, in the form with four axes that it is fast in."""
    four = (tensor[:, None] for tensor in (query, key, value))
    return F.scaled_dot_product_attention(*four, **options)[:, 0]


def kernel(layer: SelfAttention, x: Tensor, **options) -> Tensor:
    return sdpa(layer.query(x), layer.key(x), layer.value(x), **options)


def bare_cross(layer: CrossAttention, x: Tensor, memory: Tensor) -> Tensor:
    return layer.output(sdpa(layer.query(x), *layer.memory(memory).chunk(2, dim=-1)))


def bare(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """The same projections with nothing between them but torch's kernel."""
    batch, tokens, width = x.shape
    query, key, value = (
        t.view(batch, tokens, layer.heads, -1).transpose(1, 2)
        for t in layer.projection(x).split(width, dim=-1)
    )
    context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return layer.output(context.transpose(1, 2).reshape(batch, tokens, width))


def copy_of(layer: MultiHeadAttention, width: int) -> nn.MultiheadAttention:
    """torch's module with the same weights."""
    copy = nn.MultiheadAttention(width, layer.heads, batch_first=True)
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
