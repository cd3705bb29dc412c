"""Speed of each attention layer, compared with torch's attention on the same weights.

    python benchmarks/attention.py [--device cuda]

`MultiHeadAttention` is compared with three peers: bare SDPA between the same projections,
`nn.MultiheadAttention` (which returns its weights here), and `StackedHeads`, which computes its
heads one after another. All four have 12 heads, are causal and compute in float32. At batch 8,
1,024 tokens and width 768, arithmetic takes most of the time. At the small batch of document 004
(after Zhang), the number of products determines the time. Layers with one head are compared with
the bare kernel. Outputs and gradients are compared before the timing. The last table shows at which
sizes StackedHeads takes at least three times as long as MultiHeadAttention.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import chain

import torch
import torch.nn.functional as F
from placed import add_device, on
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
NAME = 44  # characters of the first column
TARGET = 3.0  # minimum time of StackedHeads / MultiHeadAttention, forward and backward
SMALLER = [(8, 64, 768), (8, 64, 96), (4, 16, 96)]  # batch, tokens, width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 8), ("tokens", 1024), ("width", 768), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    add_device(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(machine())
    first = (options.batch, options.tokens, options.width)
    device, rounds = options.device, options.rounds
    ratios = {first: many_heads(*first, rounds, device)}
    ratios |= {size: many_heads(*size, 5 * rounds, device) for size in SMALLER}
    one_head(8, 1024, 64, rounds, device)
    print(f"\nStackedHeads / {OURS}, with backward; target: at least {TARGET:g}")
    for (batch, tokens, width), ratio in ratios.items():
        size = f"batch {batch}, {tokens:,} tokens, width {width}"
        print(f"{size:{NAME}}{ratio:12.3f}  {'met' if ratio >= TARGET else 'missed'}")


def many_heads(batch: int, tokens: int, width: int, rounds: int, device: str) -> float:
    """Print the table of one size; return StackedHeads / MultiHeadAttention, with backward."""
    ours = MultiHeadAttention(width, HEADS, bias=True)
    stacked, peer = StackedHeads.from_product(ours), copy_of(ours, width)
    ours, stacked, peer = on(device, (ours, stacked, peer))
    x = on(device, torch.randn(batch, tokens, width)).requires_grad_()
    forbidden = on(device, torch.ones(tokens, tokens, dtype=torch.bool).triu(1))
    both = compare(
        f"batch {batch}, {tokens:,} tokens, width {width}, {HEADS} heads, causal",
        {
            OURS: lambda: ours(x, causal=True),
            "bare SDPA": lambda: bare(ours, x),
            "nn.MultiheadAttention": lambda: peer(
                x, x, x, attn_mask=forbidden, need_weights=True, average_attn_weights=False
            )[0],
            "StackedHeads": lambda: stacked(x, causal=True),
        },
        [("bare SDPA", [OURS]), (OURS, ["nn.MultiheadAttention", "StackedHeads"])],
        [x, *chain(*(layer.parameters() for layer in (ours, stacked, peer)))],
        rounds,
    )
    return both.ratio("StackedHeads", OURS)


def one_head(batch: int, tokens: int, width: int, rounds: int, device: str) -> None:
    x = on(device, torch.randn(batch, tokens, width)).requires_grad_()
    memory = on(device, torch.randn(batch, tokens // 2, width))
    simple, trainable, causal = SimpleSelfAttention(), SelfAttention(width), CausalAttention(width)
    projected = SelfAttention(width, width // 4, project_back=True, residual=True)
    cross = CrossAttention(width)
    for layer in (simple, trainable, causal, projected, cross):
        on(device, layer)
    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "SimpleSelfAttention": (lambda: simple(x), lambda: sdpa(x, x, x, scale=1.0)),
        "SelfAttention": (lambda: trainable(x), lambda: kernel(trainable, x)),
        "projected back": (
            lambda: projected(x),
            lambda: x + projected.output(kernel(projected, x)),
        ),
        "CausalAttention": (lambda: causal(x), lambda: kernel(causal, x, is_causal=True)),
        "CrossAttention": (lambda: cross(x, memory), lambda: bare_cross(cross, x, memory)),
    }
    parameters = chain(*(layer.parameters() for layer in (trainable, projected, causal, cross)))
    leaves = [x, *parameters]
    for name, (ours, peer) in pairs.items():
        compare(
            f"{name}, batch {batch}, {tokens:,} tokens, width {width}, one head",
            {name: ours, "bare SDPA": peer},
            [("bare SDPA", [name])],
            leaves,
            rounds,
        )


def compare(
    title: str,
    ways: Ways,
    pairs: list[tuple[str, list[str]]],
    leaves: list[Tensor],
    rounds: int,
) -> Turns:
    """Print a table of times, and for each pair (base, names) the ratios name / base."""
    check_equal(ways, leaves[0])
    print(f"\n{title}\n{'':{NAME}}{'forward':>12}{'with backward':>16}")
    forward = Turns({name: no_grad(way) for name, way in ways.items()}, rounds)
    both = Turns({name: with_backward(way, leaves) for name, way in ways.items()}, rounds)
    for name in ways:
        times = f"{1e3 * forward.median(name):9.1f} ms{1e3 * both.median(name):13.1f} ms"
        print(f"{name:{NAME}}{times}")
    for base, names in pairs:
        for name in names:
            ratios = f"{forward.ratio(name, base):12.3f}{both.ratio(name, base):16.3f}"
            print(f"{name + ' / ' + base:{NAME}}{ratios}")
    return both


def check_equal(ways: Ways, x: Tensor) -> None:
    """Raise an error unless all ways give the same output and gradient with respect to x."""
    expected = None
    for name, way in ways.items():
        output = way()
        (gradient,) = torch.autograd.grad(output.sum(), x)
        expected = expected or (output.detach(), gradient)
        for tensor, first in zip((output.detach(), gradient), expected, strict=True):
            torch.testing.assert_close(
                tensor, first, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )


def sdpa(query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    """Call torch's SDPA with an axis of one head, since its fast kernels need this axis."""
    four = (tensor[:, None] for tensor in (query, key, value))
    return F.scaled_dot_product_attention(*four, **options)[:, 0]


def kernel(layer: SelfAttention, x: Tensor, **options) -> Tensor:
    return sdpa(layer.query(x), layer.key(x), layer.value(x), **options)


def bare_cross(layer: CrossAttention, x: Tensor, memory: Tensor) -> Tensor:
    return layer.output(sdpa(layer.query(x), *layer.memory(memory).chunk(2, dim=-1)))


def bare(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """Apply the layer's projections, with torch's SDPA alone between them."""
    batch, tokens, width = x.shape
    query, key, value = (
        t.view(batch, tokens, layer.heads, -1).transpose(1, 2)
        for t in layer.projection(x).split(width, dim=-1)
    )
    context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return layer.output(context.transpose(1, 2).reshape(batch, tokens, width))


def copy_of(layer: MultiHeadAttention, width: int) -> nn.MultiheadAttention:
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


def with_backward(way, leaves):
    def call():
        for leaf in leaves:  # otherwise the time would include adding to old gradients
            leaf.grad = None
        way().sum().backward()

    return call


if __name__ == "__main__":
    main()
