"""Blocks of a model that ran before a change return their outputs of a plain pass.

A block that ended before the changed attention began cannot depend on the change. Blocks are the
children of each ModuleList or Sequential that contains attention; those that ran more than once in
the pass run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from heedful.recording.module_names import plain_name


class Blocks:
    """The blocks of a model with their outputs in a plain pass; `names` are its attending modules.

    begins, ends: the times at which modules first began and last ended in the plain pass.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        self.modules = {plain_name(name): module for name, module in model.named_modules()}
        self.attending = {self.modules[name] for name in names}
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
        self.blocks = {b for m in lists if self.attending & {*m.modules()} for b in m}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Store the outputs of all blocks in the plain pass that runs inside."""
        self.runs, self.outputs = Counter[nn.Module](), dict[nn.Module, Any]()
        self.begins, self.ends = dict[nn.Module, int](), dict[nn.Module, int]()

        def begin(module: nn.Module, *_: Any) -> None:
            self.begins.setdefault(module, self.runs.total())
            self.runs[module] += 1

        def end(module: nn.Module, _: Any, output: Any) -> None:
            self.ends[module], self.outputs[module] = self.runs.total(), _copied(output)

        with ExitStack() as stack:
            for module in self.blocks | self.attending:
                stack.callback(module.register_forward_pre_hook(begin).remove)
                stack.callback(module.register_forward_hook(end).remove)
            yield

    @contextmanager
    def skipped(self, changed: Iterable[str]) -> Iterator[None]:
        """Skip the blocks that ended before the first of the `changed` modules began."""
        first = min((self.begins.get(self.modules[name], 0) for name in changed), default=0)
        skipped = [b for b in self.blocks if self.runs[b] == 1 and self.ends[b] <= first]
        earlier = {block: vars(block).get("forward") for block in skipped}
        try:
            for block in skipped:  # a later module may change its input in place: copy the output
                output = self.outputs[block]
                block.forward = lambda *_, output=output, **__: _copied(output)
            yield
        finally:
            for block, forward in earlier.items():
                del block.forward
                if forward is not None:
                    block.forward = forward


def _copied(output: Any) -> Any:
    return tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, output)
