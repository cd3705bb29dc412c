"""Layout models of vision with windows in the batch axis or in a separate axis."""

# ruff: noqa: D102 - layout_truth.py documents `forward` and `by_definition`

from __future__ import annotations

import math

import torch
from layout_models_vision import image
from layout_truth import C, D, H, Layout, Truth, attention, heads
from torch import Tensor, nn
from torch.nn import functional as F


def windows(x: Tensor, size: int) -> Tensor:
    """Reshape (B, high, wide, C) to (B · windows, size, size, C)."""
    B, high, wide, width = x.shape
    x = x.view(B, high // size, size, wide // size, size, width)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size, size, width)


def from_windows(x: Tensor, high: int, wide: int) -> Tensor:
    """The inverse of `windows`."""
    size, width = x.shape[1], x.shape[-1]
    x = x.view(-1, high // size, wide // size, size, size, width)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, high, wide, width)


def places(high: int, wide: int, size: int, shift: int = 0) -> list[list[tuple[int, int]]]:
    """Return the image coordinates of the patches of each window, in order."""
    return [
        [
            ((top + y + shift) % high, (left + x + shift) % wide)
            for y in range(size)
            for x in range(size)
        ]
        for top in range(0, high, size)
        for left in range(0, wide, size)
    ]


class SamAttention(nn.Module):
    """SAM: square windows, with row and column biases computed from the queries."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.qkv, self.proj = size, nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.rows, self.columns = (nn.Parameter(torch.randn(2 * size - 1, D)) for _ in range(2))

    def scores(self, q: Tensor, k: Tensor, size: int) -> Tensor:
        scores = (q * D**-0.5) @ k.transpose(-2, -1)
        position = torch.arange(size, device=q.device)
        distance = position[:, None] - position + size - 1
        square = q.reshape(q.shape[0], size, size, D)
        of_rows = torch.einsum("bhwc,hkc->bhwk", square, self.rows[distance])
        of_columns = torch.einsum("bhwc,wkc->bhwk", square, self.columns[distance])
        scores = scores.view(q.shape[0], size, size, size, size)
        scores = scores + of_rows[:, :, :, :, None] + of_columns[:, :, :, None, :]
        return scores.view(q.shape[0], size * size, size * size)

    def forward(self, x: Tensor) -> Tensor:
        B, size, _, _ = x.shape
        qkv = self.qkv(x).reshape(B, size * size, 3, H, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, B * H, size * size, -1).unbind(0)
        y = self.scores(q, k, size).softmax(dim=-1) @ v
        y = y.view(B, H, size, size, -1).permute(0, 2, 3, 1, 4).reshape(B, size, size, -1)
        return self.proj(y)

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute one window (size · size, C)."""
        q, k, v = map(heads, self.qkv(x).chunk(3, dim=-1))
        bias = torch.zeros(H, len(x), len(x), dtype=x.dtype)
        for n in range(len(x)):
            for m in range(len(x)):
                down = n // self.size - m // self.size + self.size - 1
                right = n % self.size - m % self.size + self.size - 1
                bias[:, n, m] = q[:, n] @ (self.rows[down] + self.columns[right])
        maps, y = attention(q, k, v, bias)
        return maps, self.proj(y)


class Sam(nn.Module):
    """SAM's encoder: windows of an image padded with zeros; the zeros are keys, too."""

    SIZE = 3

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, C, 2, stride=2), nn.LayerNorm(C)
        self.attend = SamAttention(self.SIZE)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).permute(0, 2, 3, 1)
        _, high, wide, _ = x.shape
        down, right = -high % self.SIZE, -wide % self.SIZE
        padded = F.pad(self.norm(x), (0, 0, 0, right, 0, down))
        y = from_windows(self.attend(windows(padded, self.SIZE)), high + down, wide + right)
        return x + y[:, :high, :wide]

    def truth(self, image: Tensor) -> Truth:
        x = self.patch(image).permute(0, 2, 3, 1)
        _, high, wide, _ = x.shape
        output, call = x.clone(), []
        ends = (high + -high % self.SIZE, wide + -wide % self.SIZE)
        for b in range(len(x)):
            for part in places(*ends, self.SIZE):
                real = [i for i, (row, column) in enumerate(part) if row < high and column < wide]
                tokens = torch.zeros(len(part), C, dtype=x.dtype)
                for i in real:
                    tokens[i] = self.norm(x[b][part[i]])
                maps, y = self.attend.by_definition(tokens)
                call.append(maps)
                for i in real:
                    output[b][part[i]] += y[i]
        return Truth(output, [call])


