"""Speed of computing only the cells of a region of a long map, next to computing its full rows.

    python benchmarks/zoom.py

The recording has one causal head of width 64, random queries and keys, and the log-sum-exps that
torch's kernel computes. Values are compared before times are printed. Targets: 1,024 queries ×
1,024 keys of 32,768 tokens take a tenth of the time of full rows or less; a heatmap of 4,096 ×
4,096 weights of 131,072 tokens, pooled to 1,024 × 1,024, 150 ms or less (95th percentile of 100).
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F
from timing import Turns, machine
from torch import Tensor, nn

import heedful
from heedful.recording import Call

WIDTH, PART, REGION, CELLS, REGIONS = 64, 1024, 4096, 1024, 50


class OneHead(nn.Module):
    """A model that calls causal SDPA."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; all tensors are (1, 1, N, d)."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@torch.no_grad()
def recorded(tokens: int) -> Call:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, tokens, WIDTH)
    with heedful.record(model := OneHead()) as recording:
        model(query * 2, key, value)
    [call] = recording
    return call


def by_rows(call: Call, queries: slice) -> Tensor:
    """Compute whole rows, as without log-sum-exps."""
    return call.weights(head=0, queries=queries)


def rows_and_cells(tokens: int = 32_768, rounds: int = 5) -> None:
    """Compare cells and rows for the last queries and several ranges of keys."""
    call, last = recorded(tokens), slice(tokens - PART, tokens)
    full_rows = by_rows(call, last)
    ratios = []
    for start in (0, tokens // 2, tokens - PART):
        keys = slice(start, start + PART)
        worst = float((call.weights(0, last, keys) - full_rows[:, keys]).abs().max())
        assert worst < 2e-6, f"weights differ by {worst}"
        turns = Turns(
            {
                "cells": lambda keys=keys: call.weights(0, last, keys),
                "rows": lambda keys=keys: by_rows(call, last)[:, keys],
            },
            rounds,
        )
        ratios.append(turns.ratio("rows", to="cells"))
        print(
            f"keys from {start:6,}: cells {turns.median('cells') * 1e3:7.1f} ms, rows "
            f"{turns.median('rows') * 1e3:7.1f} ms, {ratios[-1]:5.1f} times as long, "
            f"weights within {worst:.0e}"
        )
    report("rows / cells, smallest", min(ratios), "at least 10", min(ratios) >= 10)


def regions(tokens: int = 131_072) -> None:
    """Time heatmaps of regions at random places and on the diagonal."""
    call = recorded(tokens)
    torch.manual_seed(1)
    lasts = torch.randint(REGION, tokens, (REGIONS,))
    firsts = [int(torch.randint(0, int(last) - REGION + 1, ())) for last in lasts]
    for way in ("mean", "max"):
        seconds, worst = [], 0.0
        for number, (last, first) in enumerate(zip(lasts.tolist(), firsts, strict=True)):
            # every other region is on the diagonal, where a mask is needed
            keys = slice(last - REGION, last) if number % 2 else slice(first, first + REGION)
            region = slice(last - REGION, last), keys
            for _ in range(2):
                began = time.perf_counter()
                picture = call.heatmap(CELLS, head=0, queries=region[0], keys=keys, reduce=way)
                seconds.append(time.perf_counter() - began)
            if number < 4:
                worst = max(worst, error_to_rows(call, picture, region, way))
        assert worst < 2e-6, f"cells differ by {worst}"
        p95 = statistics.quantiles(seconds, n=20)[-1] * 1e3
        print(
            f"{way} of {REGION:,} × {REGION:,} to {CELLS:,} × {CELLS:,} of {tokens:,} tokens: "
            f"median {statistics.median(seconds) * 1e3:.0f} ms, cells within {worst:.0e}"
        )
        report(f"p95 of {len(seconds)} times, ms", p95, "at most 150", p95 <= 150)


def error_to_rows(call: Call, picture: Tensor, region: tuple[slice, slice], way: str) -> float:
    """Return the largest error of a heatmap's first rows, against whole rows pooled in float64."""
    (rows, keys), size = region, REGION // CELLS
    few = slice(rows.start, rows.start + 8 * size)
    cells = by_rows(call, few)[:, keys].double().unflatten(1, (-1, size)).unflatten(0, (-1, size))
    pooled = cells.mean((1, 3)) if way == "mean" else cells.amax((1, 3))
    return float((picture[:8] - pooled).abs().max())


def report(label: str, figure: float, target: str, is_met: bool) -> None:
    print(f"{label:44}{figure:9.3g}    target {target}: {'met' if is_met else 'missed'}\n")


def main() -> None:
    print(machine())
    rows_and_cells()
    regions()


if __name__ == "__main__":
    main()
