"""`heedful.record`: a context that records the attention of an unmodified model."""

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
from heedful.recorder.axes.pass_inputs import Inputs, lengths_of
from heedful.recorder.axes.usual_order import widths_of
from heedful.recorder.doors import (
    heedful_attention,
    multihead_axes,
    refused_classes,
    torch_operations,
    transformers_interface,
)
from heedful.recorder.doors.tape import NESTED, Tape
from heedful.recorder.doors.uncompiled import uncompiled
from heedful.recorder.finalizing import Finalizer
from heedful.recorder.missed_modules import NOTHING, modules_without_calls
from heedful.recorder.module_stack import Frame, ModuleStack, is_library_model
from heedful.recorder.observed_call import AXES, Observed
from heedful.recorder.options import Options, check_heads
from heedful.recorder.standard_axes import PendingCall
from heedful.recorder.tracing import TRACED, is_traced
from heedful.recorder.verifying import verify
from heedful.recording import Recording
from heedful.recording.evidence import Evidence, evidence_of, with_sums
from heedful.recording.image_patches import patches_of
from heedful.recording.mask_groups import tables_of
from heedful.recording.module_names import Blocks, plain_name
from heedful.recording.pause import recording_paused

IN_TORCH_FUNC = "a pass inside torch.func, which wraps all tensors"


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
    """Record the attention of any PyTorch model while it runs at full speed.

    The recording stores the inputs of each attention map (query, key, mask, scale) and computes any
    part of the map from them on request. Outputs and gradients of the model do not change.

    Args:
        model: any module; hooks on it are removed at the end, also after an exception.
        tokenizer: names the tokens in `call.tokens`: a tokenizer of heedful or transformers, a
            processor that has one, or a function from a list of ids to a list of strings. This
            needs a model whose input is token ids, an integer tensor (texts, tokens).
        axes: the axes of the queries by module name, in the notation of einops, as
            `{"encoder.*.attn": "(h b) n d"}` for h heads, b texts, n queries of width d. The letter
            g stands for groups of heads that share a key, all other letters for parts of a text.
            Default: the axes that the layer documents, else the usual order (see `call.layout`).
        layers: the layers to record, by the numbers in the module names; default all.
        heads: the query heads to record, with their key heads; default all.
        values: whether to store the values, too, for `value_norm`.
        dtype: the type in which queries, keys and values are stored; default: the model's type.
        every: 10 records every tenth forward pass, beginning with the first; default every pass.
        budget: the maximum memory of the recording, in bytes. Further calls are stored in temporary
            files, which are removed with the recording. Default: no limit.

    Yields:
        a `Recording`, to which each call is added while the model runs.

    Raises:
        ArgumentError: an invalid argument, or a model whose attention is not a map.
        HeedfulError: a model of a transformers version before 5, which cannot be recorded.
        SaveError: the budget is exceeded and the disk is full.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> with record(model) as recording:
    ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
    >>> [call.name for call in recording], recording[0].weights(head=0, queries=[0])
    (['blocks.0.attend', 'blocks.1.attend'], tensor([[1., 0., 0., 0.]]))
    """
    modules = refused_classes.modules_of(model)
    options = Options.check(model, axes, layers, heads, values, dtype, every, budget, tokenizer)
    recording = Recording(budget=options.budget, naming=options.naming)
    running, stack = ModuleStack(model, modules), ExitStack()
    recorder = _Recorder(recording, running, options)
    record_again = functools.partial(
        record, tokenizer=tokenizer, axes=axes, layers=layers, heads=heads, values=values,
        dtype=dtype,
    )  # fmt: skip
    recording.probe = functools.partial(verify, record_again, recorder.finalizer)
    try:
        _enter_doors(recorder, stack)
        yield recording
    finally:
        stack.close()
    recorder.end(model)
    options.check_layers(recorder.names)
    recording.set_patches(patches_of(model, modules), recorder.image)


def _enter_doors(recorder: _Recorder, stack: ExitStack) -> None:
    running, report = recorder.running, recorder.report
    stack.callback(recorder.release)
    stack.enter_context(running)
    stack.enter_context(uncompiled(running.modules))
    stack.enter_context(heedful_attention.watch(report))
    if transformers_interface.is_loaded():
        stack.enter_context(transformers_interface.watch(report, recorder.claim))
    if not all(map(torch_operations.is_covered, running.modules)):
        tensors = [*running.model.parameters(), *running.model.buffers()]
        recorder.tape = stack.enter_context(torch_operations.watch(
            tensors, report, recorder.is_followed, lambda: running.name, recorder.miss
        ))  # fmt: skip