class Swin(nn.Module):
    """Swin: shifted windows in the batch axis; a mask separates regions that the shift joins."""

    SIZE = 2

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.shift, self.norm = shift, nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.table = nn.Parameter(torch.randn((2 * self.SIZE - 1) ** 2, H))
        axis = torch.arange(self.SIZE)
        position = torch.stack(torch.meshgrid([axis, axis], indexing="ij")).flatten(1)
        distance = position[:, :, None] - position[:, None] + self.SIZE - 1
        self.register_buffer("index", distance[0] * (2 * self.SIZE - 1) + distance[1])

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * D**-0.5) @ k.transpose(-2, -1) + self.bias().unsqueeze(0)

    def bias(self) -> Tensor:
        """Return the bias (H, patches, patches)."""
        return self.table[self.index.view(-1)].view(*self.index.shape, -1).permute(2, 0, 1)

    def shift_mask(self, high: int, wide: int, device: torch.device) -> Tensor:
        region, number = torch.zeros(1, high, wide, 1, device=device), 0
        parts = slice(0, -self.SIZE), slice(-self.SIZE, -self.shift), slice(-self.shift, None)
        for rows in parts:
            for columns in parts:
                region[:, rows, columns] = number
                number += 1
        flat = windows(region, self.SIZE).view(-1, self.SIZE**2)
        return (flat[:, None] - flat[:, :, None]).ne(0).float() * -100.0

    def forward(self, x: Tensor) -> Tensor:
        _, high, wide, _ = x.shape
        shifted = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2))
        parts = windows(shifted, self.SIZE).view(-1, self.SIZE**2, C)
        P, T, _ = parts.shape
        q, k, v = self.qkv(parts).reshape(P, T, 3, H, D).permute(2, 0, 3, 1, 4)
        scores = self.scores(q, k)
        if self.shift:
            mask = self.shift_mask(high, wide, x.device)
            scores = scores.view(P // len(mask), len(mask), H, T, T) + mask[:, None][None]
            scores = scores.view(-1, H, T, T)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(P, T, C)
        y = from_windows(self.proj(y).view(-1, self.SIZE, self.SIZE, C), high, wide)
        return x + torch.roll(y, (self.shift, self.shift), (1, 2))

    def attention_inputs(self, x: Tensor, bias: Tensor) -> tuple:
        """Return the arguments of `attention` for a window."""
        return (*map(heads, self.qkv(x).chunk(3, dim=-1)), self.bias() + bias)

    def by_definition(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Compute one image (high, wide, C); return the maps of its windows."""
        high, wide, _ = x.shape
        each, output = [], x.clone()
        for part in places(high, wide, self.SIZE, self.shift):
            bias = torch.zeros(len(part), len(part), dtype=x.dtype)
            for n, (row, column) in enumerate(part):
                for m, (other_row, other_column) in enumerate(part):
                    apart = max(abs(row - other_row), abs(column - other_column))
                    bias[n, m] = 0.0 if apart < self.SIZE else -100.0
            tokens = self.norm(torch.stack([x[place] for place in part]))
            maps, y = attention(*self.attention_inputs(tokens, bias))
            each.append(maps)
            for place, row in zip(part, self.proj(y), strict=True):
                output[place] += row
        return each, output


class SwinV2(Swin):
    """SwinV2: cosine scores, a scale per head, a bias between 0 and 16."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__(shift)
        self.logit_scale = nn.Parameter(torch.log(torch.tensor([10.0, 6.0, 14.0]))[:, None, None])

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scale = torch.clamp(self.logit_scale, max=math.log(1.0 / 0.01)).exp()
        return cosines * scale + (16 * torch.sigmoid(self.bias())).unsqueeze(0)

    def attention_inputs(self, x: Tensor, bias: Tensor) -> tuple:
        q, k, v = map(heads, self.qkv(x).chunk(3, dim=-1))
        q = q / (q * q).sum(-1, keepdim=True).sqrt() * self.logit_scale.exp()
        k = k / (k * k).sum(-1, keepdim=True).sqrt()
        return q, k, v, 16 / (1 + (-self.bias()).exp()) + bias, 1.0


class Shifted(nn.Module):
    """A layer without a shift, then a layer with shifted windows."""

    def __init__(self, kind: type[Swin]) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, C, 2, stride=2)
        self.layers = nn.ModuleList([kind(0), kind(1)])

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).permute(0, 2, 3, 1)
        for layer in self.layers:
            x = layer(x)
        return x

    def truth(self, image: Tensor) -> Truth:
        x, calls = self.patch(image).permute(0, 2, 3, 1), []
        for layer in self.layers:
            each = [layer.by_definition(picture) for picture in x]
            calls.append([window_maps for image_maps, _ in each for window_maps in image_maps])
            x = torch.stack([y for _, y in each])
        return Truth(x, calls)


