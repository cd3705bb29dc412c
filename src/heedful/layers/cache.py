"""The key/value cache: what earlier tokens need not be asked again.

B batch, G key heads, M keys so far, d head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import ArgumentError


class LayerCache:
    """The keys and values of one layer, in buffers that are made once.

    Args:
        shape: (B, G, capacity, d).
        dtype, device: those of the keys.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device):
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values (B, G, n, d) of new tokens; return all so far, (B, G, M, d)."""
        end = self.length + key.shape[-2]
        capacity = self.keys.shape[-2]
        if end > capacity:
            raise ArgumentError(
                f"{end:,} tokens in a cache",
                expected=f"at most its capacity of {capacity:,}",
                remedy="make a longer cache, or clear it and read the last tokens again",
            )
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        self.length = end
        return self.so_far()

    def widen(self, capacity: int) -> None:
        """Put what it holds into longer buffers."""
        keys, values = self.so_far()
        B, G, _, d = keys.shape
        self.keys, self.values = (old.new_empty(B, G, capacity, d) for old in (keys, values))
        self.keys[:, :, : self.length], self.values[:, :, : self.length] = keys, values

    def so_far(self) -> tuple[Tensor, Tensor]:
        """All keys and values that were added, (B, G, M, d) each."""
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class KeyValueCache:
    """One `LayerCache` for each layer of a model; `length` tokens have been read.

    `ids` (B, capacity) has room for the tokens themselves, where a model looks back at them.

    >>> cache = KeyValueCache(layers=2, batch=1, kv_heads=1, capacity=4, head_width=8)
    >>> keys, values = cache[0].append(torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 8))
    >>> keys.shape, cache.length
    (torch.Size([1, 1, 3, 8]), 3)
    """

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_width: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (batch, kv_heads, capacity, head_width)
        self.capacity = capacity
        self.layers = [LayerCache(shape, dtype, torch.device(device)) for _ in range(layers)]
        self.ids = torch.zeros(batch, capacity, dtype=torch.int64, device=device)

    @property
    def length(self) -> int:
        """How many tokens it holds; while a model reads, layer 0 is ahead of the others."""
        return self.layers[0].length

    def clear(self) -> None:
        """Forget every token, keep the buffers."""
        self.cut(0)

    def cut(self, length: int) -> None:
        """Forget all tokens but the first ones.

        Raises:
            ArgumentError: more tokens than it holds.
        """
        if not 0 <= length <= self.length:
            raise ArgumentError(f"{length} tokens", expected=f"0 to {self.length}, which it holds")
        for layer in self.layers:
            layer.length = length

    def widen(self, capacity: int) -> None:
        """Make room for more tokens, where there is less; those that it holds stay."""
        if capacity > self.capacity:
            self.ids = F.pad(self.ids, (0, capacity - self.capacity))
            self.capacity = capacity
            for layer in self.layers:
                layer.widen(capacity)

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]
