"""The certificate of `intervene`: what was changed where, and how far from the definition."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.interventions.base import Change
from heedful.interventions.head_call import HeadCall
from heedful.recording.tolerance import tolerance_of


class ChangeReport(NamedTuple):
    """What a change did in one module.

    module: the module's name. change: the name of the change. heads: the numbers of the heads.
    calls: the number of changed calls. rows: the number of changed rows (texts × queries, the same
        in each head). lost: how many of these rows lost all their keys, and gave zeros.
    difference: the largest difference between the output that the model used and the definition in
        float64, in units of the call's largest value; None if the change has no definition.
    tolerance: the largest difference that rounding explains. compared: the number of compared rows.
    proof: "proved", "refuted" (the difference is larger), or "unproved" (nothing was compared).
    """

    module: str
    change: str
    heads: list[int]
    calls: int
    rows: int
    lost: int
    difference: float | None
    tolerance: float
    compared: int
    proof: str


class Report(list[ChangeReport]):
    """A list of `ChangeReport`s, which prints as a table."""

    def __str__(self) -> str:
        titles = ["module", "change", "heads", "calls", "rows", "lost", "difference", "proof"]
        lines = [
            [line.module, line.change, ", ".join(map(str, line.heads)), f"{line.calls:,}",
             f"{line.rows:,}", f"{line.lost:,}",
             "–" if line.difference is None else f"{line.difference:.0e}", line.proof]
            for line in self
        ]  # fmt: skip
        columns = [
            [word.ljust(max(map(len, words))) for word in words]
            for words in zip(titles, *lines, strict=True)
        ]
        return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))

    def as_data(self) -> list[dict[str, Any]]:
        """Return the lines as dictionaries."""
        return [line._asdict() for line in self]

    def to_json(self) -> str:
        """Return the lines as JSON."""
        return json.dumps(self.as_data())


@dataclass
class Log:
    """The effect of a change in one module so far; fields as in `ChangeReport`.

    queries, keys: the largest numbers of positions of queries and of keys in a pass.
    """

    module: str
    change: Change
    heads: tuple[int, ...] = ()
    calls: int = 0
    rows: int = 0
    lost: int = 0
    difference: float | None = None
    tolerance: float = 0.0
    compared: int = 0
    queries: int = 0
    keys: int = 0

    def add(self, call: HeadCall, used: Tensor, rows: int, lost: int) -> None:
        """Add a call with the changed heads, and the output (B, h, N, v) that the model uses."""
        self.heads, self.calls = call.heads, self.calls + (rows > 0)
        self.rows, self.lost = self.rows + rows, self.lost + lost
        self.queries = max(self.queries, call.first_query + call.shape[2])
        self.keys = max(self.keys, call.first_key + call.shape[3])
        self.tolerance = max(self.tolerance, tolerance_of(used.dtype, used.device))
        with torch.no_grad():
            self._compare(call, used)

    def _compare(self, call: HeadCall, used: Tensor) -> None:
        rows = self.change.sampled(call)
        expected = self.change.definition(call.in_float64(), rows)
        if expected is None:
            return
        used = used.detach()[:, :, rows].double()
        expected = expected.expand_as(used)
        error = (
            (used - expected).abs().masked_fill((used == expected) | _both_nan(used, expected), 0)
        )
        unit = max(float(call.values.detach().abs().max()), float(expected.abs().max()))
        worst = float(error.max()) / unit if error.numel() and unit else float(error.sum())
        self.difference = max(self.difference or 0.0, math.inf if math.isnan(worst) else worst)
        self.compared += len(used) * len(rows)

    @property
    def line(self) -> ChangeReport:
        """The line of the report."""
        proof = "unproved"
        if self.difference is not None:
            proof = "proved" if self.difference <= self.tolerance else "refuted"
        return ChangeReport(
            self.module, self.change.name, list(self.heads), self.calls, self.rows, self.lost,
            self.difference, self.tolerance, self.compared, proof,
        )  # fmt: skip


def _both_nan(used: Tensor, expected: Tensor) -> Tensor:
    return used.isnan() & expected.isnan()


def report_of(logs: Iterable[Log]) -> Report:
    """Return the report of all changes, in the order in which they were first applied."""
    return Report(log.line for log in logs)
