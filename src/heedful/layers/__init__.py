"""Attention layers as modules, transformer blocks, and the key/value cache."""

from typing import TYPE_CHECKING

from heedful.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from heedful.layers.block import (
        ACTIVATIONS,
        BLOCKS,
        DECODER_BLOCKS,
        GATES,
        FeedForward,
        GatedFeedForward,
        PostNormBlock,
        PostNormDecoderBlock,
        PreNormBlock,
        PreNormDecoderBlock,
        feed_forward,
    )
    from heedful.layers.cache import KeyValueCache, LayerCache
    from heedful.layers.convolution import ShortConvolution
    from heedful.layers.cross_attention import CrossAttention
    from heedful.layers.multi_head import Heads, MultiHeadAttention
    from heedful.layers.norm import NORMS, RMSNorm
    from heedful.layers.option_names import check_heads
    from heedful.layers.single_head import CausalAttention, SelfAttention, SimpleSelfAttention
    from heedful.layers.stacked_heads import StackedHeads

__all__ = [
    "ACTIVATIONS", "BLOCKS", "DECODER_BLOCKS", "GATES", "NORMS", "CausalAttention",
    "CrossAttention", "FeedForward", "GatedFeedForward", "Heads", "KeyValueCache", "LayerCache",
    "MultiHeadAttention", "PostNormBlock", "PostNormDecoderBlock", "PreNormBlock",
    "PreNormDecoderBlock", "RMSNorm", "SelfAttention", "ShortConvolution",
    "SimpleSelfAttention", "StackedHeads", "check_heads", "feed_forward",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
