"""Keeps what began as attention while a model ran, until it is known whether a call came of it.

Queries meet keys in a product, a softmax follows, its weights meet values: only then is it a call.
What stopped on the way is told at the end, under the name of the module in which it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from heedful.recorder.following.roles import Listeners
from heedful.recorder.following.scores import Meeting, Product, Scores, Weights

UNMET = "weights of a softmax that met no values, or only after they were changed"
CHOSEN = "scores of which the largest are chosen, and no softmax"
LINEAR = "two products of three tensors with no softmax between, as linear attention has"


class Begun:
    """Products of queries and keys and softmaxes of a recording, each with the module that ran.

    Args:
        name: gives the name of the module that runs.
        is_wanted: whether what runs now is to be recorded.
    """

    def __init__(self, name: Callable[[], str], is_wanted: Callable[[], bool]) -> None:
        self._name, self._is_wanted = name, is_wanted
        self.inside: set[str] = set()  # names of modules in which something of this kind ran
        self._softmaxes: list[tuple[str, str, list[str]]] = []
        self._chained: dict[object, tuple[str, str]] = {}
        self._kernels: dict[str, str] = {}
        self._chosen: dict[object, str] = {}
        self._softened: set[object] = set()  # products that a softmax was taken of

    def listeners(self, met: Callable[[Meeting], None]) -> Listeners:
        """What is to be told of products and softmaxes, beside `met` of meetings."""
        return Listeners(met, self.product, self.softmax, self.chained, self.chosen)

    def product(self, product: Product) -> None:
        """Note a product of two tensors, neither of which is a parameter: they may be scores."""
        if self._is_wanted():
            product.module = self._name()
            self.inside.add(product.module)

    def softmax(self, weights: Weights) -> None:
        """Note a softmax of scores, whose weights are yet to meet values."""
        product = weights.scores.product
        if product is not None:
            self._chained.pop(product.token, None)
            self._softened.add(product.token)
        if self._is_wanted():
            self.inside.add(name := self._name())
            made_in = name if product is None else product.module
            self._softmaxes.append((name, made_in, weights.met))

    def chained(self, scores: Scores, product: Product) -> None:
        """Note scores that meet a third tensor: they have no map, unless a softmax follows yet.

        product: of which that softmax would be.
        """
        if self._is_wanted():
            self._chained[product.token] = self._name(), _chained(scores)

    def chosen(self, product: Product) -> None:
        """Note scores of which the largest are looked for: hard attention, if no softmax is taken.

        It counts in modules that hold attention: other ones look for neighbours so.
        """
        if self._is_wanted():
            self._chosen[product.token] = self._name()

    def kernel(self, kernel: str) -> None:
        """Note a kernel of attention that is none of torch's own, and was no call of another door.

        It counts if its module tells no call: a kernel beside a call may be what writes its cache.
        """
        if self._is_wanted():
            self._kernels.setdefault(self._name(), kernel)

    def let_go(self) -> None:
        """Ask nothing any more of the recorder, which holds this."""
        del self._name, self._is_wanted

    @property
    def met(self) -> set[str]:
        """The modules in which scores or weights were made that met values, there or elsewhere."""
        return {name for *names, met in self._softmaxes if met for name in names}

    def missed(self, told: Collection[str], holders: Collection[str]) -> Iterator[tuple[str, str]]:
        """The modules in which attention stopped on its way, each with the reason.

        Args:
            told: the names of those of which a call was told.
            holders: the names of those that hold attention.
        """
        for name, _, met in self._softmaxes:
            if not met:
                yield name, UNMET
        yield from self._chained.values()
        for token, name in self._chosen.items():
            if name in holders and token not in self._softened:
                yield name, CHOSEN
        for name, kernel in self._kernels.items():
            if name not in told:
                yield name, f"a kernel that is not known: {kernel}"


def _chained(scores: Scores) -> str:
    """Why scores that meet values with no softmax have no map: what they went through instead."""
    through = [scores.lost] if scores.lost else []
    if scores.is_raised:
        through.append("exp")
    if not through:
        return LINEAR
    return f"queries and keys meet values through {' and '.join(through)}, and no softmax"
