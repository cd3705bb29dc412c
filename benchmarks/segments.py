"""Cost of attention shares between segments of a long text, next to `summary()` of the same call.

    python benchmarks/segments.py
    python benchmarks/segments.py --quick               # 16,384 tokens, in some seconds
    python benchmarks/segments.py --recording FILE      # one layer, recorded before

The recording is one causal SDPA layer with 12 heads of width 64 and random queries and keys. The
segments are a system prompt, a document and a question. The shares at 512 tokens are compared with
sums of eager weights, and those of the long text with sums of whole rows, in float64. Targets at
131,072 tokens: at most 1.3 times the time of `summary()`, and less than 1 GB beyond the recording.
Wall time and processor time are printed; on a busy machine, use the processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from memory import in_fresh_process, memory_rise
from timing import machine
from torch import Tensor, nn

import heedful
from heedful.recording import Call, Segments

T = TypeVar("T")

HEADS, WIDTH, TOKENS, QUICK, EAGER = 12, 64, 131_072, 16_384, 512
SYSTEM, QUESTION = 64, 128  # numbers of tokens, at the start and before the last four


class OneLayer(nn.Module):
    """A model that calls causal SDPA."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; all tensors are (1, H, N, d)."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def segments_of(tokens: int) -> dict[str, slice | range]:
    """Return the three segments; the last four tokens are in none."""
    end = tokens - 4
    return {
        "system": slice(0, SYSTEM),
        "document": range(SYSTEM, end - QUESTION),
        "question": slice(end - QUESTION, end),
    }


@torch.no_grad()
def recorded(tokens: int) -> Call:
    """Record a call of the given number of tokens; torch's kernel provides its log-sum-exps."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, HEADS, tokens, WIDTH)
    with heedful.record(model := OneLayer()) as recording:
        model(query * 2, key, value)
    [call] = recording
    return call


def loaded(path: str | None, tokens: int) -> Call:
    return heedful.load(path)[0] if path else recorded(tokens)


def fresh(call: Call) -> dict[str, Tensor]:
    """Compute the summary without the cache."""
    call._cache.clear()
    return call.summary()


def error_to_eager() -> float:
    """Return the largest error of shares at 512 tokens, against float64 eager weights."""
    call, parts = recorded(EAGER), segments_of(EAGER)
    scores = (call.causes.query.double() @ call.causes.key.double().mT) * call.causes.scale
    masked = torch.ones(EAGER, EAGER, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(masked, -torch.inf).softmax(dim=-1)
    members = {name: torch.zeros(EAGER, dtype=torch.float64) for name in (*parts, "rest")}
    members["rest"] += 1
    for name, part in parts.items():
        members[name][list(part) if isinstance(part, range) else part] = 1
        members["rest"] -= members[name]
    worst = 0.0
    for row in call.segments(parts):
        queries, keys = members[row.from_], members[row.to]
        share = float(queries @ weights[row.head] @ keys / queries.sum())
        worst = max(worst, abs(share - (row.share or 0.0)))
    return worst


def error_to_rows(call: Call, shares: Segments) -> float:
    """Return the largest error of the question's shares, against float64 sums of its rows."""
    tokens, parts = call.shape[1], segments_of(call.shape[1])
    rows = {(row.head, row.to): row for row in shares if row.from_ == "question"}
    worst = 0.0
    for head in (0, call.shape[0] - 1):
        weights = call.weights(head, parts["question"]).double()
        for name, part in parts.items():
            share = weights[:, range(tokens)[part] if isinstance(part, slice) else part].sum(-1)
            worst = max(worst, abs(float(share.mean()) - (rows[head, name].share or 0.0)))
    return worst


class Measurement(NamedTuple):
    """(Wall, processor) seconds of each way, the memory rise in MB, the error of the shares."""

    segments: tuple[float, float]
    summary: tuple[float, float]
    megabytes: float
    error: float


def measured(path: str | None, tokens: int, rounds: int) -> Measurement:
    """Alternate both ways and return their median times."""
    call = loaded(path, tokens)
    parts = segments_of(call.shape[1])
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for turn in range(rounds):
        if turn == 0:  # in the first turn, before other work has allocated memory
            with memory_rise() as rise:
                seconds, shares = timed(lambda: call.segments(parts))
        else:
            seconds, shares = timed(lambda: call.segments(parts))
        pairs.append((seconds, timed(lambda: fresh(call))[0]))
    segments, summary = (
        (median(pair[way][0] for pair in pairs), median(pair[way][1] for pair in pairs))
        for way in (0, 1)
    )
    return Measurement(segments, summary, rise[0], error_to_rows(call, shares))


def timed(way: Callable[[], T]) -> tuple[tuple[float, float], T]:
    """Call the function; return its (wall, processor) seconds and its result."""
    began = time.perf_counter(), time.process_time()
    result = way()
    return (time.perf_counter() - began[0], time.process_time() - began[1]), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} tokens")
    parser.add_argument("--recording", metavar="FILE", help="a recording of one layer")
    options = parser.parse_args()
    tokens, rounds = (QUICK, 3) if options.quick else (TOKENS, 1)
    print(f"{machine()}; {options.recording or f'{tokens:,} tokens, {HEADS} heads of one layer'}")
    worst = error_to_eager()
    print(f"shares at {EAGER} tokens: within {worst:.0e} of sums of eager weights")
    assert worst < 2e-6, f"shares differ by {worst}"
    result = in_fresh_process(measured, options.recording, tokens, rounds)
    print(f"shares of the long text: within {result.error:.0e} of sums of whole rows")
    assert result.error < 2e-6, f"shares differ by {result.error}"
    for name in ("segments", "summary"):
        wall, processor = getattr(result, name)
        print(f"{name:10}{wall:9.1f} s{processor:9.1f} s of processor time")
    report("memory beyond the recording, MB", result.megabytes, 1000)
    report("segments / summary", result.segments[0] / result.summary[0], 1.3)
    report("segments / summary, processor time", result.segments[1] / result.summary[1], 1.3)


def report(label: str, figure: float, target: float) -> None:
    verdict = "met" if figure <= target else "missed"
    print(f"{label:44}{figure:9.3g}    target at most {target:g}: {verdict}\n")


if __name__ == "__main__":
    main()
