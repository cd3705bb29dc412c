"""Layout models of text, whose input is token ids."""

# ruff: noqa: D102 - layout_truth.py documents `forward` and `by_definition`

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from layout_truth import (
    RUN,
    Attends,
    C,
    D,
    H,
    Layout,
    M,
    N,
    Truth,
    attention,
    causal,
    heads,
    softmax,
)
from torch import Tensor, nn
from torch.nn import functional as F

WORDS = 20


def ids(texts: int, length: int) -> Tensor:
    return torch.randint(WORDS, (texts, length))


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm."""

    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(C), attend
        self.mlp = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, C), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.mlp(x)

    def block_by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, output = self.attend.by_definition(self.norm(x))
        x = x + output
        return maps, x + self.mlp(x)


class TextModel(nn.Module):
    """Embedding, blocks of one kind of attention, logits; the blocks run `runs` times."""

    def __init__(self, attend: Callable[[], nn.Module], layers: int = 1, runs: int = 1) -> None:
        super().__init__()
        self.embed, self.logits = nn.Embedding(WORDS, C), nn.Linear(C, WORDS)
        self.blocks = nn.ModuleList(Block(attend()) for _ in range(layers))
        self.runs = runs

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in [*self.blocks] * self.runs:
            x = block(x)
        return self.logits(x)

    def truth(self, tokens: Tensor) -> Truth:
        blocks = [*self.blocks] * self.runs
        calls, outputs = [[] for _ in blocks], []
        for text in tokens:
            x = self.embed(text)
            for call, block in zip(calls, blocks, strict=True):
                maps, x = block.block_by_definition(x)
                call.append(maps)
            outputs.append(self.logits(x))
        calls = [call for block_maps in calls for call in _as_calls(block_maps)]
        return Truth(torch.stack(outputs), calls)


def _as_calls(text_maps: list) -> list:
    """Transpose texts and calls where a block attends several times for each text."""
    if isinstance(text_maps[0], list):
        return [list(call) for call in zip(*text_maps, strict=True)]
    return [text_maps]


class NanoGPT(nn.Module):
    """nanoGPT: a fused projection, the causal mask as a buffer, dropout of the weights."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Dropout(dropout)
        self.register_buffer("triangle", torch.ones(1, 1, 16, 16).tril())

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.qkv(x).split(C, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D))
        scores = scores.masked_fill(self.triangle[:, :, :T, :T] == 0, -math.inf)
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (heads(y) for y in self.qkv(x).split(C, dim=-1))
        maps, y = attention(q, k, v, causal(len(x)))
        return maps, self.out(y)


class InTraining(nn.Module):
    """nanoGPT's attention in training mode; its map is the one before dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = NanoGPT(dropout=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)

    def truth(self, x: Tensor) -> Truth:
        torch.manual_seed(RUN)
        drops = F.dropout(torch.ones(len(x), H, x.shape[1], x.shape[1]), 0.3, training=True)
        maps, outputs = [], []
        for text, drop in zip(x, drops.double(), strict=True):
            maps.append(self.attend.by_definition(text)[0])
            value = heads(self.attend.qkv(text).split(C, dim=-1)[2])
            outputs.append(self.attend.out(torch.cat([*((maps[-1] * drop) @ value)], dim=-1)))
        return Truth(torch.stack(outputs), [maps])


class MinGPT(Attends):
    """minGPT: separate projections; the scores are divided by the square root of the width."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        k = self.k(x).view(B, T, H, C // H).transpose(1, 2)
        q = self.q(x).view(B, T, H, C // H).transpose(1, 2)
        v = self.v(x).view(B, T, H, C // H).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores + torch.full((T, T), -math.inf, device=x.device).triu(1)
        y = scores.softmax(-1).matmul(v)
        return self.out(y.transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(*map(heads, self.projected(x)), causal(len(x)))
        return maps, self.out(y)


class SingleHead(nn.Module):
    """A single head with separate projections."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(C, D, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.query(x) @ self.key(x).transpose(-2, -1) * D**-0.5
        masked = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device)) == 0
        return F.softmax(weights.masked_fill(masked, -math.inf), dim=-1) @ self.value(x)

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inputs = (self.query(x)[None], self.key(x)[None], self.value(x)[None])
        return attention(*inputs, causal(len(x)))


class SingleHeads(nn.Module):
    """A list of single heads, concatenated: each head is a call."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.ModuleList(SingleHead() for _ in range(H)), nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))

    def by_definition(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        each = [head.by_definition(x) for head in self.heads]
        return [maps for maps, _ in each], self.out(torch.cat([y for _, y in each], dim=-1))


class Sinks(Attends):
    """gpt-oss: a learned sink column next to the scores, removed after the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(H) + 1)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        scores = torch.matmul(q, k.transpose(2, 3)) * D**-0.5
        scores = scores + torch.full((T, T), -math.inf, device=x.device).triu(1)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(B, -1, T, -1)
        scores = torch.cat([scores, sinks], dim=-1)
        scores = scores - scores.max(dim=-1, keepdim=True).values
        weights = F.softmax(scores, dim=-1)[..., :-1]
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.projected(x))
        maps = []
        for h in range(H):
            scores = q[h] @ k[h].T * D**-0.5 + causal(len(x))
            maps.append(softmax(torch.cat([self.sinks[h].expand(len(x), 1), scores], 1))[:, 1:])
        outputs = [map_ @ value for map_, value in zip(maps, v, strict=True)]
        return torch.stack(maps), self.out(torch.cat(outputs, dim=-1))


LAYOUTS = {
    "nanoGPT": Layout(lambda: TextModel(NanoGPT, 2), lambda: (ids(3, N),)),
    "minGPT, one text": Layout(lambda: TextModel(MinGPT), lambda: (ids(1, M),)),
    "single heads in a list": Layout(lambda: TextModel(SingleHeads), lambda: (ids(2, N),)),
    "gpt-oss sinks": Layout(lambda: TextModel(Sinks), lambda: (ids(2, N),)),
    "one layer, run thrice": Layout(lambda: TextModel(NanoGPT, runs=3), lambda: (ids(2, N),)),
    "dropout in training": Layout(InTraining, lambda: (torch.randn(2, N, C),), training=True),
}
