"""`heedful.intervene`: a context in which heads of an unmodified model give another output."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, RunError
from heedful.interventions import doors
from heedful.interventions.base import Change, check_positions, within
from heedful.interventions.certificate import ChangeReport, Report
from heedful.interventions.change import EXPECTED, as_change
from heedful.interventions.head_call import BLOCK, CHANGED, HeadCall, attend
from heedful.interventions.names import Key, keys_of
from heedful.ops import dispatch
from heedful.ops.inputs import no_autocast
from heedful.recorder.axes.call_kind import crosses
from heedful.recorder.axes.mask_structure import Masks
from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.doors import refused_classes
from heedful.recorder.doors.uncompiled import uncompiled
from heedful.recorder.module_stack import ModuleStack
from heedful.recorder.observed_call import AXES, Observed
from heedful.recorder.options import check_heads
from heedful.recording.module_names import is_in

# A change or a list of changes, applied in order; a function of (query, key, value, output)
Changes: TypeAlias = Change | Callable[..., Any] | Sequence[Change | Callable[..., Any]]


@contextmanager
def intervene(model: nn.Module, changes: Mapping[str, Changes]) -> Iterator[Intervention]:
    """Change what attention heads of a model give, while it runs at full speed.

    The model and its weights are not modified. Gradients flow through all changes. Each changed
    output is compared with the definition of the change in some rows: `changed.report()`.

    Args:
        model: any module that attends by `heedful.attention`, by `scaled_dot_product_attention`, or
            as models of transformers do. Nothing stays changed after the context.
        changes: for each module, a change of `heedful.change`, a function of (query, key, value,
            output) that returns the new output, or a list of these, applied in order. Shapes:
            query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v). A module
            is named by a part of its name, as "layers.5" in "model.layers.5.self_attn"; `*` stands
            for any number or word, and then several modules may fit. Put all changes of a module in
            one context: blocks of nested contexts do not add up.

    Yields:
        an `Intervention`, whose `report()` lists what was changed.

    Raises:
        ArgumentError: a name that fits no module, or several; a head or position that does not
            exist; a recording that does not fit; dropout in training mode, except for `zero`,
            `scale` and `mean`; gradient checkpointing.
        RunError: attention that cannot be changed, such as attention by hand; no forward pass.

    >>> import heedful
    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> with intervene(model, {"blocks.1": heedful.change.zero(heads=[0, 2])}) as changed:
    ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
    >>> print(changed.report())
    module           change  heads  calls  rows  lost  difference  proof
    blocks.1.attend  zero    0, 2   1      4     0     0e+00       proved
    """
    modules = refused_classes.modules_of(model)
    for module, name in modules.items():
        if getattr(module, "gradient_checkpointing", False) and module.training:
            raise _checkpointed(name or type(module).__name__)
    running = ModuleStack(model, modules)
    intervention = Intervention(running, keys_of(_checked(changes), modules, model))
    with ExitStack() as stack:
        stack.enter_context(running)
        stack.enter_context(uncompiled(modules))
        stack.enter_context(doors.entered(modules, intervention.apply, intervention.next_note))
        yield intervention
    intervention.check()


class Intervention:
    """The running changes of `intervene`, and what they have done."""

    def __init__(self, running: ModuleStack, keys: list[Key]) -> None:
        self._running, self._keys = running, keys
        self._logs: dict[tuple[str, int], ChangeReport] = {}  # by module and id of the change
        self._numbers: Counter[str] = Counter()  # calls of each module
        self._changeable: dict[str, None] = {}  # modules whose calls can be changed, in order
        self._pass, self._masks = -1, Masks()  # the pass and its masks

    def report(self) -> Report:
        """Return a list of `ChangeReport`s, which prints as a table; `to_json()` gives JSON."""
        return Report(self._logs.values())

    def next_note(self) -> str:
        """Return how a call that runs now will be changed; "" if it will not."""
        running = self._running
        if not running.is_active or dispatch.is_running():
            return ""
        changes = [c.text for key in self._keys if key.fits(running.name) for c in key.changes]
        return f"{CHANGED}: {', '.join(changes)}" if changes else ""

    def apply(self, build: Callable[[], Observed], run: Callable[[], Tensor]) -> tuple[Tensor, str]:
        """Return the output (B, H, N, v) that the model is to use for a call, and a note ("" if the
        output is unchanged). `run()` computes the model's own output."""
        running = self._running
        if running.frames and torch._C._current_graph_task_id() != -1:
            raise _checkpointed(running.name)
        if running.is_active and not dispatch.is_running():
            self._changeable[running.name] = None
        note = self.next_note()
        if not note:
            return run(), ""
        observed = build()
        run = _as_now(run, observed.query)
        with dispatch.hidden(), no_autocast(observed.query):
            call = unchanged = self._call(observed, running.name, run)
            keys = [key for key in self._keys if key.fits(call.name)]
            for key in keys:
                key.add(call.name)
            changes = [change for key in keys for change in key.changes]
            # edges first: they compute rows of the output again
            for change in sorted(changes, key=lambda change: change.edges is None):
                call = _changed(call, change, self._log(call.name, change))
        return call.before, "" if call is unchanged else note

    def _log(self, name: str, change: Change) -> ChangeReport:
        log = ChangeReport(name, change.name)
        return self._logs.setdefault((name, id(change)), log)

    def _call(self, observed: Observed, name: str, run: Callable[[], Tensor]) -> HeadCall:
        """Return the call with its place in the text; `run()` computes its output."""
        (B, H, N, M), running = observed.shape, self._running
        if running.pass_index != self._pass:
            self._pass, self._masks = running.pass_index, Masks()
        texts, _ = Inputs(running.text_frame).texts(N) if observed.door == doors.DOOR else (1, 1)
        if observed.axes != AXES or (texts and B % texts):
            raise ArgumentError(
                f"a query {tuple(observed.query.shape)} of {name}, for {texts or '?'} texts",
                expected="the axes (batch, heads, tokens, width)",
            )
        self._masks.split(observed)
        is_cross, cached = crosses(observed, name), running.text_frame.cached
        number, self._numbers[name] = self._numbers[name], self._numbers[name] + 1
        first_query = cached or 0
        if N == M or (cached is None and not is_cross):
            first_query = max(0, M - N)
        # the cache of a window has lost the first keys
        first_key = 0 if cached is None or is_cross else max(0, first_query + N - M)
        return HeadCall(
            **vars(observed), compute_output=run, name=name, number=number,
            pass_index=running.pass_index,
            heads=tuple(range(H)), all_heads=H, first_query=first_query, first_key=first_key,
        )  # fmt: skip

    def check(self) -> None:
        """Raise an error if a module was not changed; warn of outputs that differ from the
        definition."""
        for key in self._keys:
            for module in key.modules:
                if not any(is_in(name, module) for name in key.attending):
                    raise self._not_changed(module)
            for name, change in ((name, c) for name in key.attending for c in key.changes):
                log = self._log(name, change)
                sides = ("queries", "keys")
                for side in zip(sides, change.edges or (), log.positions, strict=False):
                    check_positions(*side)
                if log.proof == "refuted":
                    warnings.warn(
                        f"{change.name} in {name} differs from its definition by "
                        f"{log.difference:.0e}, and rounding explains {log.tolerance:.0e}",
                        stacklevel=4,
                    )

    def _not_changed(self, name: str) -> RunError:
        if self._running.pass_index < 0:
            return RunError(f"no forward pass of the model, so {name} was not changed")
        names = ", ".join(self._changeable) or "none in this model"
        return RunError(
            f"the attention of {name or 'the model'} was not changed",
            expected=f"modules that can be changed: {names}",
            cause="attention by hand, as products and a softmax, or a module without attention",
            remedy="use scaled_dot_product_attention, or attn_implementation='sdpa'",
        )


