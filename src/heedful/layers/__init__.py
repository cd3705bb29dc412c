"""Floor 2: attention as modules, and what a transformer puts around it."""

from heedful.layers.block import (
    ACTIVATIONS,
    BLOCKS,
    FeedForward,
    GatedFeedForward,
    PostNormBlock,
    PreNormBlock,
    feed_forward,
)
from heedful.layers.cache import KeyValueCache, LayerCache
from heedful.layers.multihead import Heads, MultiHeadAttention, check_heads
from heedful.layers.norm import NORMS, RMSNorm

__all__ = [
    "ACTIVATIONS",
    "BLOCKS",
    "NORMS",
    "FeedForward",
    "GatedFeedForward",
    "Heads",
    "KeyValueCache",
    "LayerCache",
    "MultiHeadAttention",
    "PostNormBlock",
    "PreNormBlock",
    "RMSNorm",
    "check_heads",
    "feed_forward",
]
