"""`heedful.record`: a context around an unmodified model, and what its doors see while it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.ops import fused
from heedful.recorder import huggingface, own, refused, torch_functions
from heedful.recorder.capture import Capture, captured, crosses, kind_of
from heedful.recorder.choices import Choices
from heedful.recorder.layout import Layout, layouts_of
from heedful.recorder.names import Running
from heedful.recorder.padding import Before, so_far
from heedful.recorder.recognise import Masks, place_of
from heedful.recorder.recording import Recording
from heedful.recorder.seen import Seen
from heedful.recorder.shared import Shared

NOTHING = (
    "no scaled_dot_product_attention, no nn.MultiheadAttention, no softmax and product after it; "
    "linear and graph attention and state spaces have no map of queries × keys"
)


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
    choices = Choices.of(layers, heads, values, dtype, every, budget)
    _check(model)
    recording = Recording(budget=choices.budget)
    with ExitStack() as stack:
        running = stack.enter_context(Running(model))
        recorder = _Recorder(recording, running, choices)
        stack.enter_context(_eager.entered())
        stack.enter_context(own.watch(recorder.see))
        if huggingface.is_loaded():
            stack.enter_context(huggingface.watch(recorder.see, recorder.claim))
        if torch_functions.is_needed(model):
            stack.enter_context(
                torch_functions.watch(recorder.see, recorder.is_wanted, running.texts)
            )
        yield recording
    if running.forward >= 0 and not (recorder.names or recording.missed):
        recording.miss(type(model).__name__, LookupError(NOTHING))
    choices.check_layers(recorder.names.values())


# What torch has compiled runs as it was written, so that doors see it, and nothing compiles anew
_eager = Shared(lambda: torch.compiler.set_stance("force_eager"))


class _Recorder:
    """Gives what the doors see its name, layer and pass, and keeps what is wanted."""

    def __init__(self, recording: Recording, running: Running, choices: Choices) -> None:
        self.recording, self.running, self.choices = recording, running, choices
        self.names: dict[str, int] = {}
        self.claimed = False
        self._lengths: dict[str, tuple[int, int]] = {}  # keys, and pass, of a module's last call
        self._before: dict[str, Before | None] = {}  # and what it told of padding
        self._forget()

    def _forget(self) -> None:
        """What layers of one pass share is held while it runs, and no longer."""
        self._forward = self.running.forward
        self._masks = Masks()
        self._known: list[tuple] = []
        self._copied: list[tuple] = []

    def is_wanted(self) -> bool:
        """Whether what runs now is to be recorded, and no other door sees it already."""
        wanted = self.running.here and self.running.forward % self.choices.every == 0
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
    def see(self, build: Callable[..., Seen], *told: Any, **named: Any) -> None:
        """Keep a call; `build` makes it of what a door tells.

        What the recorder does not understand must not end the forward pass of somebody else: such
        a call is missing in the recording, which says so.
        """
        if not self.is_wanted():
            return
        name = self.running.name
        if self.running.forward != self._forward:
            self._forget()
        try:
            seen = self._split(build(*told, **named), name)
        except Exception as error:
            self.recording.miss(name, error)
            return
        layer = self.names.setdefault(name, len(self.names))
        if self.choices.layers is not None and layer not in self.choices.layers:
            return
        self._check_heads(seen, name)
        try:
            capture = self._kept(seen, name, layer)
        except Exception as error:
            self.recording.miss(name, error)
            return
        self.recording.add(capture)

    def _split(self, seen: Seen, name: str) -> Seen:
        if seen.query.is_nested:
            raise TypeError("nested tensors, whose sequences have no common shape")
        if torch._C._functorch.maybe_get_level(seen.query) > 0:
            raise TypeError("a call inside torch.func, whose tensors are of its own")
        seen = self._masks.split(seen)
        return replace(seen, bias=self._own(seen.bias), cross=crosses(seen, name))

    def _kept(self, seen: Seen, name: str, layer: int) -> Capture:
        running, layouts = self.running, self._layouts(seen, name)
        return captured(
            seen,
            name=name,
            layer=layer,
            forward=running.forward,
            layouts=layouts,
            ids=running.inputs.ids(seen, running.writes) if running.reads_text else None,
            kind=self._kind(seen, name, layouts),
            heads=self.choices.heads,
            values=self.choices.values,
            dtype=self.choices.dtype,
        )

    def _kind(self, seen: Seen, name: str, layouts: list[Layout]) -> str:
        """As the call says; keys that have grown by the queries since the last call are a cache."""
        N = seen.shape[2]
        M = max((len(one.keys) for one in layouts), default=0)  # a cache may have room for more
        forward, kind = self.running.forward, kind_of(seen, name, layouts)
        before, last = self._lengths.get(name, (M, forward))
        self._lengths[name] = M, forward
        has_grown = 0 < M - before == N * max(1, forward - last)
        return "causal" if kind == "cross" and not seen.cross and has_grown else kind

    def _check_heads(self, seen: Seen, name: str) -> None:
        H = seen.shape[1]
        wrong = [head for head in self.choices.heads or () if head >= H]
        if wrong:
            raise ArgumentError(f"head {wrong[0]} of {name}", expected=f"heads from 0 to {H - 1}")

    def _layouts(self, seen: Seen, name: str) -> list[Layout]:
        """Those of the call; looked for once where the layers of a pass share a mask."""
        running, before = self.running, self._before.get(name)
        real = running.inputs.real(seen, running.writes)
        # `is`, and not ==, for these are tensors
        same = (seen.mask, seen.bias, real.keys, real.queries)
        size = (*seen.shape, seen.cross)
        found = (
            kept
            for known, shape, kept in self._known
            if shape == size and all(a is b for a, b in zip(same, known, strict=True))
        )
        kept = next(found, None)
        if kept is None:
            real, now = so_far(seen, real, before, running.forward)
            kept = layouts_of(seen, real), now
            self._known = [*self._known[-7:], (same, size, kept)]
        layouts, self._before[name] = kept
        return layouts

    def _own(self, bias: Tensor | None) -> Tensor | None:
        """A copy that nothing can change later; one for all layers that share a bias."""
        if bias is None:
            return None
        place = place_of(bias)
        for known, _, copy in self._copied:
            if known == place and (not bias.is_inference() or torch.equal(copy, bias)):
                return copy
        copy = bias.detach().clone()
        self._copied = [*self._copied[-3:], (place, bias, copy)]  # held, so its place stays its own
        return copy


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}",
            expected="a torch module",
            remedy="record(model): for a pipeline, give its .model",
        )
    refused.check(model)
