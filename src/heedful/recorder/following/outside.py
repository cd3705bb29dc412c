"""Looks for attention among the operations that run while no module is being called.

A model may have attention in a method that is not its `forward`: no call of a module is around it.
All else that runs there is the user's own code. So only what starts in a method of the model is
followed, and only what can be nothing but attention is told: one of torch's kernels, or a product
whose softmax meets values. A loss with a softmax, and a token that is drawn, are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heedful.recorder.following.axis_rules import PRODUCTS, SDPA_KERNELS, is_tensor
from heedful.recorder.following.operation_kinds import LISTS, Done, Kind
from heedful.recorder.following.roles import Listeners, Roles
from heedful.recorder.following.storages import Traced

STARTS = {*PRODUCTS, *SDPA_KERNELS}


class Outside:
    """What is followed of the operations that run while no module is being called.

    Args:
        idles: tells whether no module of the model is being called.
        method: gives the name of the module whose method runs; None where it is none of its.
        missed: is called with that name where attention was seen.
    """

    def __init__(
        self,
        idles: Callable[[], bool],
        method: Callable[[], str | None],
        missed: Callable[[str], None],
    ) -> None:
        self._idles, self._method, self._missed = idles, method, missed
        self._has_begun = False

    def begin(self, traced: Traced) -> None:
        """Follow what runs with the storages of the pass."""
        self._traced = traced
        self._roles = Roles(traced, Listeners(self._met, *[_nothing] * 4))

    def end(self) -> None:
        """Follow nothing any more: what is followed tells this, which would be a circle."""
        self._idles = lambda: False
        del self._roles

    def concerns(self, kind: Kind) -> bool:
        """Whether an operation may be followed; of most, which are the user's own, soon not."""
        may_be = self._has_begun or kind.is_composite or kind.name in STARTS
        return may_be and self._idles()

    def follow(self, kind: Kind, arguments: tuple, keywords: dict[str, Any], made: Any) -> None:
        """Follow an operation if it starts in a method of the model, or goes on with what did."""
        result = made[0] if isinstance(made, LISTS) and made else made
        if is_tensor(result) and result.is_meta:
            return  # it has no numbers to be shown, and the pass is told of as one that is traced
        if kind.name in STARTS:
            name = self._method()
            if name is None:
                return
            if kind.name in SDPA_KERNELS:
                self._missed(name)
                return
            self._has_begun = True
        elif not any(self._traced.role(one) is not None for one in arguments):
            return
        if is_tensor(result):
            self._traced.let_go()
            self._roles.follow(Done(kind, arguments, keywords, result))

    def _met(self, meeting: Any) -> None:
        name = self._method()
        if name is not None and meeting.role.scores.product is not None:
            self._missed(name)


def _nothing(*told: Any) -> None:
    pass
