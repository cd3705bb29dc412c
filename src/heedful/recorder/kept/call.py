"""One call of attention on one sequence: any part of its map, and its statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops import statistics as of
from heedful.ops.causes import Causes, weights
from heedful.ops.heatmap import Heatmap
from heedful.ops.score_tables import ALL, Index, indices
from heedful.ops.top import Top, TopKeys
from heedful.recorder.checks import is_whole, region, whole
from heedful.recorder.kept.certificate import Check
from heedful.recorder.kept.progress import Progress, Tell
from heedful.recorder.kept.proof import proof_of


@dataclass
class Call:
    """One call of attention on one sequence: maps of N queries × M keys for each of H heads.

    The maps are computed when somebody asks, from what the model computed them from.

    `name` is the module's name, `layer` the number of its block in that name (None without one),
    `index` the number of the call, `pass_index` that of the forward pass, `kind` "self", "causal"
    or "cross", `ids` (M,) the tokens of the keys and `tokens` their text, where they are known.
    `chosen` are the model's numbers of the heads, where `record` was told which to keep. `proof`
    says how much of the call is certain, and `why` what is not. Every statistic is defined in
    `heedful.ops.statistics`; with `head`, the model's number of a head, it is that of one head,
    without it of all, (H, …).
    """

    name: str
    layer: int | None
    pass_index: int
    kind: str
    causes: Causes
    check: Check
    index: int = 0
    inferred: dict[str, str] = field(default_factory=dict)
    against: str = ""
    value: Tensor | None = None
    ids: Tensor | None = None
    tokens: list[str] | None = None
    door: str = ""
    chosen: list[int] | None = None
    intact: Callable[[], None] | None = field(default=None, repr=False)
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        H, N, M = self.shape
        heads = f"{H} head{'' if H == 1 else 's'}"
        if self.chosen is not None:
            heads = f"head{'' if H == 1 else 's'} {_listed(self.chosen)}"
        proof = f"{self.proof} ({self.why})" if self.why else self.proof
        size = f"{heads}, {N} × {M}"
        return f"<Call {self.name!r}: {self.kind}, {size}, pass {self.pass_index}, {proof}>"

    @property
    def proof(self) -> str:
        """ "proved", "assumed", "unproved" or "refuted"; see `heedful.recorder.kept.proof`."""
        return proof_of(self.check, self.inferred, self.against).word

    @property
    def why(self) -> str:
        """What is missing to a proof, in words; empty where nothing is."""
        return proof_of(self.check, self.inferred, self.against).why

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, N, M)."""
        return self.causes.shape

    @property
    def heads(self) -> list[int]:
        """The model's own number of each head, in the order of the rows."""
        return list(range(self.shape[0])) if self.chosen is None else self.chosen

    def weights(
        self, head: int | None = None, queries: Index | int | None = None, keys: Index | None = None
    ) -> Tensor:
        """Any part of the map, exactly: (H, n, m), or (n, m) of one head.

        Args:
            head: the model's number of one, from 0; where all were recorded, negative ones count
                from the end.
            queries, keys: slices, lists of indices or a boolean for each; default all.

        Raises:
            ArgumentError: what is not in the map.
            RunError: the record of this call does not pass its own check.
        """
        part = weights(self.checked(), self._heads(head), _index(queries), _index(keys))
        return part if head is None else part[0]

    def received(self, head: int | None = None, *, mean: bool = False) -> Tensor:
        """Σₙ W[n, m] of each key; as a mean, over the queries that may see it."""
        return self._gathered(head, of.Received, mean)

    def entropy(self, head: int | None = None) -> Tensor:
        """−Σₘ W log W of each query, in nats."""
        return self._gathered(head, of.Entropy)

    def largest(self, head: int | None = None) -> Top:
        """The largest weight of each query and its key."""
        top = self.top(1, head)
        return Top(top.weights[..., 0], top.keys[..., 0])

    def top(self, k: int, head: int | None = None) -> Top:
        """The k largest weights of each query with their keys, descending."""
        return self._gathered(head, TopKeys, whole("top", k, least=1))

    def distance(self, head: int | None = None) -> Tensor:
        """Σₘ W · |p(n) − m| of each query, in tokens."""
        return self._gathered(head, of.Distance)

    def diagonal(self, offset: int, head: int | None = None) -> Tensor:
        """Mean over queries of W[n, p(n) − offset]: 0 is the token itself, 1 the one before."""
        return of.mean(self._gathered(head, of.Diagonal, whole("offset", offset)))

    def sink(self, head: int | None = None) -> Tensor:
        """Mean over queries of the weight on the first key."""
        return of.mean(self._gathered(head, of.Sink))

    def learned_sink(self, head: int | None = None) -> Tensor:
        """1 − Σₘ W of each query: what a learned sink takes."""
        return self._gathered(head, of.LearnedSink)

    def heatmap(
        self,
        size: int = 256,
        *,
        head: int | None = None,
        queries: slice = slice(None),
        keys: slice = slice(None),
        reduce: str = "mean",
    ) -> Tensor:
        """A region pooled to at most size × size cells: (H, rows, columns), or of one head."""
        cells = whole("size", size, least=1)
        rows, columns = region("queries", queries), region("keys", keys)
        return self._gathered(head, Heatmap, cells, reduce, rows, columns)

    def value_norm(
        self, head: int | None = None, queries: Index | None = None, keys: Index | None = None
    ) -> Tensor:
        """W[n, m] · ‖value m‖: what is moved, and not only where from.

        Source: Kobayashi et al. 2020, *Attention is not only a weight* (arXiv:2004.10102).
        """
        if self.value is None:
            raise RunError(
                f"no values of {self.name} in this recording",
                expected="record(model, values=True)",
                cause=None if self.check.rows else "a call of which only the weights can be seen",
            )
        group = self.shape[0] // len(self.value)
        norms = self.value.float().norm(dim=-1).repeat_interleave(group, dim=0)
        columns = norms[self._heads(head)][:, None, indices(_index(keys), self.shape[2], "key")]
        part = weights(self.checked(), self._heads(head), _index(queries), _index(keys)) * columns
        return part if head is None else part[0]

    def summary(self, progress: Tell | None = None) -> dict[str, Tensor]:
        """For each head, the mean over the queries of every statistic of a row, and `received`.

        One pass over every row of the map; kept, so that asking again costs nothing.

        Args:
            progress: is told of the share that is done, 0 to 1, as the pass goes on.
        """
        if "summary" not in self._kept:
            rows = {
                "entropy": of.Entropy(),
                "largest": of.LargestWeight(),
                "distance": of.Distance(),
                "self": of.Diagonal(0),
                "previous": of.Diagonal(1),
                "sink": of.Sink(),
                "learned_sink": of.LearnedSink(),
            }
            told = [] if progress is None else [Progress(progress)]
            *found, received = of.gather(self.checked(), *told, *rows.values(), of.Received())
            means = {name: of.mean(row) for name, row in zip(rows, found[len(told) :], strict=True)}
            self._kept["summary"] = {**means, "received": received}
        return self._kept["summary"]

    def _gathered(self, head: int | None, statistic: type, *arguments: Any) -> Any:
        causes = self.checked()
        if head is not None:
            causes = causes.of_heads(self._heads(head))
        [found] = of.gather(causes, statistic(*arguments))
        if head is None:
            return found
        return Top(*(part[0] for part in found)) if isinstance(found, Top) else found[0]

    def _heads(self, head: int | None) -> slice:
        H = self.shape[0]
        if head is None:
            return ALL
        number = whole("head", head)
        if self.chosen is None:
            if not -H <= number < H:
                raise ArgumentError(f"head {number}", expected=f"head 0 to {H - 1}")
            return slice(number % H, number % H + 1)
        if number not in self.chosen:
            raise ArgumentError(
                f"head {number}", expected=f"one of those recorded, {_listed(self.chosen)}"
            )
        at = self.chosen.index(number)
        return slice(at, at + 1)

    def checked(self) -> Causes:
        """The causes, unless they were shown not to be those of the output.

        Raises:
            RunError: the record of the call does not pass its check, or its file is damaged.
        """
        if self.intact is not None:
            self.intact()
        if self.proof == "refuted":
            raise RunError(
                f"{self.name} was not recorded truthfully: {self.why}",
                cause="attention of a form, or with axes, that the recorder does not know",
                remedy='tell the axes, as record(model, axes={"*attn": "b h n d"}), or look at '
                "another layer, and please report the model",
            )
        return self.causes


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _index(index: Any) -> Index:
    if index is None:
        return ALL
    return [index] if is_whole(index) else index