class _Recorder:
    """Stores each call of the requested layers and passes, with the name of its module."""

    def __init__(self, recording: Recording, running: ModuleStack, options: Options) -> None:
        self.recording, self.running, self.options = recording, running, options
        self.names: dict[str, int | None] = {}  # layer of each module that attends
        self.image: tuple[int, int] | None = None
        self.claimed = False
        self.tape: Tape | None = None  # None unless operations are watched
        weak = weakref.proxy(recording)  # no cycle: the recording refers to its finalizer
        self.finalizer = Finalizer(options, lambda *reason: weak.add_missed(*reason))
        recording.finalize = self.finalizer
        self._blocks = Blocks(running.modules)
        self._calls = 0
        self._widths: dict[str, set[int]] = {}  # widths of projections, by module name
        self._pass = -1
        self._begin_pass()

    def release(self) -> None:
        """Release all tensors of the model."""
        self.tape = None
        self._begin_pass()

    def _begin_pass(self) -> None:
        """Clear everything that the layers of a pass share."""
        self._pass = self.running.pass_index
        self._inputs: list[tuple[Frame, Tensor | None, Inputs]] = []
        self._mask_copies: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._in_torch_func: bool | None = None
        if self.tape is not None:
            self.tape.end_pass()

    def is_followed(self) -> bool:
        """Whether the running operation is the model's, and not part of a claimed call."""
        running = self.running  # this method runs for each operation, so it must be fast
        if self.claimed or not running.frames or dispatch.is_running():
            return False
        if running.pass_index != self._pass:
            self._begin_pass()
        return running.is_active and not self._is_in_torch_func()

    def _is_in_torch_func(self) -> bool:
        """Whether the pass is inside torch.func, where tensors may lack their batch axis."""
        if self._in_torch_func is None:
            root = self.running.root
            inputs = () if root is None else (*root.arguments, *root.keywords.values())
            self._in_torch_func = any(map(_is_of_torch_func, inputs))
            if self._in_torch_func:
                self.miss(self.running.name, IN_TORCH_FUNC)
        return self._in_torch_func

    def miss(self, name: str, reason: str) -> None:
        """Add a module whose attention cannot be recorded to `recording.missed`."""
        if max(0, self.running.pass_index) % self.options.every == 0:
            self.recording.add_missed(name, LookupError(reason))

    def end(self, model: nn.Module) -> None:
        """Add attention modules that ran without a recorded call to `recording.missed`."""
        running, name = self.running, type(model).__name__
        missed = self.recording._missed
        ran = set() if any(IN_TORCH_FUNC in why for why in missed.values()) else running.ran
        reported = {*self.names, *missed}
        for missed_name, why in modules_without_calls(running.modules, ran, reported):
            self.recording.add_missed(missed_name, LookupError(why))
        if running.ran_in_other_thread:
            self.recording.add_missed(name, LookupError("it ran in another thread"))
        if running.was_traced:
            self.recording.add_missed(name, LookupError(TRACED))
        if running.pass_index >= 0 and not (self.names or missed):
            self.recording.add_missed(name, LookupError(NOTHING))

    def should_record(self) -> bool:
        """Whether to record a call that runs now: its pass is recorded, and no door claims it."""
        is_recorded = self.running.is_active and self.running.pass_index % self.options.every == 0
        return is_recorded and not (self.claimed or dispatch.is_running())

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Hide the call that runs in this context from other doors; yield whether to record it."""
        if not self.running.is_active:  # else a call in another thread would hide the model's calls
            yield False
            return
        should_record, was_claimed, self.claimed = self.should_record(), self.claimed, True
        try:
            yield should_record
        finally:
            self.claimed = was_claimed

    def report(self, build: Callable[..., Observed], *arguments: Any, **keywords: Any) -> None:
        """Record the call that `build` returns. If `build` fails, report the call as missed."""
        if not self.should_record():
            return
        name = self.running.name
        if is_traced():  # the model traces a part of itself
            self.miss(name, TRACED)
            return
        # entering no_grad takes as long as a small matrix product, so do it only if needed
        with recording_paused(), torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            try:
                call = self._pending(name, build(*arguments, **keywords))
            except ArgumentError:
                raise
            except Exception as error:
                self.recording.add_missed(name, error)
                return
        if call is not None:
            self.recording.add(call)
            if call.evidence.epilogue is not None:  # check now: its parameters may change
                for capture in self.recording._captures[-1:]:
                    _ = capture.check

    def _pending(self, name: str, observed: Observed) -> PendingCall | None:
        """Return the call with its name, layer and pass; None if its layer is not requested."""
        running = self.running
        if running.pass_index != self._pass:
            self._begin_pass()
        if observed.query.is_nested:
            raise TypeError(NESTED)
        if _is_of_torch_func(observed.query):
            raise TypeError(IN_TORCH_FUNC)
        if note := dispatch.change_note():
            observed.why, observed.sums = note, None
        if observed.part:
            name = ".".join(filter(None, (plain_name(running.frames[-1].name), observed.part)))
        if name not in self.names:
            self.names[name] = self._blocks.layer_of(name)
        layer = self.names[name]
        number, self._calls = self._calls, self._calls + 1
        if self.options.layers is not None and layer not in self.options.layers:
            return None
        frame = running.frames[-1]
        if isinstance(frame.module, nn.MultiheadAttention):
            multihead_axes.add_module_facts(observed, frame)
        widths, lengths = set[int](), set[int]()
        if not observed.axes:
            if frame.name not in self._widths:
                self._widths[frame.name] = widths_of(frame.module)
            widths, lengths = self._widths[frame.name], lengths_of(frame)
        text_module = running.text_frame.module
        has_ids = self.options.naming or running.is_library_model or is_library_model(text_module)
        if observed.axes == AXES and (heads := self.options.heads) is not None:
            check_heads(heads, observed.query.shape[1], name)
            observed = observed.of_heads(heads)
        runs = tuple([(frame.name, frame.run) for frame in running.frames])
        return PendingCall(
            observed, self._copy_tensors(observed), name, layer, number, runs, running.pass_index,
            self._pass_inputs(), widths, lengths, running.in_decoder,
            bool(has_ids) and running.reads_text,
        )  # fmt: skip

    def _copy_tensors(self, observed: Observed) -> Evidence:
        """Copy the tensors that the model may change, and return the evidence for the check."""
        query, key, value, output = observed.query, observed.key, observed.value, observed.output
        dtype, dtypes = self.options.dtype, {query.dtype, self.options.dtype or query.dtype}
        evidence = evidence_of(value, output, dtypes, why=observed.why, epilogue=observed.epilogue)
        if observed.sums is not None and output is not None and dtype in (None, query.dtype):
            evidence = with_sums(evidence, observed.sums, query, output)
        if observed.taped is None:
            observed.query, observed.key = _copy(query, dtype), _copy(key, dtype)
        has_value = self.options.values and value is not None
        observed.value = _copy(value, dtype) if has_value else None  # type: ignore[arg-type]
        observed.output = observed.sums = None
        observed.mask = self._shared_copy(observed.mask)
        observed.bias = self._shared_copy(observed.bias)
        if observed.sinks is not None:
            observed.sinks = observed.sinks.detach().clone()
        return evidence

    def _shared_copy(self, mask: Any) -> Any:
        """Copy a mask or bias; layers of a pass that share it also share the copy."""
        if mask is None:
            return None
        tables = tables_of(mask) if isinstance(mask, Mask) else [mask]
        tensors = [table for table in tables if isinstance(table, Tensor)]
        if not tensors:  # a function, or a mask without tables
            return mask
        if any(table.is_inference() for table in tensors) or torch.is_inference_mode_enabled():
            return _copy_mask(mask)  # changes of inference tensors are not detected
        key = id(mask), *(table._version for table in tensors)
        if key not in self._mask_copies:
            self._mask_copies[key] = mask, _copy_mask(mask)
        return self._mask_copies[key][1]

    def _pass_inputs(self) -> Inputs:
        """Return the model inputs that hold the texts and masks of the running call."""
        text_frame, root = self.running.text_frame, self.running.root
        # if the caller runs the model's parts one by one, some parts may not receive the ids
        is_part = text_frame is root and text_frame.module is not self.running.model
        embedded_ids = self.running.embedded_ids if is_part else None
        for frame, ids, inputs in self._inputs:
            if frame is text_frame and ids is embedded_ids:
                return inputs
        inputs = Inputs(text_frame, embedded_ids)
        self._inputs.append((text_frame, embedded_ids, inputs))
        self.image = self.image or inputs.image
        return inputs


def _is_of_torch_func(value: Any) -> bool:
    return isinstance(value, Tensor) and torch._C._functorch.maybe_get_level(value) > 0


def _copy_mask(mask: Any) -> Any:
    if isinstance(mask, Tensor):
        for dim, stride in enumerate(mask.stride()[:-2]):
            if stride == 0:  # expanded, for example over the heads
                mask = mask[(slice(None),) * dim + (slice(1),)]
        return mask.detach().clone()
    return copy.deepcopy(mask)


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or dtype == tensor.dtype:
        return tensor.clone(memory_format=torch.contiguous_format)  # each head is contiguous
    return tensor.new_empty(tensor.shape, dtype=dtype).copy_(tensor)
