"""Layout models of vision, whose input is an image or a grid of patches."""

# ruff: noqa: D102 - layout_truth.py documents `forward` and `by_definition`

from __future__ import annotations

import math

import torch
from layout_truth import Attends, C, D, H, Layout, Truth, attention, heads, per_text
from torch import Tensor, nn
from torch.nn import functional as F


class Patches(nn.Module):
    """An image as patches and a class token, attention, logits of the class token."""

    def __init__(self, attend: nn.Module, patches: int = 6) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, C, kernel_size=2, stride=2)
        self.cls = nn.Parameter(torch.randn(1, 1, C))
        self.places = nn.Parameter(torch.randn(1, patches + 1, C))
        self.norm, self.attend, self.head = nn.LayerNorm(C), attend, nn.Linear(C, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head((x + self.attend(self.norm(x)))[:, 0])

    def image_by_definition(self, image: Tensor) -> tuple[Tensor, Tensor]:
        kernel, bias = self.patch.weight, self.patch.bias
        rows = [
            torch.stack([(image[:, y : y + 2, x : x + 2] * w).sum() for w in kernel]) + bias
            for y in range(0, image.shape[1], 2)
            for x in range(0, image.shape[2], 2)
        ]
        x = torch.stack([self.cls[0, 0], *rows]) + self.places[0]
        maps, y = self.attend.by_definition(self.norm(x))
        return maps, self.head((x + y)[0])

    def truth(self, image: Tensor) -> Truth:
        maps, output = per_text(self.image_by_definition, image)
        return Truth(output, [maps])


class LucidViT(nn.Module):
    """ViT of lucidrains: a fused projection without bias; the softmax is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.out = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C)
        self.attend, self.drop = nn.Softmax(dim=-1), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (y.unflatten(2, (H, D)).transpose(1, 2) for y in qkv)
        weights = self.attend(torch.matmul(q, k.transpose(-1, -2)) * D**-0.5)
        y = torch.matmul(self.drop(weights), v)
        return self.out(y.transpose(1, 2).flatten(2))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(*map(heads, self.to_qkv(x).chunk(3, dim=-1)))
        return maps, self.out(y)


class TimmViT(nn.Module):
    """ViT of timm: a fused projection, normalized queries and keys, torch's SDPA."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.q_norm, self.k_norm = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        qkv = self.qkv(x).reshape(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, dropout_p=0.0)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.qkv(x).chunk(3, dim=-1))
        maps, y = attention(self.q_norm(q), self.k_norm(k), v)
        return maps, self.proj(y)


class Clip(Attends):
    """CLIP: batch · heads in one axis; the query is scaled before the product."""

    def shape(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, H, D).transpose(1, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.projected(x)
        q, k, v = (self.shape(y).view(B * H, -1, D) for y in (q * D**-0.5, k, v))
        weights = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
        weights = F.dropout(weights, p=0.0, training=self.training)
        y = torch.bmm(weights, v).view(B, H, T, D).transpose(1, 2)
        return self.out(y.reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(*map(heads, self.projected(x)))
        return maps, self.out(y)


class Detr(nn.Module):
    """DETR: positions first, added to queries and keys; learned queries attend to the image."""

    QUERIES = 4

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Conv2d(3, C, kernel_size=1)
        self.self_attn, self.cross = (nn.MultiheadAttention(C, H) for _ in range(2))
        self.norm, self.places = nn.LayerNorm(C), nn.Parameter(torch.randn(6, 1, C))
        self.queries = nn.Embedding(self.QUERIES, C)

    def forward(self, image: Tensor) -> Tensor:
        x = self.input(image).flatten(2).permute(2, 0, 1)
        places = self.places.repeat(1, x.shape[1], 1)
        x = self.norm(x + self.self_attn(x + places, x + places, value=x)[0])
        queries = self.queries.weight.unsqueeze(1).repeat(1, x.shape[1], 1)
        y = self.cross(query=queries, key=x + places, value=x)[0]
        return y.transpose(0, 1)

    def truth(self, image: Tensor) -> Truth:
        first, second, outputs = [], [], []
        for pixels in image:
            weight, bias = self.input.weight[:, :, 0, 0], self.input.bias
            x = torch.einsum("cyx,dc->yxd", pixels, weight) + bias
            x, places = x.flatten(0, 1), self.places[:, 0]
            maps, y = multi_head(self.self_attn, x + places, x + places, x)
            first.append(maps)
            x = self.norm(x + y)
            maps, y = multi_head(self.cross, self.queries.weight, x + places, x)
            second.append(maps)
            outputs.append(y)
        return Truth(torch.stack(outputs), [first, second])


def multi_head(
    module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, bias: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute torch's module for one sequence from its parameters."""
    weights, biases = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    inputs = zip((query, key, value), weights, biases, strict=True)
    count = module.num_heads
    maps, y = attention(*(heads(x @ weight.T + bias_, count) for x, weight, bias_ in inputs), bias)
    return maps, module.out_proj(y)


class AcrossText(Attends):
    """diffusers: pixels attend to the words of a text; heads are part of the batch axis."""

    def __init__(self) -> None:
        super().__init__(source=8)

    def to_batch(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        return x.reshape(B, T, H, D).permute(0, 2, 1, 3).reshape(B * H, T, D)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        B, _, high, wide = hidden_states.shape
        x = hidden_states.view(B, C, high * wide).transpose(1, 2)
        q, k, v = (self.to_batch(y) for y in self.projected(x, encoder_hidden_states))
        shape = (q.shape[0], q.shape[1], k.shape[1])
        empty = torch.empty(shape, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=D**-0.5)
        y = torch.bmm(scores.softmax(dim=-1), v)
        y = y.reshape(B, H, -1, D).permute(0, 2, 1, 3).reshape(B, -1, C)
        return self.out(y).transpose(-1, -2).reshape(B, C, high, wide) + hidden_states

    def by_definition(self, image: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        x = image.flatten(1).T
        maps, y = attention(*map(heads, self.projected(x, words)))
        return maps, self.out(y).T.view_as(image) + image


class ChannelsFirst(nn.Module):
    """guided-diffusion: channels before pixels, heads in the batch axis, scale on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(2, C), nn.Conv1d(C, 3 * C, 1)
        self.out = nn.Conv1d(C, C, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, *spatial = x.shape
        x = x.reshape(b, c, -1)
        qkv = self.qkv(self.norm(x))
        q, k, v = qkv.reshape(b * H, 3 * D, -1).split(D, dim=1)
        scale = 1 / math.sqrt(math.sqrt(D))
        weights = torch.einsum("bct,bcs->bts", q * scale, k * scale)
        weights = torch.softmax(weights.float(), dim=-1).type(weights.dtype)
        a = torch.einsum("bts,bcs->bct", weights, v).reshape(b, -1, x.shape[-1])
        return (x + self.out(a)).reshape(b, c, *spatial)

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(1)
        both = self.qkv.weight[:, :, 0] @ self.norm(flat[None])[0] + self.qkv.bias[:, None]
        q, k, v = both.view(H, 3, D, -1).transpose(2, 3).unbind(1)
        maps, y = attention(q, k, v)
        y = self.out.weight[:, :, 0] @ y.T + self.out.bias[:, None]
        return maps, (flat + y).view_as(x)


class Axial(nn.Module):
    """Axial attention: each row of an image is a sequence, then each column."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = Clip(), Clip()

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)  # (B, high, wide, C)
        along = self.rows(x.flatten(0, 1)).view_as(x)
        turned = x.transpose(1, 2)
        across = self.columns(turned.reshape(-1, *turned.shape[2:])).view_as(turned)
        return (along + across.transpose(1, 2)).permute(0, 3, 1, 2)

    def truth(self, x: Tensor) -> Truth:
        x = x.permute(0, 2, 3, 1)
        first, along = per_text(self.rows.by_definition, x.flatten(0, 1))
        second, across = per_text(self.columns.by_definition, torch.cat([*x.transpose(1, 2)]))
        across = across.view(len(x), x.shape[2], x.shape[1], C).transpose(1, 2)
        return Truth((along.view_as(x) + across).permute(0, 3, 1, 2), [first, second])


class Video(nn.Module):
    """TimeSformer: attention of each patch over time, then within each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.space = LucidViT(), LucidViT()

    def forward(self, x: Tensor) -> Tensor:
        B, T, P, _ = x.shape
        over = self.time(x.permute(0, 2, 1, 3).reshape(B * P, T, C))
        x = x + over.view(B, P, T, C).permute(0, 2, 1, 3)
        return x + self.space(x.reshape(B * T, P, C)).view(B, T, P, C)

    def truth(self, x: Tensor) -> Truth:
        B, T, P, _ = x.shape
        tracks = torch.stack([video[:, place] for video in x for place in range(P)])
        first, over = per_text(self.time.by_definition, tracks)
        x = x + over.view(B, P, T, C).transpose(1, 2)
        second, inside = per_text(self.space.by_definition, torch.cat([*x]))
        return Truth(x + inside.view_as(x), [first, second])


class Alignment(nn.Module):
    """AlphaFold's row attention on (B, sequences, residues, C), with a pair bias and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(C, C, bias=False) for _ in range(3))
        self.gate, self.out, self.pair = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(6, H)

    def forward(self, msa: Tensor, pair: Tensor) -> Tensor:
        q, k, v = (f(msa).unflatten(-1, (H, D)) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bsqhc,bskhc->bshqk", q * D**-0.5, k)
        scores = scores + self.pair(pair).permute(0, 3, 1, 2)[:, None]
        weights = torch.softmax(scores, dim=-1)
        y = torch.einsum("bshqk,bskhc->bsqhc", weights, v)
        y = y * torch.sigmoid(self.gate(msa)).unflatten(-1, (H, D))
        return self.out(y.flatten(-2))

    def row_by_definition(self, row: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        inputs = (heads(f(row)) for f in (self.q, self.k, self.v))
        maps, y = attention(*inputs, self.pair(pair).permute(2, 0, 1))
        return maps, self.out(y * self.gate(row).sigmoid())

    def truth(self, msa: Tensor, pair: Tensor) -> Truth:
        pairs = pair.repeat_interleave(msa.shape[1], dim=0)
        maps, output = per_text(self.row_by_definition, torch.cat([*msa]), pairs)
        return Truth(output.view_as(msa), [maps])


def image(batch: int = 2, high: int = 4, wide: int = 6, channels: int = 3) -> tuple[Tensor]:
    return (torch.randn(batch, channels, high, wide),)


LAYOUTS = {
    "ViT of lucidrains": Layout(lambda: Patches(LucidViT()), lambda: image(3)),
    "ViT of timm": Layout(lambda: Patches(TimmViT()), image),
    "CLIP": Layout(lambda: Patches(Clip()), image),
    "DETR": Layout(Detr, lambda: image(2, 2, 3)),
    "diffusers, across": Layout(AcrossText, lambda: (*image(2, 2, 3, C), torch.randn(2, 5, 8))),
    "guided-diffusion": Layout(ChannelsFirst, lambda: image(2, 2, 3, C)),
    "axial, an image": Layout(Axial, lambda: image(2, 3, 5, C)),
    "TimeSformer, a video": Layout(Video, lambda: (torch.randn(2, 3, 5, C),)),
    "guided-diffusion, one image": Layout(ChannelsFirst, lambda: image(1, 2, 3, C)),
    "AlphaFold, rows": Layout(
        Alignment, lambda: (torch.randn(2, 4, 5, C), torch.randn(2, 5, 5, 6))
    ),
}
