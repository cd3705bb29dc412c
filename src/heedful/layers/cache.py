"""The key/value cache: it stores the keys and values of earlier tokens for later calls.

Sizes: B batch, G key heads, M stored keys, d head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import ArgumentError


class LayerCache:
    """The keys and values of one layer, in preallocated buffers.

    Args:
        shape: (B, G, capacity, d); `append` raises `ArgumentError` beyond the capacity.
        dtype, device: of the keys and values.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device):
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, G, n, d) of new tokens; return all stored (B, G, M, d)."""
        end = self.length + key.shape[-2]
        capacity = self.keys.shape[-2]
        if end > capacity:
            raise ArgumentError(
                f"{end:,} tokens in a cache",
                expected=f"at most its capacity of {capacity:,}",
                remedy="create a larger cache, or clear this one and pass the last tokens again",
            )
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        self.length = end
        return self.so_far()

    def grow(self, capacity: int) -> None:
        """Move the keys and values to larger buffers."""
        keys, values = self.so_far()
        B, G, _, d = keys.shape
        self.keys, self.values = (old.new_empty(B, G, capacity, d) for old in (keys, values))
        self.keys[:, :, : self.length], self.values[:, :, : self.length] = keys, values

    def so_far(self) -> tuple[Tensor, Tensor]:
        """Return all stored keys and values, (B, G, M, d) each."""
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class KeyValueCache:
    """One `LayerCache` for each layer of a model; `length` is the number of stored tokens.

    `ids` (B, capacity) is a buffer for token ids, for models that read earlier ids.

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
        """The number of tokens in layer 0; during a forward pass, later layers may have fewer."""
        return self.layers[0].length

    def clear(self) -> None:
        """Remove all tokens, but keep the buffers."""
        self.cut(0)

    def cut(self, length: int) -> None:
        """Keep only the first `length` tokens.

        Raises:
            ArgumentError: a negative number, or more tokens than are stored.
        """
        if not 0 <= length <= self.length:
            raise ArgumentError(f"{length} tokens", expected=f"0 to {self.length} cached tokens")
        for layer in self.layers:
            layer.length = length

    def grow(self, capacity: int) -> None:
        """Increase the capacity to at least `capacity` tokens, and keep the stored tokens."""
        if capacity > self.capacity:
            self.ids = F.pad(self.ids, (0, capacity - self.capacity))
            self.capacity = capacity
            for layer in self.layers:
                layer.grow(capacity)

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]
