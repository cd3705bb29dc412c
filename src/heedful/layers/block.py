"""Feed-forward layers, and the two ways of putting norms around them and attention."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.layers.cache import LayerCache
from heedful.layers.cross_attention import CrossAttention
from heedful.layers.multi_head import MultiHeadAttention
from heedful.ops.masks import Mask


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as GPT-2 uses it."""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²; source: So et al. 2021, *Primer* (arXiv:2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # Hendrycks and Gimpel 2016, arXiv:1606.08415
    "gelu_tanh": gelu_tanh,
    "relu2": squared_relu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, on each token alone.

    Args:
        width: in and out.
        hidden: between the two; 4 · width in the paper and in document 004 (Zhang), step 6.
        activation: a name in `ACTIVATIONS`.
        bias: whether the linear layers have one.
    """

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.enter = nn.Linear(width, hidden, bias=bias)
        self.output = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., width)."""
        return self.output(self.activation(self.enter(x)))


# Shazeer 2020, *GLU variants improve transformer* (arXiv:2002.05202)
GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}


class GatedFeedForward(nn.Module):
    """One half of the hidden layer, through an activation, gates the other.

    Args:
        width: in and out.
        hidden: of each half.
        gate: a name in `GATES`: swiglu is SiLU's, geglu GELU's, reglu ReLU's.
        bias: whether the linear layers have one.
    """

    def __init__(self, width: int, hidden: int, gate: str = "swiglu", bias: bool = True) -> None:
        super().__init__()
        self.gate = GATES[gate]
        self.enter = nn.Linear(width, 2 * hidden, bias=bias)
        self.output = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., width)."""
        gate, up = self.enter(x).chunk(2, dim=-1)
        return self.output(self.gate(gate) * up)


def feed_forward(width: int, hidden: int, activation: str, bias: bool) -> nn.Module:
    """The feed-forward layer of a name, in `GATES` or in `ACTIVATIONS`."""
    if activation in GATES:
        return GatedFeedForward(width, hidden, activation, bias)
    return FeedForward(width, hidden, activation, bias)


class PreNormBlock(nn.Module):
    """x + attend(norm(x)), then x + feed(norm(x)): GPT-2 and everything after it.

    Source: Xiong et al. 2020 (arXiv:2002.04745); it trains without warm-up where the paper's
    own order does not.
    """

    def __init__(
        self,
        attend: MultiHeadAttention,
        feed: nn.Module,
        norm: Callable[[], nn.Module],
        dropout: float,
    ) -> None:
        super().__init__()
        self.attend, self.feed = attend, feed
        self.attend_norm, self.feed_norm = norm(), norm()
        self.dropout = nn.Dropout(dropout)

    def attended(self, x: Tensor) -> Tensor:
        """What attention reads."""
        return self.attend_norm(x)

    def forward(self, x: Tensor, **attending) -> Tensor:
        """(B, N, width) to the same; `attending` goes to the attention layer."""
        x = x + self.dropout(self.attend(self.attend_norm(x), **attending))
        return x + self.dropout(self.feed(self.feed_norm(x)))


class PostNormBlock(PreNormBlock):
    """norm(x + attend(x)), then norm(x + feed(x)): the order of the 2017 paper and of BERT."""

    def attended(self, x: Tensor) -> Tensor:
        """What attention reads."""
        return x

    def forward(self, x: Tensor, **attending) -> Tensor:
        """(B, N, width) to the same; `attending` goes to the attention layer."""
        x = self.attend_norm(x + self.dropout(self.attend(x, **attending)))
        return self.feed_norm(x + self.dropout(self.feed(x)))


BLOCKS: dict[str, type[PreNormBlock]] = {"pre": PreNormBlock, "post": PostNormBlock}


class PreNormDecoderBlock(nn.Module):
    """As `PreNormBlock`, with a third part between the two: a look at a memory."""

    def __init__(
        self,
        attend: MultiHeadAttention,
        cross: CrossAttention,
        feed: nn.Module,
        norm: Callable[[], nn.Module],
        dropout: float,
    ) -> None:
        super().__init__()
        self.attend, self.cross, self.feed = attend, cross, feed
        self.attend_norm, self.cross_norm, self.feed_norm = norm(), norm(), norm()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        memory_mask: Tensor | Mask | None = None,
        memory_cache: LayerCache | None = None,
        **attending,
    ) -> Tensor:
        """(B, N, width) to the same.

        `memory` is (B, M, width), its mask and cache are those of `CrossAttention`; `attending`
        goes to the layer in which the tokens attend to each other.
        """
        x = x + self.dropout(self.attend(self.attend_norm(x), **attending))
        read = self.cross(self.cross_norm(x), memory, mask=memory_mask, cache=memory_cache)
        x = x + self.dropout(read)
        return x + self.dropout(self.feed(self.feed_norm(x)))


class PostNormDecoderBlock(PreNormDecoderBlock):
    """The same with each norm after its sum: the decoder of the 2017 paper."""

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        memory_mask: Tensor | Mask | None = None,
        memory_cache: LayerCache | None = None,
        **attending,
    ) -> Tensor:
        """(B, N, width) to the same; arguments as `PreNormDecoderBlock`."""
        x = self.attend_norm(x + self.dropout(self.attend(x, **attending)))
        read = self.cross(x, memory, mask=memory_mask, cache=memory_cache)
        x = self.cross_norm(x + self.dropout(read))
        return self.feed_norm(x + self.dropout(self.feed(x)))


DECODER_BLOCKS: dict[str, type[PreNormDecoderBlock]] = {
    "pre": PreNormDecoderBlock,
    "post": PostNormDecoderBlock,
}
