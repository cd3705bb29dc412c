"""`heedful.intervene`: a context in which heads of an unmodified model give another output."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, RunError
from heedful.interventions import change as changes_module
from heedful.interventions import doors
from heedful.interventions.base import Change
from heedful.interventions.certificate import Log, Report, report_of
from heedful.interventions.head_call import HeadCall
from heedful.interventions.names import Key, keys_of
from heedful.ops import dispatch
from heedful.ops.inputs import no_autocast
from heedful.recorder.axes.call_kind import crosses
from heedful.recorder.axes.mask_structure import Masks
from heedful.recorder.doors import refused_classes
from heedful.recorder.doors.uncompiled import uncompiled
from heedful.recorder.module_stack import Hook, ModuleStack
from heedful.recorder.observed_call import AXES, Observed

# A change or a list of changes, applied in order; a function of (query, key, value, output)
Changes: TypeAlias = Change | Callable[..., Any] | Sequence[Change | Callable[..., Any]]


@contextmanager
def intervene(model: nn.Module, changes: Mapping[str, Changes]) -> Iterator[Intervention]:
    """Change what attention heads of a model give, while it runs at full speed.

    The model and its weights are not modified. Gradients flow through all changes. Each changed
    output is compared with the definition of the change in some rows: `changed.report()`.

    Args:
        model: any module whose attention is `heedful.attention`, torch's
            `scaled_dot_product_attention`, or of transformers; nothing stays changed after the
            context, also after an exception.
        changes: for each module, a change of `heedful.change`, a function of (query, key, value,
            output) that returns the new output, or a list of these, applied in order. Shapes:
            query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v). A module
            is named by a part of its name, as "layers.5" in "model.layers.5.self_attn"; `*` stands
            for any number or word, and allows several modules.

    Yields:
        an `Intervention`, whose `report()` lists what was changed.

    Raises:
        ArgumentError: a name that fits no module, or several; a head or position that does not
            exist; a recording that does not fit; dropout in training mode, except for `zero`,
            `scale` and `mean`.
        RunError: attention that cannot be changed, such as attention by hand; at the end, changes
            that no call of attention met.

    >>> import heedful
    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> ids = torch.tensor([[1, 2, 3, 4]])
    >>> with intervene(model, {"blocks.1": heedful.change.zero(heads=[0, 2])}) as changed:
    ...     _ = model(ids)
    >>> print(changed.report())
    module           change  heads  calls  rows  lost  difference  proof
    blocks.1.attend  zero    0, 2   1      4     0     0e+00       proved
    """
    modules = refused_classes.modules_of(model)
    for module, name in modules.items():
        if getattr(module, "gradient_checkpointing", False) and module.training:
            raise ArgumentError(
                f"gradient checkpointing in {name or 'the model'}",
                expected="a model without it: layers would run again without their changes",
            )
    running = ModuleStack(model, modules)
    intervention = Intervention(running, keys_of(_checked(changes), modules, model))
    ending = _Ending(intervention)
    with ExitStack() as stack:
        stack.callback(ending.disconnect)
        stack.enter_context(running)
        stack.callback(model.register_forward_hook(ending).remove)
        stack.enter_context(uncompiled(modules))
        stack.enter_context(doors.entered(modules, intervention.apply, intervention.next_note))
        yield intervention
    intervention.check_all()


class Intervention:
    """The running changes of `intervene`, and what they have done."""

    def __init__(self, running: ModuleStack, keys: list[Key]) -> None:
        self._running, self._keys = running, keys
        self._logs: dict[tuple[str, int, int], Log] = {}  # by module, key and index of the change
        self._numbers: Counter[str] = Counter()  # calls of each module
        self._attending: dict[str, None] = {}  # modules whose calls can be changed, in order
        self._changed: set[str] = set()  # modules with a changed call in this pass
        self._pass, self._masks = -1, Masks()

    def __repr__(self) -> str:
        calls = sum(log.calls for log in self._logs.values())
        return f"<Intervention: {calls:,} changed call{'' if calls == 1 else 's'}>"

    def report(self) -> Report:
        """Return what was changed where, how often, and how far each change is from its definition.

        The result is a list of `ChangeReport`s, which prints as a table; `to_json()` gives JSON.
        """
        return report_of(self._logs.values())

    def next_note(self) -> str:
        """Return how a call that runs now will be changed; "" if it will not."""
        running = self._running
        if not running.is_active or dispatch.is_running():
            return ""
        keys = [key for key in self._keys if key.fits(running.name)]
        texts = [change.text for key in keys for change in key.changes]
        return f"changed by heedful.intervene: {', '.join(texts)}" if texts else ""

    def apply(self, build: Callable[[], Observed]) -> tuple[Tensor | None, str]:
        """Return the new output (B, H, N, v) of a call and a note; (None, "") if unchanged."""
        running = self._running
        if running.frames and torch._C._current_graph_task_id() != -1:
            raise ArgumentError(
                f"{running.name} runs again in the backward pass",
                expected="a model without gradient checkpointing",
            )
        if not running.is_active or dispatch.is_running():
            return None, ""
        name, note = running.name, self.next_note()
        self._attending[name] = None
        if not note:
            return None, ""
        if running.pass_index != self._pass:
            self._pass, self._masks = running.pass_index, Masks()
        with dispatch.hidden():
            observed = build()
            with no_autocast(observed.query):
                output = self._changed_output(self._call(observed, name))
        return output, note

    def _call(self, observed: Observed, name: str) -> HeadCall:
        """Return the call with its place in the text."""
        (B, H, N, M), running = observed.shape, self._running
        if observed.axes != AXES:
            raise ArgumentError(
                f"attention of {name} with unknown axes", expected="(batch, heads, tokens, width)"
            )
        self._masks.split(observed)
        observed.cross = crosses(observed, name)
        number, cached = self._numbers[name], running.text_frame.cached
        self._numbers[name] += 1
        first_query = max(0, M - N) if cached is None and not observed.cross else cached or 0
        first_query = 0 if N == M else first_query
        # a cache of a window has lost the first keys
        first_key = 0 if cached is None or observed.cross else max(0, first_query + N - M)
        return HeadCall(
            **vars(observed), name=name, number=number, pass_index=running.pass_index,
            heads=tuple(range(H)), all_heads=H, first_query=first_query, first_key=first_key,
        )  # fmt: skip

    def _changed_output(self, call: HeadCall) -> Tensor:
        for at, key in enumerate(self._keys):
            if key.fits(call.name):
                key.add(call.name)
                for index, change in enumerate(key.changes):
                    log = self._logs.setdefault((call.name, at, index), Log(call.name, change))
                    call = replace(call, output=_changed(call, change, log))
        self._changed.add(call.name)
        output: Any = call.output
        return output

    def end_pass(self) -> None:
        """Raise `RunError` if attention of a module that ran in this pass was not changed."""
        running, changed = self._running, self._changed
        self._changed = set()
        for key in self._keys:
            ran = [name for name in key.modules if running.ran_in_pass(name)]
            missed = [name for name in ran if not any(key.is_part(name, part) for part in changed)]
            if missed:
                raise self._not_changed(missed[0])

    def check_all(self) -> None:
        """Raise an error if a change met no call; warn if an output differs from its definition."""
        for key in self._keys:
            if not key.attending:
                raise self._not_changed(key.modules[0])
        for log in self._logs.values():
            log.change.check_positions(log.queries, log.keys)
            if log.line.proof == "refuted":
                warnings.warn(
                    f"{log.change.name} in {log.module} differs from its definition by "
                    f"{log.difference:.0e}, and rounding explains {log.tolerance:.0e}",
                    stacklevel=4,
                )

    def _not_changed(self, name: str) -> RunError:
        if self._running.pass_index < 0:
            return RunError(f"no pass of the model, so {name} was not changed")
        names = ", ".join(self._attending) or "none"
        return RunError(
            f"the attention of {name or 'the model'} was not changed",
            expected=f"a module whose attention can be changed: {names}",
            cause="attention by hand, a fused layer of torch, or a module without attention",
            remedy="use scaled_dot_product_attention, or attn_implementation='sdpa'",
        )


def _changed(call: HeadCall, change: Change, log: Log) -> Tensor:
    """Return the output (B, H, N, v) of a call after one change."""
    B, H, N, _ = call.shape
    heads = call.heads if change.heads is None else change.heads
    if max(heads) >= H:
        raise ArgumentError(
            f"head {max(heads)} of {call.name}", expected=f"heads from 0 to {H - 1}"
        )
    if call.why and not change.accepts_dropout:
        raise ArgumentError(
            f"{change.name} in {call.name}, where {call.why}",
            expected="evaluation mode, or one of zero, scale and mean", remedy="call model.eval()",
        )  # fmt: skip
    part, device = call.of_heads(heads), call.query.device
    result, output = change.output(part), part.output
    new = result.output.to(output)
    rows = N if result.rows is None else len(result.rows)
    if result.rows is not None:
        new = output.index_copy(2, result.rows.to(device), new)
    log.add(part, new, B * rows, result.lost)
    if len(heads) == H:
        order = torch.tensor(heads, device=device).argsort()
        return new if heads == call.heads else new[:, order]
    return call.output.index_copy(1, torch.tensor(heads, device=device), new)


def _checked(changes: Any) -> dict[str, list[Change]]:
    """Return the changes of each key as a list; raise `ArgumentError` for anything else."""
    if not isinstance(changes, Mapping) or not changes:
        raise ArgumentError(
            f"changes of type {type(changes).__name__}",
            expected='modules and their changes: {"layers.5": change.zero(heads=[1])}',
        )
    return {str(key): _list_of(key, value) for key, value in changes.items()}


def _list_of(key: str, value: Any) -> list[Change]:
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    for item in items:
        if not isinstance(item, Change) and not callable(item):
            raise ArgumentError(
                f"a change of type {type(item).__name__} for {key!r}",
                expected="a change such as heedful.change.zero(heads=[1]), or a function",
            )
    if not items:
        raise ArgumentError(f"no change for {key!r}", expected="one or several")
    return [item if isinstance(item, Change) else changes_module.function(item) for item in items]


class _Ending(Hook):
    """Checks the changes when the model's forward pass has ended."""

    __slots__ = ("intervention",)

    def __init__(self, intervention: Intervention | None = None) -> None:
        super().__init__()
        self.intervention = intervention

    def __call__(self, *arguments: Any) -> None:
        if self.intervention is not None:
            self.intervention.end_pass()

    def disconnect(self) -> None:
        """Release the intervention."""
        self.intervention = None
