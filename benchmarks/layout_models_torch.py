"""Layout models built on torch's own attention, and an encoder with a decoder."""

# ruff: noqa: D102 - layout_truth.py documents `forward` and `by_definition`

from __future__ import annotations

import torch
from layout_models_text import WORDS, ids
from layout_models_vision import multi_head
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
    per_text,
)
from torch import Tensor, nn
from torch.nn import functional as F


def layer_by_definition(
    layer: nn.TransformerEncoderLayer, x: Tensor, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute torch's encoder layer for one sequence from its submodules."""
    maps, y = multi_head(layer.self_attn, x, x, x, bias)
    x = layer.norm1(x + y)
    return maps, layer.norm2(x + layer.linear2(layer.linear1(x).relu()))


class Encoder(nn.Module):
    """torch's encoder, which has a fused fast path in eval mode without gradients."""

    HEADS = 2  # the fast path needs an even number

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, C)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(C, self.HEADS, 16, batch_first=True), 2
        )
        for layer in self.encoder.layers:  # nn.TransformerEncoder copies one layer
            nn.init.normal_(layer.linear1.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(self.embed(tokens))

    def truth(self, tokens: Tensor) -> Truth:
        return self.truth_of_real_tokens(tokens, torch.ones_like(tokens, dtype=torch.bool))

    def truth_of_real_tokens(self, tokens: Tensor, keeps: Tensor) -> Truth:
        """Compute the real tokens alone; the fast path returns 0 for padding."""
        calls, outputs = [[] for _ in self.encoder.layers], []
        for text, keep in zip(tokens, keeps, strict=True):
            x = self.embed(text)[keep]
            for call, layer in zip(calls, self.encoder.layers, strict=True):
                maps, x = layer_by_definition(layer, x)
                call.append(maps)
            outputs.append(torch.zeros(len(text), C, dtype=x.dtype))
            outputs[-1][keep] = x
        return Truth(torch.stack(outputs), calls)


class PaddedEncoder(Encoder):
    """torch's encoder with padding, which the fast path skips."""

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(self.embed(tokens), src_key_padding_mask=padding)

    def truth(self, tokens: Tensor, padding: Tensor) -> Truth:
        return self.truth_of_real_tokens(tokens, ~padding)


class PositionsFirst(nn.Module):
    """torch's layer with its default axes (positions first) and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(WORDS, C), nn.TransformerEncoderLayer(C, H, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(tokens), tokens.device)
        return self.layer(self.embed(tokens), src_mask=mask)

    def truth(self, tokens: Tensor) -> Truth:
        maps, output = per_text(
            lambda text: layer_by_definition(self.layer, self.embed(text), causal(len(text))),
            tokens,
            axis=1,
        )
        return Truth(output, [maps])


class OfDict(Attends):
    """A dict as the batch; batch · heads as one axis of torch's SDPA."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, C)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.embed(batch["tokens"])
        B, T, _ = x.shape
        q, k, v = (
            y.view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D) for y in self.projected(x)
        )
        mask = batch["keep"].repeat_interleave(H, dim=0)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return {"hidden": self.out(y.view(B, H, T, D).transpose(1, 2).reshape(B, T, C))}

    def by_definition(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(*map(heads, self.projected(x)), padding_bias(keep))
        return maps, self.out(y)

    def truth(self, batch: dict[str, Tensor]) -> Truth:
        keeps = batch["keep"]
        full, output = per_text(self.by_definition, self.embed(batch["tokens"]), keeps)
        real = [maps[:, keep][..., keep] for maps, keep in zip(full, keeps, strict=True)]
        columns = [maps[..., keep] for maps, keep in zip(full, keeps, strict=True)]
        return Truth({"hidden": output}, [real], ([full], [columns]))


class HeadsFirst(nn.Module):
    """SDPA on three axes, heads · batch first: the whole batch of head 0, then of head 1, …"""

    def fold(self, x: Tensor) -> Tensor:
        return torch.cat(x.chunk(H, dim=-1), dim=0)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        inputs = (self.fold(x) for x in (query, key, value))
        y = F.scaled_dot_product_attention(*inputs)
        return torch.cat(y.chunk(H, dim=0), dim=-1)

    def by_definition(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return attention(heads(query), heads(key), heads(value))


class WhisperAttention(Attends):
    """Whisper: half of the scale on query and key each; keys transposed by `permute`."""

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        q, k, v = (z.view(*z.shape[:2], H, -1) for z in self.projected(x, y))
        q = q.permute(0, 2, 1, 3) * D**-0.25
        scores = q @ (k.permute(0, 2, 3, 1) * D**-0.25)
        scores = scores if mask is None else scores + mask
        weights = F.softmax(scores.float(), dim=-1).to(q.dtype)
        return self.out((weights @ v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).flatten(start_dim=2))

    def by_definition(self, x: Tensor, y: Tensor | None = None, bias: float = 0.0) -> tuple:
        maps, y = attention(*map(heads, self.projected(x, y)), bias)
        return maps, self.out(y)


class Whisper(nn.Module):
    """An encoder of sound; words attend to each other and to the sound."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.embed = nn.Conv1d(6, C, 3, stride=2, padding=1), nn.Embedding(WORDS, C)
        self.encode, self.attn, self.cross_attn = (WhisperAttention() for _ in range(3))
        self.norm = nn.LayerNorm(C)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        sound = F.gelu(self.conv(mel)).permute(0, 2, 1)
        sound = self.norm(sound + self.encode(sound))
        x, length = self.embed(tokens), tokens.shape[1]
        mask = torch.full((length, length), -torch.inf, device=x.device).triu_(1)
        x = x + self.attn(x, mask=mask)
        x = x + self.cross_attn(self.norm(x), sound)
        return x @ self.embed.weight.T

    def truth(self, mel: Tensor, tokens: Tensor) -> Truth:
        calls, outputs = ([], [], []), []
        for spectrum, text in zip(mel, tokens, strict=True):
            sound = F.gelu(self.conv(spectrum)).T
            first, y = self.encode.by_definition(sound)
            sound, x = self.norm(sound + y), self.embed(text)
            second, y = self.attn.by_definition(x, None, causal(len(x)))
            third, z = self.cross_attn.by_definition(self.norm(x + y), sound)
            for call, maps in zip(calls, (first, second, third), strict=True):
                call.append(maps)
            outputs.append((x + y + z) @ self.embed.weight.T)
        return Truth(torch.stack(outputs), list(calls))


def lengths(*real: int) -> Tensor:
    return torch.arange(max(real)) < torch.tensor(real)[:, None]


LAYOUTS = {
    "Whisper": Layout(Whisper, lambda: (torch.randn(2, 6, 2 * M), ids(2, N))),
    "nn.TransformerEncoder": Layout(Encoder, lambda: (ids(3, N),)),
    "nn.TransformerEncoder, padded": Layout(PaddedEncoder, lambda: (ids(3, M), ~lengths(M, 4, 5))),
    "encoder layer, positions first": Layout(PositionsFirst, lambda: (ids(N, 3),)),
    "a dict, SDPA on texts · heads": Layout(
        OfDict, lambda: ({"tokens": ids(2, M), "keep": lengths(M, N)},)
    ),
    "SDPA, heads · texts": Layout(
        HeadsFirst, lambda: (2 * torch.randn(2, N, C), *2 * torch.randn(2, 2, M, C))
    ),
    "SDPA, heads · texts, one text": Layout(
        HeadsFirst, lambda: (2 * torch.randn(1, N, C), *2 * torch.randn(2, 1, M, C))
    ),
    "SDPA, heads · texts, told": Layout(
        HeadsFirst,
        lambda: (2 * torch.randn(2, N, C), *2 * torch.randn(2, 2, M, C)),
        axes={"HeadsFirst": "(h b) n d"},
    ),
}