class Scunet(nn.Module):
    """SCUNet: heads before batch and windows, in einsums of five axes."""

    SIZE = 2

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.bias = nn.Parameter(torch.randn(H, self.SIZE**2, self.SIZE**2))

    def forward(self, image: Tensor) -> Tensor:
        x = image.permute(0, 2, 3, 1)
        B, high, wide, _ = x.shape
        parts = windows(x, self.SIZE).view(B, -1, self.SIZE**2, C)
        qkv = self.qkv(parts).unflatten(-1, (3 * H, D)).permute(3, 0, 1, 2, 4)
        q, k, v = qkv.chunk(3, dim=0)
        scores = torch.einsum("hbwpc,hbwqc->hbwpq", q, k) * D**-0.5
        weights = F.softmax(scores + self.bias[:, None, None], dim=-1)
        y = torch.einsum("hbwij,hbwjc->hbwic", weights, v)
        y = self.out(y.permute(1, 2, 3, 0, 4).flatten(3))
        y = from_windows(y.reshape(-1, self.SIZE, self.SIZE, C), high, wide)
        return (x + y).permute(0, 3, 1, 2)

    def by_definition(self, image: Tensor) -> tuple[list[Tensor], Tensor]:
        each, output = [], image.clone()
        for part in places(*image.shape[1:], self.SIZE):
            tokens = torch.stack([image[:, row, column] for row, column in part])
            maps, y = attention(*map(heads, self.qkv(tokens).chunk(3, dim=-1)), self.bias)
            each.append(maps)
            for (row, column), update in zip(part, self.out(y), strict=True):
                output[:, row, column] += update
        return each, output

    def truth(self, image: Tensor) -> Truth:
        each = [self.by_definition(picture) for picture in image]
        maps = [window_maps for image_maps, _ in each for window_maps in image_maps]
        return Truth(torch.stack([y for _, y in each]), [maps])


LAYOUTS = {
    "SAM, windows": Layout(Sam, lambda: image(2, 8, 12)),
    "Swin": Layout(lambda: Shifted(Swin), lambda: image(2, 8, 12)),
    "Swin, one image": Layout(lambda: Shifted(Swin), lambda: image(1, 8, 12)),
    "SwinV2": Layout(lambda: Shifted(SwinV2), lambda: image(2, 8, 12)),
    "SCUNet, heads first": Layout(Scunet, lambda: image(2, 4, 6, C)),
    "SCUNet, one image": Layout(Scunet, lambda: image(1, 4, 6, C)),
}
