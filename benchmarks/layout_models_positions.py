"""Layout models with rotary positions, position biases or gathered relative positions."""

# ruff: noqa: D102 - layout_truth.py documents `forward` and `by_definition`

from __future__ import annotations

import math

import torch
from layout_models_text import WORDS, TextModel, ids
from layout_truth import (
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
    padding_bias,
)
from torch import Tensor, nn
from torch.nn import functional as F


def turns(length: int, width: int, like: Tensor) -> Tensor:
    """Return the rotary angle of each position and pair."""
    rates = 100.0 ** -(torch.arange(0, width, 2, device=like.device) / width)
    return (torch.arange(length, device=like.device)[:, None] * rates).to(like.dtype)


def rotated_pairs(x: Tensor) -> Tensor:
    """Rotate (…, length, width) by position; neighbouring entries form a complex number."""
    number = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    angle = turns(x.shape[-2], x.shape[-1], x)
    return torch.view_as_real(number * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class Llama(Attends):
    """llama2.c: rotary pairs as real and imaginary parts; keys repeated per query head."""

    def __init__(self) -> None:
        super().__init__(width=6 * D, keys=2 * D)

    def rotated(self, x: Tensor) -> Tensor:
        angle = turns(x.shape[1], D, x)[None, :, None]
        real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
        first = real * angle.cos() - imaginary * angle.sin()
        return torch.stack([first, real * angle.sin() + imaginary * angle.cos()], -1).flatten(3)

    def repeated(self, x: Tensor) -> Tensor:
        B, T, G, _ = x.shape
        return x[:, :, :, None, :].expand(B, T, G, 3, D).reshape(B, T, G * 3, D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, -1, D) for y in self.projected(x))
        q, k, v = self.rotated(q), self.repeated(self.rotated(k)), self.repeated(v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(D)
        masked = torch.full((1, 1, T, T), -math.inf, device=x.device)
        scores = scores + masked.triu(diagonal=1)
        y = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(q), v)
        return self.out(y.transpose(1, 2).contiguous().view(B, T, -1))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        q, k = rotated_pairs(heads(q, 6)), rotated_pairs(heads(k, 2))
        maps, y = attention(q, k, heads(v, 2), causal(len(x)))
        return maps, self.out(y)


class NeoX(nn.Module):
    """GPT-NeoX: query, key and value side by side per head, half rotary, baddbmm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def rotated(self, x: Tensor) -> Tensor:
        first, rest = x[..., : D // 2], x[..., D // 2 :]
        angle = turns(x.shape[2], D // 2, x).repeat(1, 2)
        half = torch.cat((-first[..., D // 4 :], first[..., : D // 4]), dim=-1)
        return torch.cat((first * angle.cos() + half * angle.sin(), rest), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        qkv = self.qkv(x).view(B, T, H, 3 * D)
        q, k, v = (y.permute(0, 2, 1, 3) for y in qkv.split(D, dim=-1))
        q, k = (self.rotated(y).reshape(B * H, T, D) for y in (q, k))
        zeros = torch.zeros(B * H, T, T, dtype=q.dtype, device=x.device)
        scores = torch.baddbmm(zeros, q, k.transpose(1, 2), beta=1.0, alpha=D**-0.5)
        masked = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.view(B, H, T, T).masked_fill(masked, torch.finfo(scores.dtype).min)
        y = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out(y.permute(0, 2, 1, 3).contiguous().view(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).view(len(x), H, 3, D).permute(2, 1, 0, 3)
        q, k = (torch.cat((rotated_pairs(y[..., :2]), y[..., 2:]), -1) for y in (q, k))
        maps, y = attention(q, k, v, causal(len(x)))
        return maps, self.out(y)


class Bloom(nn.Module):
    """BLOOM: ALiBi slopes, added by baddbmm to the scores (batch · heads, N, N)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, H, 3, D).unbind(3)
        q = q.transpose(1, 2).reshape(B * H, T, D)
        k = k.permute(0, 2, 3, 1).reshape(B * H, D, T)
        v = v.transpose(1, 2).reshape(B * H, T, D)
        slopes = 2.0 ** -torch.arange(1, H + 1, device=x.device)[:, None, None]
        alibi = (slopes * torch.arange(T, device=x.device)).repeat(B, 1, 1).to(x.dtype)
        scores = alibi.baddbmm(q, k, beta=1.0, alpha=D**-0.5).view(B, H, T, T)
        masked = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)[None, None]
        weights = F.softmax(scores.masked_fill(masked, -1e30), dim=-1).view(B * H, T, T)
        y = torch.bmm(weights, v).view(B, H, T, D).permute(0, 2, 1, 3).reshape(B, T, C)
        return self.out(y)

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).view(len(x), H, 3, D).permute(2, 1, 0, 3)
        distance = torch.stack([0.5 ** (h + 1) * torch.arange(len(x)).double() for h in range(H)])
        maps, y = attention(q, k, v, distance[:, None] + causal(len(x)))
        return maps, self.out(y)


