"""Layout models with explicit products: einsum, shared key heads, heads in unusual axes."""

# ruff: noqa: D102 - layout_truth.py documents `forward` and `by_definition`

from __future__ import annotations

import math

import torch
from layout_models_text import TextModel, ids
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
    per_text,
    softmax,
)
from torch import Tensor, nn
from torch.nn import functional as F

G, R = 2, 3  # key heads, query heads per key head


class Packed(Attends):
    """GPTBigCode: one key head; the query heads are packed into the axis of queries."""

    def __init__(self) -> None:
        super().__init__(width=C, keys=D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.projected(x)
        scores = torch.bmm(q.reshape(B, T * H, D), k.transpose(1, 2)).view(B, T, H, T) * D**-0.5
        allowed = torch.ones(T, T, dtype=torch.bool, device=x.device).tril().view(1, T, 1, T)
        scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1)
        return self.out(torch.bmm(weights.view(B, T * H, T), v).view(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        maps, y = attention(heads(q), k[None], v[None], causal(len(x)))
        return maps, self.out(y)


class PackedHeads(Packed):
    """One key head; the axis of queries holds all queries of head 0, then of head 1, …"""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.projected(x)
        q = q.view(B, T, H, D).transpose(1, 2).reshape(B, H * T, D)
        weights = (q @ k.mT * D**-0.5).softmax(dim=-1)
        y = (weights @ v).view(B, H, T, D).transpose(1, 2)
        return self.out(y.reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        maps, y = attention(heads(q), k[None], v[None])
        return maps, self.out(y)


class Grouped(Attends):
    """Grouped heads in two einsums, with the query heads of a group on a separate axis."""

    def __init__(self) -> None:
        super().__init__(width=G * R * D, keys=G * D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.projected(x)
        q = q.view(B, T, G, R, D).permute(0, 2, 3, 1, 4)
        k, v = (y.view(B, T, G, D).permute(0, 2, 1, 3) for y in (k, v))
        scores = torch.einsum("bgrnd,bgmd->bgrnm", q, k) / math.sqrt(D)
        y = torch.einsum("bgrnm,bgmd->bgrnd", scores.softmax(dim=-1), v)
        return self.out(y.permute(0, 3, 1, 2, 4).reshape(B, T, G * R * D))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        maps, y = attention(heads(q, G * R), heads(k, G), heads(v, G))
        return maps, self.out(y)


class Expanded(Grouped):
    """Keys expanded to the query heads, then torch's SDPA."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, -1, D).transpose(1, 2) for y in self.projected(x))
        k, v = (y[:, :, None].expand(B, G, R, T, D).reshape(B, G * R, T, D) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, -1))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        maps, y = attention(heads(q, G * R), heads(k, G), heads(v, G), causal(len(x)))
        return maps, self.out(y)


class PerHead(nn.Module):
    """TransformerLens: a weight with an axis of heads; positions before heads."""

    def __init__(self) -> None:
        super().__init__()
        draw = 1.6 * C**-0.5
        self.q, self.k, self.v = (nn.Parameter(torch.randn(H, C, D) * draw) for _ in range(3))
        self.o, self.bias = nn.Parameter(torch.randn(H, D, C) * draw), nn.Parameter(torch.zeros(C))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bpc,hcd->bphd", x, w) for w in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / D**0.5
        allowed = torch.ones(scores.shape[-2:], device=x.device).tril().bool()
        scores = torch.where(allowed, scores, -math.inf)
        z = torch.einsum("bkhd,bhqk->bqhd", v, F.softmax(scores, -1))
        return torch.einsum("bqhd,hdc->bqc", z, self.o) + self.bias

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(x @ self.q, x @ self.k, x @ self.v, causal(len(x)))
        return maps, y @ self.o.flatten(0, 1) + self.bias


class Esm(Attends):
    """ESM as in fairseq: positions first, then batch · heads; padding masked in the scores."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        T, B, _ = x.shape
        q, k, v = self.projected(x)
        q = q * D**-0.5
        q, k, v = (y.contiguous().view(T, B * H, D).transpose(0, 1) for y in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, T, T)
        scores = scores.masked_fill(padding[:, None, None].to(torch.bool), -math.inf)
        weights = F.softmax(scores.view(B * H, T, T), dim=-1)
        y = torch.bmm(weights, v).transpose(0, 1).contiguous().view(T, B, C)
        return self.out(y).transpose(0, 1)

    def by_definition(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        bias = torch.zeros(len(x)).masked_fill(padding, -math.inf)
        maps, y = attention(*map(heads, self.projected(x)), bias)
        return maps, self.out(y)

    def truth(self, x: Tensor, padding: Tensor) -> Truth:
        full, output = per_text(self.by_definition, x, padding)
        real = [maps[:, ~pad][..., ~pad] for maps, pad in zip(full, padding, strict=True)]
        return Truth(output, [real], ([full],))


class Memories(Attends):
    """x-transformers: learned keys and values before those of the text, in einsums."""

    def __init__(self, memories: int = 2) -> None:
        super().__init__()
        self.mem_k, self.mem_v = (nn.Parameter(torch.randn(H, memories, D)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.unflatten(-1, (H, -1)).permute(0, 2, 1, 3) for y in self.projected(x))
        k = torch.cat((self.mem_k.expand(B, -1, -1, -1), k), dim=-2)
        v = torch.cat((self.mem_v.expand(B, -1, -1, -1), v), dim=-2)
        scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * D**-0.5
        y = torch.einsum("b h i j, b h j d -> b h i d", scores.softmax(dim=-1), v)
        return self.out(y.permute(0, 2, 1, 3).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.projected(x))
        maps, y = attention(q, torch.cat([self.mem_k, k], 1), torch.cat([self.mem_v, v], 1))
        return maps, self.out(y)


class Differential(Attends):
    """Differential attention: each head subtracts a second softmax from a first one."""

    def __init__(self) -> None:
        super().__init__(width=2 * C, keys=2 * C)
        self.out, self.v, self.share = nn.Linear(C, C), nn.Linear(C, C), 0.4

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.projected(x)
        q, k = (y.view(B, T, 2 * H, D).transpose(1, 2) for y in (q, k))
        v = v.view(B, T, H, D).transpose(1, 2)
        scores = q * D**-0.5 @ k.transpose(-1, -2)
        scores = scores + torch.triu(torch.full((T, T), -math.inf, device=x.device), 1)
        weights = F.softmax(scores, dim=-1).view(B, H, 2, T, T)
        weights = weights[:, :, 0] - self.share * weights[:, :, 1]
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        maps, _ = attention(
            heads(q, 2 * H), heads(k, 2 * H), heads(v).repeat(2, 1, 1), causal(len(x))
        )
        used = maps[0::2] - self.share * maps[1::2]
        return maps, self.out(torch.cat([*(used @ heads(v))], dim=-1))

    def truth(self, x: Tensor) -> Truth:
        """Accept one call of 2 H softmaxes, two calls of H softmaxes, or a call of differences."""
        maps, output = per_text(self.by_definition, x)
        first, second = [map_[0::2] for map_ in maps], [map_[1::2] for map_ in maps]
        used = [a - self.share * b for a, b in zip(first, second, strict=True)]
        return Truth(output, [maps], ([first, second], [used]))


class Talking(Attends):
    """Talking heads: mixed before and after the softmax; the mixed map multiplies the values."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(H, H, bias=False), nn.Linear(H, H, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        scores = (q * D**-0.5) @ k.transpose(-2, -1)
        scores = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.after(scores.softmax(dim=-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.projected(x))
        scores = [q[h] @ k[h].T * D**-0.5 for h in range(H)]
        mixed = [softmax(_mix(self.before.weight[h], scores)) for h in range(H)]
        used = torch.stack([_mix(self.after.weight[h], mixed) for h in range(H)])
        return used, self.out(torch.cat([used[h] @ v[h] for h in range(H)], dim=-1))


def _mix(shares: Tensor, tables: list[Tensor]) -> Tensor:
    return sum(share * table for share, table in zip(shares, tables, strict=True))


class Fold(nn.Module):
    """Heads moved into the batch axis: the whole batch of head 0, then of head 1, …"""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(C, C) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(y), self.v(y)
        q_, k_, v_ = (torch.cat(z.split(D, 2), 0) for z in (q, k, v))
        weights = torch.softmax(q_.bmm(k_.transpose(1, 2)) / math.sqrt(D), 2)
        o = torch.cat((q_ + weights.bmm(v_)).split(q.size(0), 0), 2)
        return o + F.relu(self.out(o))

    def by_definition(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        maps, o = attention(heads(self.q(x)), heads(self.k(y)), heads(self.v(y)))
        o = o + self.q(x)
        return maps, o + F.relu(self.out(o))


class SetTransformer(nn.Module):
    """Set Transformer: learned points attend to the set, and the set to them."""

    def __init__(self, points: int = 4) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, C))
        self.to_points, self.of_points = Fold(), Fold()

    def forward(self, x: Tensor) -> Tensor:
        h = self.to_points(self.points.repeat(x.size(0), 1, 1), x)
        return self.of_points(x, h)

    def truth(self, x: Tensor) -> Truth:
        first, h = per_text(lambda text: self.to_points.by_definition(self.points[0], text), x)
        second, output = per_text(self.of_points.by_definition, x, h)
        return Truth(output, [first, second])


class Multiplied(Attends):
    """Elementwise products and sums instead of matrix products."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        scores = (q[:, :, :, None] * k[:, :, None]).sum(dim=-1) / math.sqrt(D)
        y = (scores.softmax(dim=-1)[..., None] * v[:, :, None]).sum(dim=-2)
        return self.out(y.transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(*map(heads, self.projected(x)))
        return maps, self.out(y)


class FirstAllWeights(Attends):
    """Four heads in loops: first all softmaxes, then all products."""

    COUNT = 4

    def __init__(self) -> None:
        super().__init__(width=4 * D, keys=4 * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.split(D, dim=-1) for y in self.projected(x))
        weights = [F.softmax(q[h] @ k[h].mT * D**-0.5, dim=-1) for h in range(self.COUNT)]
        return self.out(torch.cat([weights[h] @ v[h] for h in range(self.COUNT)], dim=-1))

    def by_definition(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        maps, y = attention(*(heads(z, self.COUNT) for z in self.projected(x)))
        return [map_[None] for map_ in maps], self.out(y)


PADDING = torch.tensor([[False] * M, [False] * N + [True] * 2])

LAYOUTS = {
    "GPTBigCode, heads in queries": Layout(lambda: TextModel(Packed), lambda: (ids(2, N),)),
    "GPTBigCode, one text": Layout(lambda: TextModel(Packed), lambda: (ids(1, N),)),
    "one key head, heads · queries": Layout(lambda: TextModel(PackedHeads), lambda: (ids(2, N),)),
    "grouped, by einsum": Layout(lambda: TextModel(Grouped), lambda: (ids(3, N),)),
    "grouped, expanded, SDPA": Layout(lambda: TextModel(Expanded, 2), lambda: (ids(3, N),)),
    "TransformerLens": Layout(lambda: TextModel(PerHead, 2), lambda: (ids(2, M),)),
    "ESM, padded": Layout(Esm, lambda: (torch.randn(2, M, C), PADDING)),
    "x-transformers, memories": Layout(lambda: TextModel(Memories), lambda: (ids(2, N),)),
    "differential": Layout(Differential, lambda: (torch.randn(2, N, C),)),
    "talking heads": Layout(lambda: TextModel(Talking), lambda: (ids(2, M),)),
    "Set Transformer": Layout(SetTransformer, lambda: (torch.randn(2, M, C),)),
    "Set Transformer, one set": Layout(SetTransformer, lambda: (torch.randn(1, M, C),)),
    "multiplied and summed": Layout(lambda: TextModel(Multiplied), lambda: (ids(2, N),)),
    "four softmaxes, then products": Layout(
        lambda: TextModel(FirstAllWeights), lambda: (ids(2, N),)
    ),
}
