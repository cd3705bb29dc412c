"""A part of a long map by its own cells, beside computing its rows; and a region as a picture.

    python benchmarks/zoom.py

One head of width 64, causal, random queries and keys. The log-sum-exps of the rows are those that
torch's kernel tells a recording. Values are compared before a time is printed. The bars: 1,024
queries × 1,024 keys of 32,768 tokens at least ten times as fast as their rows; 4,096 × 4,096 of
131,072 tokens pooled to 1,024 × 1,024 in at most 150 ms, the 95th of 100 times.
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

WIDTH, SHOWN, REGION, CELLS, PLACES = 64, 1024, 4096, 1024, 50


class OneHead(nn.Module):
    """Causal attention, as a model would call it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Of tensors (1, 1, N, d)."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@torch.no_grad()
def recorded(tokens: int) -> Call:
    """The call of one head on so many tokens."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, tokens, WIDTH)
    with heedful.record(model := OneHead()) as recording:
        model(query * 2, key, value)
    [call] = recording
    return call


def by_rows(call: Call, queries: slice) -> Tensor:
    """Whole rows, as they are computed where nothing is known of their sums."""
    return call.weights(head=0, queries=queries)


def rows_and_cells(tokens: int = 32_768, rounds: int = 5) -> None:
    """The last queries with any keys, by their cells and by their rows."""
    call, last = recorded(tokens), slice(tokens - SHOWN, tokens)
    whole = by_rows(call, last)
    ratios = []
    for start in (0, tokens // 2, tokens - SHOWN):
        keys = slice(start, start + SHOWN)
        worst = float((call.weights(0, last, keys) - whole[:, keys]).abs().max())
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
            f"{turns.median('rows') * 1e3:7.1f} ms, {ratios[-1]:5.1f} times as fast, "
            f"weights within {worst:.0e}"
        )
    told("rows / cells, the worst place", min(ratios), 10, min(ratios) >= 10)


def regions(tokens: int = 131_072) -> None:
    """Regions all over the map, and on its diagonal, as pictures."""
    call = recorded(tokens)
    torch.manual_seed(1)
    lasts = torch.randint(REGION, tokens, (PLACES,))
    firsts = [int(torch.randint(0, int(last) - REGION + 1, ())) for last in lasts]
    for way in ("mean", "max"):
        seconds, worst = [], 0.0
        for number, (last, first) in enumerate(zip(lasts.tolist(), firsts, strict=True)):
            # every other one on the diagonal, where the mask has to be made
            keys = slice(last - REGION, last) if number % 2 else slice(first, first + REGION)
            region = slice(last - REGION, last), keys
            for _ in range(2):
                began = time.perf_counter()
                picture = call.heatmap(CELLS, head=0, queries=region[0], keys=keys, reduce=way)
                seconds.append(time.perf_counter() - began)
            if number < 4:
                worst = max(worst, off(call, picture, region, way))
        assert worst < 2e-6, f"cells differ by {worst}"
        at95 = statistics.quantiles(seconds, n=20)[-1] * 1e3
        print(
            f"{way} of {REGION:,} × {REGION:,} to {CELLS:,} × {CELLS:,} of {tokens:,} tokens: "
            f"median {statistics.median(seconds) * 1e3:.0f} ms, cells within {worst:.0e}"
        )
        told(f"95th of {len(seconds)} times, ms", at95, 150, at95 <= 150)


def off(call: Call, picture: Tensor, region: tuple[slice, slice], way: str) -> float:
    """How far a picture is from whole rows pooled in float64, on its first rows of cells."""
    (rows, keys), size = region, REGION // CELLS
    few = slice(rows.start, rows.start + 8 * size)
    whole = by_rows(call, few)[:, keys].double().unflatten(1, (-1, size)).unflatten(0, (-1, size))
    pooled = whole.mean((1, 3)) if way == "mean" else whole.amax((1, 3))
    return float((picture[:8] - pooled).abs().max())


def told(what: str, found: float, bar: float, is_met: bool) -> None:
    print(f"{what:44}{found:9.3g}    bar {bar:g}: {'met' if is_met else 'missed'}\n")


def main() -> None:
    print(machine())
    rows_and_cells()
    regions()


if __name__ == "__main__":
    main()