def _changed(call: HeadCall, change: Change, log: ChangeReport) -> HeadCall:
    """Return a call after one change."""
    heads = call.heads if change.heads is None else change.heads
    check_heads([*heads], call.all_heads, call.name)
    if call.why and not change.accepts_dropout:
        raise ArgumentError(
            f"{change.name} in {call.name}, where {call.why}",
            expected="evaluation mode, or one of zero, scale and mean", remedy="call model.eval()",
        )  # fmt: skip
    rows, hidden, part = call.rows, call.hidden, call.of_heads(heads)
    before = part
    if change.edges is not None:
        queries, keys = change.edges
        index = within(keys, call.first_key, call.shape[3])
        rows = within(queries, call.first_query, call.shape[2] if len(index) else 0)
        hidden = (*hidden, (heads, rows, index))
        part = replace(part, hidden=hidden)
    if not len(rows):
        log.add(part, change, part.values[:, :, :0], rows, 0)
        return call
    if change.edges is not None:
        new = attend(part, rows)
    else:
        new = change.compute(part) if change.compute else change.define(part, rows)  # type: ignore
    new = new.to(call.value.dtype)
    log.add(part, change, new, rows, 0 if part is before else _lost(before, part, rows))
    if len(rows) < call.shape[2]:
        new = part.before.index_copy(2, rows.to(new.device), new)
    if heads != call.heads:
        index = torch.tensor(heads, device=new.device)
        new = call.before.index_copy(1, index, new)
    return replace(call, compute_output=lambda: new, hidden=hidden)


def _lost(before: HeadCall, after: HeadCall, rows: Tensor) -> int:
    """Return how many rows lost all their keys in some head, over all texts."""
    lost = 0
    for block in rows.split(BLOCK):
        has_lost = before.visible(block).any(dim=-1) & ~after.visible(block).any(dim=-1)
        lost += int(has_lost.expand(*before.query.shape[:2], -1).any(dim=1).sum())
    return lost


def _as_now(run: Callable[[], Tensor], query: Tensor) -> Callable[[], Tensor]:
    """Return a function that calls `run` once, later, with the present autocast."""
    device = query.device.type
    is_cast, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    @functools.cache
    def run_once() -> Tensor:
        with torch.autocast(device, dtype, is_cast):
            return run()

    return run_once


def _checkpointed(name: str) -> ArgumentError:
    return ArgumentError(
        f"gradient checkpointing in {name}",
        expected="a model without it: layers would run again without their changes",
    )


def _checked(changes: Any) -> dict[str, list[Change]]:
    """Return the changes of each key as a list; raise `ArgumentError` for anything else."""
    given = changes if isinstance(changes, Mapping) else {}
    lists = {str(k): v if isinstance(v, list | tuple) else [v] for k, v in given.items()}
    if not any(lists.values()):
        raise ArgumentError(f"changes {changes!r:.40}", expected=EXPECTED)
    return {key: [as_change(item) for item in items] for key, items in lists.items()}
