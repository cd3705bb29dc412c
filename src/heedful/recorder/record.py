"""`heedful.record`: a context around an unmodified model, and what its doors see while it runs."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.ops import dispatch
from heedful.ops.masks import Mask
from heedful.recorder.arranging import Seen
from heedful.recorder.axes.pass_inputs import Inputs, lengths_of
from heedful.recorder.axes.usual_order import widths_of
from heedful.recorder.doors import (
    heedful_attention,
    multihead_attention,
    torch_operations,
    transformers_interface,
    unsupported,
)
from heedful.recorder.doors.tape import NESTED, Tape
from heedful.recorder.doors.uncompiled import uncompiled
from heedful.recorder.finalizing import Settling
from heedful.recorder.missed_modules import NOTHING, silent
from heedful.recorder.module_stack import Frame, Running, is_known
from heedful.recorder.observed_call import AXES, Observed
from heedful.recorder.options import Options, check_heads
from heedful.recorder.tracing import TRACED, is_traced
from heedful.recorder.verifying import verify
from heedful.recording import Recording
from heedful.recording.evidence import Evidence, evidence_of, with_sums
from heedful.recording.image_patches import patches_of
from heedful.recording.mask_groups import tables_of
from heedful.recording.module_names import Blocks, plain_name
from heedful.recording.pause import computing

INSIDE = "a pass inside torch.func, whose tensors are of its own"


@contextmanager
def record(
    model: nn.Module,
    *,
    tokenizer: Any = None,
    axes: Mapping[str, str] | None = None,
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
        tokenizer: names the tokens, so that calls have their `tokens`: one of heedful or of
            transformers (or a processor that has one), or a function from a list of ids to a list
            of strings. The model is given their ids, a table of whole numbers (texts, tokens).
        axes: what the axes of the queries are, by names of modules with the letters of einops:
            `{"encoder.*.attn": "(h b) n d"}` has b texts, h heads, n queries of width d; g are
            groups of heads that share a key, other letters parts of a text. Default: as the layer
            tells, or in the usual order, which `call.layout` says.
        layers: numbers of the layers to record, as the modules' names have them; default all.
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
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> with record(model) as recording:
    ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
    >>> [call.name for call in recording], recording[0].weights(head=0, queries=[0])
    (['blocks.0.attend', 'blocks.1.attend'], tensor([[1., 0., 0., 0.]]))
    """
    modules = unsupported.modules_of(model)
    options = Options.of(model, axes, layers, heads, values, dtype, every, budget, tokenizer)
    recording = Recording(budget=options.budget, naming=options.naming)
    running, stack = Running(model, modules), ExitStack()
    recorder = _Recorder(recording, running, options)
    again = functools.partial(
        record, tokenizer=tokenizer, axes=axes, layers=layers, heads=heads, values=values,
        dtype=dtype,
    )  # fmt: skip
    recording.probe = functools.partial(verify, again, recorder.settling)
    try:
        _enter_doors(recorder, stack)
        yield recording
    finally:
        stack.close()
    recorder.end(model)
    options.check_layers(recorder.names)
    recording.know_patches(patches_of(model, modules), recorder.image)


def _enter_doors(recorder: _Recorder, stack: ExitStack) -> None:
    running, see = recorder.running, recorder.see
    stack.callback(recorder.let_go)
    stack.enter_context(running)
    stack.enter_context(uncompiled(running.modules))
    stack.enter_context(heedful_attention.watch(see))
    if transformers_interface.is_loaded():
        stack.enter_context(transformers_interface.watch(see, recorder.claim))
    if not all(map(torch_operations.tells, running.modules)):
        tensors = [*running.model.parameters(), *running.model.buffers()]
        recorder.tape = stack.enter_context(
            torch_operations.watch(
                tensors, see, recorder.follows, lambda: running.name, recorder.miss
            )
        )


