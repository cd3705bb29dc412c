"""Sees every operation of torch while a model runs, and passes it on to be followed.

It is a dispatch mode, below Python: einsum, matmul and `@` arrive as what they come to, views
(which cost nothing here) and products. Each operation runs as it would without the mode; then
`Roles` is told of it, or the listener for a kernel that is attention as a whole. No function of the
model's is run again, and nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.errors import HeedfulError
from heedful.ops import log_sum_exp
from heedful.recorder import own_work
from heedful.recorder.following import axis_rules, in_place, without_mode, writes
from heedful.recorder.following.axis_rules import is_tensor
from heedful.recorder.following.operation_kinds import KINDS, LISTS, Kind, done_of, kind_of
from heedful.recorder.following.outside import Outside
from heedful.recorder.following.parameters import Parameters
from heedful.recorder.following.roles import Listeners, Roles
from heedful.recorder.following.score_changes import SOFTMAX
from heedful.recorder.following.storages import Traced

Fused = Callable[[Any, dict[str, Any]], None]
ASKED = log_sum_exp.WHERE_ASKED


class Operations(TorchDispatchMode):
    """Follows scores from their product to the values that they weigh.

    Args:
        here: tells whether a pass of the model runs whose operations are to be followed.
        fused: for the name of each operation that is attention as a whole, a function that is
            called with the result and with the arguments by name.
        told: the functions to call with softmaxes and meetings.
        missed: is called with the text of an error.
        unknown: is called with the name of a kernel of attention that is none of torch's own.
        outside: follows what runs while no module is being called.
        parameters: those of the model.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        here: Callable[[], bool],
        fused: dict[str, Fused],
        told: Listeners,
        missed: Callable[[str], None],
        unknown: Callable[[str], None],
        outside: Outside,
        parameters: Parameters,
    ) -> None:
        super().__init__()
        self.here, self.fused, self.missed, self.unknown = here, fused, missed, unknown
        self.traced = Traced(parameters)
        self.roles, self.outside = Roles(self.traced, told), outside
        self.composites = without_mode.Composites()
        outside.begin(self.traced)

    def end(self) -> None:
        """Follow nothing any more: it may still stand in the stack of another thread."""
        self.traced.clear()
        self.here = lambda: False
        self.outside.end()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled while it watches, so dynamo need not be kept from it."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        known = KINDS.get(id(function))
        kind = kind_of(function) if known is None else known[0]
        # most operations are views, of which nothing is to be noted: they are passed on at once
        if kind.is_only_view and arguments and type(arguments[0]) in axis_rules.DENSE:
            # a parameter is to be known as it stands before any view
            if type(arguments[0]) is not Tensor and self.here() and is_tensor(arguments[0]):
                self.traced.of(arguments[0])
            return kind.call(*arguments, **keywords)
        if kind.writes:
            writes.note(kind.written(arguments, keywords))
        is_here = self.here()
        if not is_here and not self.outside.concerns(kind):
            return without_mode.run(function, arguments, keywords, kind.name)
        # torch takes composites apart before they come here, except in inference mode; tensors of
        # other classes do that themselves
        is_whole = kind.name == "matmul" and axis_rules.is_of_one_batch(*arguments[:2])
        is_left = kind.is_composite and torch.is_inference_mode_enabled() and not types
        if is_left and not (is_whole or without_mode.has_own_kernel(function, arguments)):
            with self:
                return self.composites.run(function, arguments, keywords)
        if not is_here:
            made = without_mode.run(function, arguments, keywords, kind.name)
            if not kind.is_view:
                self.followed(self.outside.follow, kind, arguments, keywords, made)
            return made
        self.traced.let_go()
        if kind.name in ASKED:
            arguments = log_sum_exp.asked(kind.name, arguments)
        if kind.may_differ:
            made = without_mode.run(function, arguments, keywords, kind.name)
        else:
            made = kind.call(*arguments, **keywords)
        if not kind.is_view:
            self.followed(self._follow, kind, arguments, keywords, made)
        return made

    def followed(self, follow: Callable[..., None], *told: Any) -> None:
        """Follow what has run by a function that is told of it; an error in it is `missed`."""
        before, own_work.thread.is_on = own_work.thread.is_on, True
        try:
            follow(*told)
        except HeedfulError:  # `record` promises to raise it
            raise
        except Exception as error:  # it must not end the model's own forward pass
            self.missed(f"{type(error).__name__}: {error}")
        finally:
            own_work.thread.is_on = before

    def _follow(self, kind: Kind, arguments: tuple, keywords: dict, made: Any) -> None:
        if kind.name in self.fused:
            self.fused[kind.name](made, kind.named(arguments) | keywords)
        if kind.is_unknown:
            self.unknown(kind.name)
        result = made[0] if isinstance(made, LISTS) and made else made
        if kind.writes and kind.writes_beside:
            in_place.follow_others(kind, arguments, keywords, result, self.traced)
        if not is_tensor(result):
            if kind.name in SOFTMAX and isinstance(result, Tensor):
                self.missed(f"a softmax of {_unlike(result)}, whose axes cannot be followed")
            return
        self.roles.follow(done_of((kind, arguments, keywords, result)))


def _unlike(tensor: Tensor) -> str:
    return "nested tensors" if tensor.is_nested else f"a {type(tensor).__name__}"
