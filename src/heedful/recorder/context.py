"""`heedful.record`: a context around an unmodified model, and what its doors see while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.ops import fused
from heedful.recorder import huggingface, own, refused, torch_functions
from heedful.recorder.capture import Layout, Seen, captured, crosses, layouts_of
from heedful.recorder.names import Running
from heedful.recorder.padding import real_tokens
from heedful.recorder.recording import Recording


@contextmanager
def record(
    model: nn.Module,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    values: bool = False,
    dtype: torch.dtype | None = None,
    every: int = 1,
    budget: int | None = None,
) -> Iterator[Recording]:
    """Record the attention of any PyTorch model while it runs, at the speed that it has.

    What is kept are the causes of each map (query, key, mask, scale); any part of the map is
    computed from them when somebody asks. The model's outputs and gradients are what they were,
    and nothing of it stays changed, also when an exception ends the block.

    Args:
        model: any module; nothing of it is modified.
        layers: numbers of the layers to record; default all.
        heads: the heads to record, with the keys that they share; default all.
        values: keep the values too, for `value_norm`.
        dtype: in which queries and keys are kept; default their own.
        every: record each n-th forward pass only, the first one included.
        budget: bytes that the record may take in memory; calls past it go to files in the
            system's directory for temporary ones, which go with the recording. Default no limit.

    Yields:
        a `Recording`, which fills as the model runs.

    Raises:
        ArgumentError: no module, or a model whose attention cannot be recorded truthfully.
        SaveError: past the budget, a full disk.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=9, context=8, width=12, layers=2, heads=3)).eval()
    >>> with record(model) as recording:
    ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
    >>> [call.name for call in recording], recording[0].weights(head=0, queries=[0])
    (['blocks.0.attend', 'blocks.1.attend'], tensor([[1., 0., 0., 0.]]))
    """
    _check(model, every)
    recording = Recording(budget=budget)
    with ExitStack() as stack:
        running = stack.enter_context(Running(model))
        recorder = _Recorder(recording, running, layers, heads, values, dtype, every)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(own.watch(recorder.see))
        if huggingface.is_loaded():
            stack.enter_context(huggingface.watch(recorder.see, recorder.claim))
        if torch_functions.is_needed(model):
            stack.enter_context(
                torch_functions.watch(recorder.see, recorder.is_wanted, running.batch)
            )
        yield recording


class _Recorder:
    """Gives what the doors see its name, layer and pass, and keeps what is wanted."""

    def __init__(
        self,
        recording: Recording,
        running: Running,
        layers: Collection[int] | None,
        heads: Collection[int] | None,
        values: bool,
        dtype: torch.dtype | None,
        every: int,
    ) -> None:
        self.recording, self.running = recording, running
        self.layers, self.heads = layers, heads
        self.values, self.dtype, self.every = values, dtype, every
        self.names: dict[str, int] = {}
        self.claimed = False
        self._known: list[tuple] = []
        self._copied: list[tuple] = []

    def is_wanted(self) -> bool:
        """Whether what runs now is to be recorded, and no other door sees it already."""
        wanted = self.running.here and self.running.forward % self.every == 0
        return wanted and not self.claimed and not fused.is_running()

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """What runs inside is one call, which one door sees; whether it is wanted."""
        if not self.running.here:  # another thread's, whose claim would hide calls of this one
            yield False
            return
        wanted = self.is_wanted()
        before, self.claimed = self.claimed, True
        try:
            yield wanted
        finally:
            self.claimed = before

    @torch.no_grad()
    def see(self, seen: Seen) -> None:
        """Keep a call."""
        if not self.is_wanted():
            return
        running = self.running
        layer = self.names.setdefault(running.name, len(self.names))
        if self.layers is not None and layer not in self.layers:
            return
        seen = replace(seen, bias=self._own(seen.bias), cross=crosses(seen, running.name))
        self.recording.add(
            captured(
                seen,
                name=running.name,
                layer=layer,
                forward=running.forward,
                layouts=self._layouts(seen),
                ids=token_ids(running.inputs, seen),
                heads=self.heads,
                values=self.values,
                dtype=self.dtype,
            )
        )

    def _layouts(self, seen: Seen) -> list[Layout]:
        """Those of the call; looked for once where the layers of a pass share a mask."""
        running = self.running
        real = real_tokens(running.inputs, seen, running.name, running.names)
        # `is`, and not ==, for these are tensors; another pass may have changed them in place
        same = (seen.mask, real.keys, real.queries)
        size = (running.forward, *seen.query.shape[:3], seen.key.shape[2], seen.cross)
        for known, shape, layouts in self._known:
            if shape == size and all(a is b for a, b in zip(same, known, strict=True)):
                return layouts
        layouts = layouts_of(seen, real.keys, real.queries)
        if isinstance(seen.mask, Tensor | None):
            self._known = [*self._known[-7:], (same, size, layouts)]
        return layouts

    def _own(self, bias: Tensor | None) -> Tensor | None:
        """A copy that nothing can change later; one for all layers that share a bias."""
        if bias is None:
            return None
        version = 0 if bias.is_inference() else bias._version
        place = (bias.data_ptr(), bias.shape, bias.stride(), version)
        for known, _, copy in self._copied:
            if known == place:
                return copy
        copy = bias.detach().clone()
        self._copied = [*self._copied[-3:], (place, bias, copy)]  # held, so its place stays its own
        return copy


def token_ids(inputs: dict, seen: Seen) -> Tensor | None:
    """(B, M), the tokens of the keys, where the model was given as many ids."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.is_floating_point() or seen.cross:
        return None
    if ids.ndim != 2 or ids.shape[1] != seen.key.shape[2]:
        return None
    return ids.detach().cpu().clone()


def _check(model: nn.Module, every: int) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}",
            expected="a torch module",
            remedy="record(model): for a pipeline, give its .model",
        )
    if every < 1:
        raise ArgumentError(f"every={every}", expected="at least 1")
    refused.check(model)