class _Recorder:
    """Gives each call that the doors see its name, layer and pass, and keeps those wanted."""

    def __init__(self, recording: Recording, running: Running, options: Options) -> None:
        self.recording, self.running, self.options = recording, running, options
        self.names: dict[str, int | None] = {}  # the modules that attend, with their layers
        self.image: tuple[int, int] | None = None
        self.claimed = False
        self.tape: Tape | None = None  # where operations are watched
        weak = weakref.proxy(recording)  # which holds the settling
        self.settling = Settling(options, lambda *reason: weak.miss(*reason))
        recording.settling = self.settling
        self._blocks = Blocks(running.modules)
        self._calls = 0
        self._widths: dict[str, set[int]] = {}  # of the projections of modules, by their names
        self._pass = -1
        self._forget()

    def let_go(self) -> None:
        """Hold nothing of the model's any more, neither its inputs nor its masks."""
        self.tape = None
        self._forget()

    def _forget(self) -> None:
        """Forget what the layers of a pass share."""
        self._pass = self.running.pass_index
        self._inputs: list[tuple[Frame, Tensor | None, Inputs]] = []
        self._held: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._is_inside: bool | None = None  # whether the pass is inside torch.func
        if self.tape is not None:
            self.tape.end_pass()

    def follows(self) -> bool:
        """Whether operations that run now are the model's own, and of no call of another door."""
        # asked of each operation
        running = self.running
        if self.claimed or not running.stack or dispatch.is_running():
            return False
        if running.pass_index != self._pass:
            self._forget()
        return running.here and not self._inside()

    def _inside(self) -> bool:
        """Whether the pass is inside torch.func, where no shape shows how many texts there are."""
        if self._is_inside is None:
            root = self.running.root
            given = () if root is None else (*root.arguments, *root.keywords.values())
            self._is_inside = any(isinstance(one, Tensor) and _is_inside(one) for one in given)
            if self._is_inside:
                self.miss(self.running.name, INSIDE)
        return self._is_inside

    def miss(self, name: str, reason: str) -> None:
        """Note that a module has something like attention, but no map."""
        if max(0, self.running.pass_index) % self.options.every == 0:
            self.recording.miss(name, LookupError(reason))

    def end(self, model: nn.Module) -> None:
        """Note which modules ran and were not recorded."""
        running, name = self.running, type(model).__name__
        missed = self.recording._missed
        ran = set() if any(INSIDE in why for why in missed.values()) else running.ran
        for silent_name, why in silent(running.modules, ran, {*self.names, *missed}):
            self.recording.miss(silent_name, LookupError(why))
        if running.ran_elsewhere:
            self.recording.miss(name, LookupError("it ran in another thread"))
        if running.was_traced:
            self.recording.miss(name, LookupError(TRACED))
        if running.pass_index >= 0 and not (self.names or missed):
            self.recording.miss(name, LookupError(NOTHING))

    def is_wanted(self) -> bool:
        """Whether a call that runs now is to be recorded, and no other door sees it already."""
        wanted = self.running.here and self.running.pass_index % self.options.every == 0
        return wanted and not (self.claimed or dispatch.is_running())

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Keep other doors from what runs inside, which is one call; gives whether it is wanted."""
        if not self.running.here:  # the claim of another thread would hide calls of this one
            yield False
            return
        wanted, before, self.claimed = self.is_wanted(), self.claimed, True
        try:
            yield wanted
        finally:
            self.claimed = before

    def see(self, build: Callable[..., Observed], *told: Any, **named: Any) -> None:
        """Keep the call that `build` makes of what a door tells; one that is not understood is
        missed, and does not end the model's forward pass."""
        if not self.is_wanted():
            return
        name = self.running.name
        if is_traced():  # a part of the model alone, inside its pass
            self.miss(name, TRACED)
            return
        # no_grad takes as long as a small product
        with computing(), torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            try:
                seen = self._seen(name, build(*told, **named))
            except ArgumentError:
                raise
            except Exception as error:
                self.recording.miss(name, error)
                return
        if seen is not None:
            self.recording.add(seen)
            if seen.evidence.finish is not None:  # by weights of the model, which may change later
                for capture in self.recording._captures[-1:]:
                    _ = capture.check

    def _seen(self, name: str, observed: Observed) -> Seen | None:
        """The call with what is known of where it ran; None where its layer is not wanted."""
        running = self.running
        if running.pass_index != self._pass:
            self._forget()
        if observed.query.is_nested:
            raise TypeError(NESTED)
        if _is_inside(observed.query):
            raise TypeError(INSIDE)
        if observed.part:
            name = ".".join(filter(None, (plain_name(running.stack[-1].name), observed.part)))
        if name not in self.names:
            self.names[name] = self._blocks.layer_of(name)
        layer = self.names[name]
        number, self._calls = self._calls, self._calls + 1
        if self.options.layers is not None and layer not in self.options.layers:
            return None
        frame = running.stack[-1]
        if isinstance(frame.module, nn.MultiheadAttention):
            multihead_attention.tell(observed, frame)
        widths, lengths = set[int](), set[int]()
        if not observed.axes:
            if frame.name not in self._widths:
                self._widths[frame.name] = widths_of(frame.module)
            widths, lengths = self._widths[frame.name], lengths_of(frame)
        known = self.options.naming or running.is_known or is_known(running.reader.module)
        if observed.axes == AXES and (heads := self.options.heads) is not None:
            check_heads(heads, observed.query.shape[1], name)
            observed = observed.of_heads(heads)
        where = tuple([(frame.name, frame.run) for frame in running.stack])
        return Seen(
            observed, self._kept(observed), name, layer, number, where, running.pass_index,
            self._given(), widths, lengths, running.writes, bool(known) and running.reads_text,
        )  # fmt: skip

    def _kept(self, observed: Observed) -> Evidence:
        """Copy what the model may change of a call, and give what it is checked against."""
        query, key, value, output = observed.query, observed.key, observed.value, observed.output
        dtype, kinds = self.options.dtype, {query.dtype, self.options.dtype or query.dtype}
        evidence = evidence_of(value, output, kinds, why=observed.why, finish=observed.finish)
        if observed.sums is not None and output is not None and dtype in (None, query.dtype):
            evidence = with_sums(evidence, observed.sums, query, output)
        if observed.meeting is None:
            observed.query, observed.key = _copy(query, dtype), _copy(key, dtype)
        is_kept = self.options.values and value is not None
        observed.value = _copy(value, dtype) if is_kept else None  # type: ignore[arg-type]
        observed.output = observed.sums = None
        observed.mask, observed.bias = self._once(observed.mask), self._once(observed.bias)
        if observed.sinks is not None:
            observed.sinks = observed.sinks.detach().clone()
        return evidence

    def _once(self, mask: Any) -> Any:
        """A copy of a mask or bias, one for all layers of a pass that share it."""
        if mask is None:
            return None
        tables = tables_of(mask) if isinstance(mask, Mask) else [mask]
        tensors = [table for table in tables if isinstance(table, Tensor)]
        if not tensors:  # a function, or a mask of numbers alone
            return mask
        if any(table.is_inference() for table in tensors) or torch.is_inference_mode_enabled():
            return _held(mask)  # they count no changes
        key = id(mask), *(table._version for table in tensors)
        if key not in self._held:
            self._held[key] = mask, _held(mask)
        return self._held[key][1]

    def _given(self) -> Inputs:
        """The inputs that tell of the texts of the call that runs."""
        reader = self.running.reader
        # of a model that is called part by part
        is_part = reader is self.running.root and reader.module is not self.running.model
        embedded = self.running.embedded if is_part else None
        for frame, ids, inputs in self._inputs:
            if frame is reader and ids is embedded:
                return inputs
        inputs = Inputs(reader, embedded)
        self._inputs.append((reader, embedded, inputs))
        self.image = self.image or inputs.image
        return inputs


def _is_inside(tensor: Tensor) -> bool:
    """Whether a tensor is of torch.func."""
    return torch._C._functorch.maybe_get_level(tensor) > 0


def _held(mask: Any) -> Any:
    """A copy of a mask."""
    if isinstance(mask, Tensor):
        for dim, stride in enumerate(mask.stride()[:-2]):
            if stride == 0:  # expanded, as over all heads
                mask = mask[(slice(None),) * dim + (slice(1),)]
        return mask.detach().clone()
    return copy.deepcopy(mask)


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or dtype == tensor.dtype:  # in one step
        return tensor.clone(memory_format=torch.contiguous_format)  # each head's rows together
    return tensor.new_empty(tensor.shape, dtype=dtype).copy_(tensor)
