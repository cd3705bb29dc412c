"""Query–key clipping: a head whose largest logit passes a limit has its query and key scaled down.

Source: Moonshot AI 2025, *Kimi K2* (arXiv:2507.20534), section 2.1, where Muon with it is MuonClip:
attention logits that grow without end make training with Muon unstable at scale. The largest logit
S of each head is that of the step's own batches; after the step, where S > T, the weights of query
and key are multiplied by √(T / S) each, so that the same inputs would give T.

What is scaled, by how the heads are made:

- each head has a query and a key of its own: rows of their products, and biases, by √(T / S);
- heads share a key (grouped heads): the rows of the query alone, by T / S. The paper does so with
  its shared keys: a shared one would change heads that are below the limit;
- query and key are normalised (QK-norm): the norms undo any scaling of the weights, and only their
  gains reach the logits. The heads of a layer share these, so both gains are multiplied by
  √(T / S) with the largest S of the layer's heads. Heads below the limit get smaller logits too;
  that is the price of one gain for all, and no logit of the batch is left above T. The paper has no
  norm there. With gains of 1 a logit is at most √d, so this is for gains that have grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heedful.layers import CrossAttention, MultiHeadAttention
from heedful.ops import dispatch
from heedful.ops.arguments import Arguments
from heedful.ops.largest_scores import largest_scores
from heedful.ops.log_sum_exp import Catching
from heedful.processes import Processes
from heedful.train.shards import held, own

Attention = MultiHeadAttention | CrossAttention
Clipped = dict[str, dict[int, float]]  # by the layer's name: heads, each with its largest logit


class LogitClipping:
    """Keeps the logits of a model's heads below a limit while it is trained.

    Args:
        model: whose layers of attention are clipped.
        limit: T; the paper has 100. 0 clips nothing and costs nothing.
        here: where several processes train, the largest logit of them all counts.

    >>> model = nn.ModuleList([MultiHeadAttention(width=2, heads=1)])
    >>> with torch.no_grad():
    ...     _ = model[0].projection.weight.copy_(3 * torch.eye(2).repeat(3, 1))
    >>> clipping = LogitClipping(model, limit=2.0)
    >>> with clipping.measuring():
    ...     _ = model[0](torch.eye(2)[None])
    >>> clipping.clip(), round(model[0].projection.weight[0, 0].item(), 3)
    ({'0': {0: 6.364}}, 1.682)
    """

    def __init__(self, model: nn.Module, limit: float, here: Processes | None = None) -> None:
        self.limit, self.here = limit, here or Processes()
        self._layers: dict[Attention, str] = {}
        if limit:
            self._layers = {
                module: name
                for name, module in model.named_modules()
                if isinstance(module, Attention)
            }
        self._running: Attention | None = None
        self._largest: dict[Attention, Tensor] = {}

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Take note of the largest logits of each pass that runs inside; then `clip`."""
        self._largest = {}
        with ExitStack() as stack:
            for layer in self._layers:
                stack.enter_context(_hooked(layer, self._enter))
            if self._layers:
                stack.enter_context(dispatch.listening(self._listen))
            yield

    @torch.no_grad()
    def clip(self) -> Clipped:
        """Scale down what was above the limit; for each layer, its heads that were, and how far."""
        clipped: Clipped = {}
        for layer, largest in self._largest.items():
            largest = self.here.largest(largest)
            above = {h: s for h, s in enumerate(largest.tolist()) if s > self.limit}
            if above:
                is_above = largest > self.limit
                _scale(layer, torch.where(is_above, self.limit / largest, torch.ones_like(largest)))
                clipped[self._layers[layer]] = {h: float(f"{s:.4g}") for h, s in above.items()}
        return clipped

    def _enter(self, layer: Attention, given: Any) -> None:
        self._running = layer

    def _listen(self, arguments: Arguments, context: Tensor, caught: Catching) -> None:
        layer = self._running
        if layer is None:
            return
        found = largest_scores(arguments, self.limit, caught.found(arguments.shape[:-1]))
        before = self._largest.get(layer)
        self._largest[layer] = found if before is None else torch.maximum(before, found)


@contextmanager
def _hooked(layer: Attention, hook: Any) -> Iterator[None]:
    handle = layer.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _scale(layer: Attention, by: Tensor) -> None:
    """Multiply the logits of each head by a number up to 1, (H,)."""
    d = layer.head_width
    root = by.sqrt().repeat_interleave(d)
    if isinstance(layer, CrossAttention):
        _scale_rows(layer.query, 0, root)
        _scale_rows(layer.memory, 0, root)
    elif not isinstance(layer.query_norm, nn.Identity):
        for norm in (layer.query_norm, layer.key_norm):
            own(norm.get_parameter("weight")).mul_(by.amin().sqrt())
    elif layer.kv_heads == layer.heads:
        _scale_rows(layer.projection, 0, root)
        _scale_rows(layer.projection, layer.heads * d, root)
    else:
        _scale_rows(layer.projection, 0, by.repeat_interleave(d))


def _scale_rows(product: nn.Linear, start: int, by: Tensor) -> None:
    """Multiply a run of outputs of a product, from `start` on, each by its number."""
    for parameter in (product.weight, product.bias):
        if parameter is not None:
            rows, by_row = held(parameter, start, by)
            rows.mul_(by_row.view(-1, *(1,) * (rows.ndim - 1)))
