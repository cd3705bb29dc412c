"""The certificate of `intervene`: what was changed where, and how far from the definition."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from heedful.interventions.base import Change
from heedful.interventions.head_call import HeadCall
from heedful.ops.indexing import evenly_spaced
from heedful.recording.tolerance import tolerance_of

SAMPLED = 8  # compared rows of a call


@dataclass
class ChangeReport:
    """What a change did in one module.

    module: the module's name. change: the name of the change. heads: the numbers of the heads.
    calls: the number of changed calls. rows: the number of changed rows (texts × queries).
    lost: how many of these rows lost all their keys, in some head, and gave zeros.
    compared: the number of rows in which the output that the model used was compared with the
        definition in float64. difference: the largest difference, in units of the call's largest
        value; None if nothing was compared. tolerance: the largest one that rounding explains.
    positions: the largest numbers of positions of queries and of keys in a pass.
    """

    module: str
    change: str
    heads: tuple[int, ...] = ()
    calls: int = 0
    rows: int = 0
    lost: int = 0
    difference: float | None = None
    tolerance: float = 0.0
    compared: int = 0
    positions: tuple[int, int] = (0, 0)

    @property
    def proof(self) -> str:
        """One of "proved", "refuted" (the difference is too large) or "unproved"."""
        if self.difference is None:
            return "unproved"
        return "proved" if self.difference <= self.tolerance else "refuted"

    def add(self, call: HeadCall, change: Change, used: Tensor, rows: Tensor, lost: int) -> None:
        """Add a call with the changed heads; the model uses `used` (B, h, n, v) in `rows`."""
        self.heads, self.calls = call.heads, self.calls + (len(rows) > 0)
        self.rows, self.lost = self.rows + len(used) * len(rows), self.lost + lost
        ends = (call.first_query + call.shape[2], call.first_key + call.shape[3])
        self.positions = max(self.positions[0], ends[0]), max(self.positions[1], ends[1])
        self.tolerance = max(self.tolerance, tolerance_of(used.dtype, used.device))
        sample = evenly_spaced(len(rows), SAMPLED)
        if change.define is None or not len(sample):
            return
        with torch.no_grad():
            expected = change.define(call.in_float64(), rows[sample])
            actual = used[:, :, sample].double()
            is_equal = (actual == expected) | (actual.isnan() & expected.isnan())
            errors = (actual - expected).abs().nan_to_num(torch.inf).masked_fill(is_equal, 0.0)
            unit = max(float(call.value.abs().max()), float(expected.abs().max()), 1e-30)
        self.difference = max(self.difference or 0.0, float(errors.max()) / unit)
        self.compared += len(used) * len(sample)


class Report(list[ChangeReport]):
    """A list of `ChangeReport`s, which prints as a table."""

    def __str__(self) -> str:
        lines = [["module", "change", "heads", "calls", "rows", "lost", "difference", "proof"]]
        for line in self:
            difference = "–" if line.difference is None else f"{line.difference:.0e}"
            counts = [f"{count:,}" for count in (line.calls, line.rows, line.lost)]
            heads = ", ".join(map(str, line.heads))
            lines.append([line.module, line.change, heads, *counts, difference, line.proof])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = ([w.ljust(n) for w, n in zip(line, widths, strict=True)] for line in lines)
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def to_json(self) -> str:
        """Return the lines as JSON."""
        return json.dumps([asdict(line) | {"proof": line.proof} for line in self])
