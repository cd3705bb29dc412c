"""Feed-forward layers, and transformer blocks of the pre-norm and of the post-norm kind."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.layers.cache import LayerCache
from heedful.layers.cross_attention import CrossAttention
from heedful.layers.multi_head import MultiHeadAttention
from heedful.ops.masks import Mask


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU with the tanh approximation, as in GPT-2."""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)². Source: So et al. 2021, *Primer* (arXiv:2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # Hendrycks and Gimpel 2016, arXiv:1606.08415
    "gelu_tanh": gelu_tanh,
    "relu2": squared_relu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token separately.

    Args:
        width: of the input and the output.
        hidden: width between the layers; 4 · width in Vaswani et al. 2017 (arXiv:1706.03762) and in
            document 004 (Zhang), step 6.
        activation: a name in `ACTIVATIONS`.
        bias: whether the linear layers have a bias.
    """

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.enter = nn.Linear(width, hidden, bias=bias)
        self.output = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        return self.output(self.activation(self.enter(x)))


# Shazeer 2020, *GLU variants improve transformer* (arXiv:2002.05202)
GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}


class GatedFeedForward(nn.Module):
    """Gated linear unit: output(activation(gate) · up); gate and up are the halves of enter(x).

    Args:
        width: of the input and the output.
        hidden: width of each half.
        gate: a name in `GATES`: "swiglu" uses SiLU, "geglu" GELU, "reglu" ReLU.
        bias: whether the linear layers have a bias.
    """

    def __init__(self, width: int, hidden: int, gate: str = "swiglu", bias: bool = True) -> None:
        super().__init__()
        self.gate = GATES[gate]
        self.enter = nn.Linear(width, 2 * hidden, bias=bias)
        self.output = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        gate, up = self.enter(x).chunk(2, dim=-1)
        return self.output(self.gate(gate) * up)


def feed_forward(width: int, hidden: int, activation: str, bias: bool) -> nn.Module:
    """Return a `GatedFeedForward` for a name in `GATES`, else a `FeedForward`."""
    if activation in GATES:
        return GatedFeedForward(width, hidden, activation, bias)
    return FeedForward(width, hidden, activation, bias)


class PreNormBlock(nn.Module):
    """x + attend(norm(x)), then x + feed(norm(x)): the order of GPT-2 and most models since.

    Source: Xiong et al. 2020 (arXiv:2002.04745). Unlike blocks in the order of Vaswani et al. 2017,
    these blocks train without warm-up of the learning rate.
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

    def attention_input(self, x: Tensor) -> Tensor:
        """Return the input of the attention layer."""
        return self.attend_norm(x)

    def forward(self, x: Tensor, **attending) -> Tensor:
        """Map (B, N, width) to the same shape; `attending` is passed to the attention layer."""
        x = x + self.dropout(self.attend(self.attend_norm(x), **attending))
        return x + self.dropout(self.feed(self.feed_norm(x)))


class PostNormBlock(PreNormBlock):
    """norm(x + attend(x)), then norm(x + feed(x)): the order of Vaswani et al. 2017 and BERT."""

    def attention_input(self, x: Tensor) -> Tensor:
        """Return the input of the attention layer."""
        return x

    def forward(self, x: Tensor, **attending) -> Tensor:
        """Map (B, N, width) to the same shape; `attending` is passed to the attention layer."""
        x = self.attend_norm(x + self.dropout(self.attend(x, **attending)))
        return self.feed_norm(x + self.dropout(self.feed(x)))


BLOCKS: dict[str, type[PreNormBlock]] = {"pre": PreNormBlock, "post": PostNormBlock}


class PreNormDecoderBlock(nn.Module):
    """`PreNormBlock` with cross-attention to a memory, after self-attention and before `feed`."""

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
        """Map (B, N, width) to the same shape.

        `memory` is (B, M, width); `memory_mask` and `memory_cache` are the mask and the cache of
        `CrossAttention.forward`. `attending` is passed to the self-attention layer.
        """
        x = x + self.dropout(self.attend(self.attend_norm(x), **attending))
        crossed = self.cross(self.cross_norm(x), memory, mask=memory_mask, cache=memory_cache)
        x = x + self.dropout(crossed)
        return x + self.dropout(self.feed(self.feed_norm(x)))


class PostNormDecoderBlock(PreNormDecoderBlock):
    """`PreNormDecoderBlock` with a norm after each sum: the decoder of Vaswani et al. 2017."""

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        memory_mask: Tensor | Mask | None = None,
        memory_cache: LayerCache | None = None,
        **attending,
    ) -> Tensor:
        """Map (B, N, width) to the same shape; arguments as in `PreNormDecoderBlock`."""
        x = self.attend_norm(x + self.dropout(self.attend(x, **attending)))
        crossed = self.cross(x, memory, mask=memory_mask, cache=memory_cache)
        x = self.cross_norm(x + self.dropout(crossed))
        return self.feed_norm(x + self.dropout(self.feed(x)))


DECODER_BLOCKS: dict[str, type[PreNormDecoderBlock]] = {
    "pre": PreNormDecoderBlock,
    "post": PostNormDecoderBlock,
}
