"""Floor 2: attention as modules, and what a transformer puts around it."""

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
from heedful.layers.checks import check_heads
from heedful.layers.cross import CrossAttention
from heedful.layers.multihead import Heads, MultiHeadAttention
from heedful.layers.norm import NORMS, RMSNorm
from heedful.layers.single import CausalAttention, SelfAttention, SimpleSelfAttention
from heedful.layers.stacked import StackedHeads

__all__ = [
    "ACTIVATIONS",
    "BLOCKS",
    "DECODER_BLOCKS",
    "GATES",
    "NORMS",
    "CausalAttention",
    "CrossAttention",
    "FeedForward",
    "GatedFeedForward",
    "Heads",
    "KeyValueCache",
    "LayerCache",
    "MultiHeadAttention",
    "PostNormBlock",
    "PostNormDecoderBlock",
    "PreNormBlock",
    "PreNormDecoderBlock",
    "RMSNorm",
    "SelfAttention",
    "SimpleSelfAttention",
    "StackedHeads",
    "check_heads",
    "feed_forward",
]