class T5(Attends):
    """T5: a bias per head and distance, no scale, and an additive mask for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.bias = nn.Embedding(WORDS, C), nn.Embedding(7, H)

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(tokens) / 2
        B, T, _ = x.shape
        q, k, v = (y.view(B, -1, H, D).transpose(1, 2) for y in self.projected(x))
        scores = torch.matmul(q, k.transpose(3, 2))
        position = torch.arange(T, device=x.device)
        distance = (position[None] - position[:, None]).clamp(-3, 3) + 3
        bias = self.bias(distance).permute(2, 0, 1).unsqueeze(0)
        scores = scores + (bias + (1.0 - attention_mask[:, None, None]) * -1e9)
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        y = torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, -1, C)
        return self.out(y)

    def by_definition(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        distance = [[max(-3, min(3, m - n)) + 3 for m in range(len(x))] for n in range(len(x))]
        bias = self.bias.weight[torch.tensor(distance)].permute(2, 0, 1) + padding_bias(keep)
        maps, y = attention(*map(heads, self.projected(x)), bias, scale=1.0)
        return maps, self.out(y)

    def truth(self, tokens: Tensor, attention_mask: Tensor) -> Truth:
        keeps = attention_mask.bool()
        each = [
            self.by_definition(self.embed(text) / 2, keep)
            for text, keep in zip(tokens, keeps, strict=True)
        ]
        full = [maps for maps, _ in each]
        real = [maps[:, keep][..., keep] for maps, keep in zip(full, keeps, strict=True)]
        return Truth(torch.stack([y for _, y in each]), [real], ([full],))


class Deberta(Attends):
    """DeBERTa: content-to-position and position-to-content scores, gathered by distance."""

    SPAN = 4

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(2 * self.SPAN, C)

    def split(self, x: Tensor) -> Tensor:
        """Reshape (B, T, C) to (B · H, T, d)."""
        return x.view(*x.shape[:-1], H, -1).permute(0, 2, 1, 3).reshape(-1, x.shape[1], D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (self.split(y) for y in self.projected(x))
        places = self.places.weight[None] / 2
        place_k = self.split(self.k(places)).repeat(B, 1, 1)
        place_q = self.split(self.q(places)).repeat(B, 1, 1)
        position = torch.arange(T, device=x.device)
        distance = position[:, None] - position[None]
        index = (distance + self.SPAN).clamp(0, 2 * self.SPAN - 1)[None].expand(B * H, T, T)
        scale = math.sqrt(3 * D)
        scores = torch.bmm(q, k.transpose(-1, -2) / scale)
        of_content = torch.bmm(q, place_k.transpose(-1, -2))
        scores = scores + torch.gather(of_content, -1, index) / scale
        of_place = torch.bmm(k, place_q.transpose(-1, -2))
        back = (-distance + self.SPAN).clamp(0, 2 * self.SPAN - 1)[None].expand(B * H, T, T)
        scores = scores + torch.gather(of_place, -1, back).transpose(-1, -2) / scale
        weights = torch.softmax(scores.view(B, H, T, T), dim=-1)
        y = torch.bmm(weights.view(-1, T, T), v).view(B, H, T, D).permute(0, 2, 1, 3)
        return self.out(y.reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.projected(x))
        place_q, place_k, _ = map(heads, self.projected(self.places.weight / 2))
        bias = torch.zeros(H, len(x), len(x), dtype=x.dtype)
        for n in range(len(x)):
            for m in range(len(x)):
                ahead = max(0, min(2 * self.SPAN - 1, n - m + self.SPAN))
                bias[:, n, m] = (q[:, n] * place_k[:, ahead]).sum(-1)
                bias[:, n, m] += (k[:, m] * place_q[:, ahead]).sum(-1)
        scale = (3 * D) ** -0.5
        maps, y = attention(q, k, v, bias * scale, scale)
        return maps, self.out(y)


class TransformerXL(nn.Module):
    """Transformer-XL: positions first, softmax over axis 1 of 4, distances by a shift."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(WORDS, C), nn.Linear(C, 3 * C, bias=False)
        self.r, self.out = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.u, self.w = (nn.Parameter(torch.randn(H, D)) for _ in range(2))

    def places(self, length: int, like: Tensor) -> Tensor:
        """Return the sines and cosines of each distance, the largest first."""
        rates = 100.0 ** -(torch.arange(0, C, 2, device=like.device) / C)
        angle = torch.arange(length - 1, -1, -1, device=like.device)[:, None] * rates
        return torch.cat([angle.sin(), angle.cos()], -1).to(like.dtype)

    def shifted(self, x: Tensor) -> Tensor:
        zero = torch.zeros((x.size(0), 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
        padded = torch.cat([zero, x], dim=1)
        return padded.view(x.size(1) + 1, x.size(0), *x.shape[2:])[1:].view_as(x)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        T, B, _ = x.shape
        q, k, v = (y.view(T, B, H, D) for y in torch.chunk(self.qkv(x), 3, dim=-1))
        r = self.r(self.places(T, x)).view(T, H, D)
        content = torch.einsum("ibnd,jbnd->ijbn", (q + self.u, k))
        place = self.shifted(torch.einsum("ibnd,jnd->ijbn", (q + self.w, r)))
        scores = (content + place) * D**-0.5
        masked = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = F.softmax(scores.masked_fill(masked[:, :, None, None], -math.inf), dim=1)
        y = torch.einsum("ijbn,jbnd->ibnd", (weights, v)).contiguous().view(T, B, C)
        return self.out(y) + x

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.qkv(x).chunk(3, dim=-1))
        r = heads(self.r(self.places(len(x), x))).flip(1)  # by distance
        bias = causal(len(x)).repeat(H, 1, 1)
        for h in range(H):
            for n in range(len(x)):
                for m in range(n + 1):
                    bias[h, n, m] = (q[h, n] + self.w[h]) @ r[h, n - m] * D**-0.5
        maps, y = attention(q + self.u[:, None], k, v, bias)
        return maps, self.out(y) + x

    def truth(self, tokens: Tensor) -> Truth:
        each = [self.by_definition(self.embed(text)) for text in tokens.T]
        return Truth(torch.stack([y for _, y in each], 1), [[maps for maps, _ in each]])


LAYOUTS = {
    "llama2.c": Layout(lambda: TextModel(Llama, 2), lambda: (ids(2, N),)),
    "GPT-NeoX": Layout(lambda: TextModel(NeoX), lambda: (ids(2, M),)),
    "BLOOM": Layout(lambda: TextModel(Bloom), lambda: (ids(3, N),)),
    "T5, padded": Layout(T5, lambda: (ids(2, M), torch.tensor([[1] * M, [1] * N + [0] * 2]))),
    "DeBERTa": Layout(lambda: TextModel(Deberta), lambda: (ids(2, M),)),
    "Transformer-XL, one text": Layout(TransformerXL, lambda: (ids(M, 1),)),
    "Transformer-XL": Layout(TransformerXL, lambda: (ids(N, 3),)),
}
