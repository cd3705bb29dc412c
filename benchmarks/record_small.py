"""Cost of recording small models and windows with a bias, for `record.py --small`.

Each row is the time ratio of recorded and plain passes that alternate in one process. Their outputs
must be equal bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from timing import Turns
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    SwinConfig,
    SwinModel,
)

import heedful
from heedful.models import GPT, GPTConfig

Check = Callable[[str, float, float], None]


class BiasedWindows(nn.Module):
    """Attention in windows through SDPA, with a learned bias for each head."""

    def __init__(self, tokens: int = 49, width: int = 96, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(1, heads, tokens, tokens))

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each window; x is (windows, tokens, width)."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v, self.bias)
        return self.out(context.transpose(1, 2).flatten(2))


class WindowsByHand(nn.Module):
    """Shifted windows as in torchvision's Swin: products and a softmax, with a bias and a mask.

    Args:
        side: patches along each side of the image.
        size: patches along each side of a window.
    """

    def __init__(self, side: int, size: int = 7, width: int = 96, heads: int = 3, shift: int = 0):
        super().__init__()
        self.size, self.heads, self.shift = size, heads, shift
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(1, heads, size * size, size * size))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block; x is (B, side, side, width)."""
        B, side, _, width = x.shape
        size, count = self.size, side // self.size
        shifted = self.norm(x).roll((-self.shift, -self.shift), (1, 2))
        windows = shifted.view(B, count, size, count, size, width).transpose(2, 3)
        windows = windows.reshape(B * count**2, size**2, width)
        qkv = self.qkv(windows).view(len(windows), size**2, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = (q * q.shape[-1] ** -0.5) @ k.mT + self.bias
        if self.shift:
            part = torch.zeros(side, side)
            edges = (slice(0, -size), slice(-size, -self.shift), slice(-self.shift, None))
            for number, (rows, columns) in enumerate((a, b) for a in edges for b in edges):
                part[rows, columns] = number
            part = part.view(count, size, count, size).transpose(1, 2).reshape(count**2, size**2)
            mask = (part[:, None] - part[:, :, None]).ne(0) * -100.0
            scores = scores.view(B, count**2, self.heads, size**2, size**2) + mask[None, :, None]
            scores = scores.view(-1, self.heads, size**2, size**2)
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(windows.shape)
        output = self.out(context).view(B, count, count, size, size, width).transpose(2, 3)
        x = x + output.reshape(x.shape).roll((self.shift, self.shift), (1, 2))
        return x + self.mlp(x)


class ByHand(nn.Module):
    """A block whose attention is two products and a softmax, or SDPA.

    Args:
        is_fused: whether to call SDPA.
    """

    def __init__(self, is_fused: bool, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.is_fused, self.heads = is_fused, heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block with causal attention; x is (B, N, width)."""
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.is_fused:
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            masked = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.mT) * q.shape[-1] ** -0.5
            context = scores.masked_fill(masked, float("-inf")).softmax(-1) @ v
        x = x + self.out(context.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class FTTransformer(nn.Module):
    """Attention between the columns of each row of a table (Gorishniy et al., 2021)."""

    def __init__(self, columns: int = 12, width: int = 32, layers: int = 3, heads: int = 4):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(columns, width)) for _ in range(2))
        self.heads = heads
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))

    def forward(self, rows: Tensor) -> Tensor:
        """Return a vector per row; rows is (rows, columns)."""
        x = rows[..., None] * self.weight + self.bias
        for layer in self.layers:
            q, k, v = layer(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x.mean(1)


def milliseconds() -> Iterator[tuple[str, nn.Module, Tensor, float]]:
    """Yield models whose pass takes about a millisecond: name, model, input, target."""
    x, ids = torch.randn(1, 32, 64), torch.randint(99, (1, 32))
    for is_fused in (False, True):
        model = nn.Sequential(*(ByHand(is_fused) for _ in range(3))).eval()
        yield ("by SDPA" if is_fused else "by hand"), model, x, (2.0 if is_fused else 4.0)
    gpt = GPT(GPTConfig(vocabulary=99, context_length=32, width=64, layers=3, heads=4))
    yield "heedful's GPT", gpt.eval(), ids, 2.0
    config = LlamaConfig(
        vocab_size=99, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4,
    )  # fmt: skip
    yield "Llama of transformers", LlamaForCausalLM(config).eval(), ids, 2.0


def first_of(output: Any) -> Tensor:
    """Return the output, or its first tensor if it has several."""
    return output if isinstance(output, Tensor) else output[0]


def recorded(model: nn.Module, run: Callable[[], Tensor], rounds: int) -> float:
    """Return the time ratio of recorded and plain runs that alternate."""
    expected = run()

    def recording() -> None:
        with heedful.record(model):
            output = run()
        if not torch.equal(output, expected):
            raise SystemExit("recording changed the output of the model")

    return Turns({"plain": run, "recorded": recording}, rounds).ratio("recorded", "plain")


def swin(batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    config = SwinConfig(image_size=224, depths=[2, 2], num_heads=[3, 6])
    model = SwinModel(config).eval()
    image = torch.randn(batch, 3, 224, 224)
    return model, lambda: model(image)[0]


def generating(model: Any, tokens: int = 64) -> tuple[nn.Module, Callable[[], Tensor]]:
    ids = torch.randint(5, 500, (1, 16))
    return model, lambda: model.generate(
        ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
    )


@torch.no_grad()
def small(rounds: int, verdict: Check) -> None:
    torch.manual_seed(0)
    for windows in (64, 256, 1024):
        model, x = BiasedWindows().eval(), torch.randn(windows, 49, 96)
        ratio = recorded(model, lambda model=model, x=x: model(x), rounds)
        verdict(f"SDPA with a bias, {windows:,} windows", ratio, 1.4)
    verdict("Swin of transformers, batch 4", recorded(*swin(4), rounds), 1.4)
    model = nn.Sequential(*(WindowsByHand(56, shift=shift) for shift in (0, 3, 0, 3))).eval()
    x = torch.randn(4, 56, 56, 96)
    verdict("Swin by hand, batch 4", recorded(model, lambda: model(x), rounds), 1.4)

    table, rows = FTTransformer().eval(), torch.randn(1024, 12)
    seconds = []
    for _ in range(rounds):
        with heedful.record(table) as recording:
            table(rows)
        began = time.perf_counter()
        if any(call.proof == "refuted" for call in recording):
            raise SystemExit("a call is refuted")
        seconds.append((time.perf_counter() - began) / len(recording))
    first_look = sorted(seconds)[len(seconds) // 2]
    verdict("first `proof` of a call, 1,024 table rows, s", first_look, 0.2)

    gpt2 = GPT2LMHeadModel(
        GPT2Config(vocab_size=512, n_positions=128, n_embd=128, n_layer=4, n_head=4, eos_token_id=2)
    ).eval()
    verdict("generate, small GPT-2", recorded(*generating(gpt2), rounds), 1.4)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
        )
    ).eval()
    verdict("generate, small Llama", recorded(*generating(llama), rounds), 1.4)
    for name, model, x, target in milliseconds():
        ratio = recorded(model, lambda model=model, x=x: first_of(model(x)), 9 * rounds)
        verdict(f"a pass of about 1 ms, {name}", ratio, target)
