"""Who reads what in a long text, beside `summary()` of the same call.

    python benchmarks/segments.py
    python benchmarks/segments.py --quick               # 16,384 tokens, in some seconds
    python benchmarks/segments.py --recording FILE      # one layer, recorded before

One layer of 12 heads of width 64, causal, random queries and keys, recorded around torch's SDPA; a
system prompt, a document, a question and a rest. Before a time is printed, shares at 512 tokens are
compared with sums of eager weights, and those of the long text with whole rows, in float64. The
bars, at 131,072 tokens: time at most 1.3 of `summary()`, memory beyond the recording under 1 GB.
Seconds of the processor stand beside those of the clock: the ratio of a busy machine is theirs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from memory import apart, risen
from timing import machine
from torch import Tensor, nn

import heedful
from heedful.recording import Call, Segments

T = TypeVar("T")

HEADS, WIDTH, TOKENS, QUICK, EAGER = 12, 64, 131_072, 16_384, 512
SYSTEM, QUESTION = 64, 128  # tokens at the begin, and before the last four


class OneLayer(nn.Module):
    """Causal attention, as a model would call it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Of tensors (1, H, N, d)."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def segments_of(tokens: int) -> dict[str, slice | range]:
    """A system prompt, a document and a question; the last four tokens are in none."""
    end = tokens - 4
    return {
        "system": slice(0, SYSTEM),
        "document": range(SYSTEM, end - QUESTION),
        "question": slice(end - QUESTION, end),
    }


@torch.no_grad()
def recorded(tokens: int) -> Call:
    """The call of a layer on so many tokens, whose row sums torch's kernel told."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, HEADS, tokens, WIDTH)
    with heedful.record(model := OneLayer()) as recording:
        model(query * 2, key, value)
    [call] = recording
    return call


def loaded(path: str | None, tokens: int) -> Call:
    """The call of a file, or one that is recorded now."""
    return heedful.load(path)[0] if path else recorded(tokens)


def fresh(call: Call) -> dict[str, Tensor]:
    """The summary, computed anew."""
    call._kept.clear()
    return call.summary()


def off_eager() -> float:
    """How far the shares of 512 tokens are from sums of eager weights in float64."""
    call, parts = recorded(EAGER), segments_of(EAGER)
    scores = (call.causes.query.double() @ call.causes.key.double().mT) * call.causes.scale
    hidden = torch.ones(EAGER, EAGER, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    members = {name: torch.zeros(EAGER, dtype=torch.float64) for name in (*parts, "rest")}
    members["rest"] += 1
    for name, where in parts.items():
        members[name][list(where) if isinstance(where, range) else where] = 1
        members["rest"] -= members[name]
    worst = 0.0
    for row in call.segments(parts):
        of, to = members[row.from_], members[row.to]
        share = float(of @ weights[row.head] @ to / of.sum())
        worst = max(worst, abs(share - (row.share or 0.0)))
    return worst


def off(call: Call, shares: Segments) -> float:
    """How far the question's shares are from sums of its whole rows in float64."""
    tokens, parts = call.shape[1], segments_of(call.shape[1])
    rows = {(row.head, row.to): row for row in shares if row.from_ == "question"}
    worst = 0.0
    for head in (0, call.shape[0] - 1):
        whole = call.weights(head, parts["question"]).double()
        for name, where in parts.items():
            share = whole[:, range(tokens)[where] if isinstance(where, slice) else where].sum(-1)
            worst = max(worst, abs(float(share.mean()) - (rows[head, name].share or 0.0)))
    return worst


class Found(NamedTuple):
    """Seconds by the clock and of the processor of each way; MB; how far shares are off."""

    segments: tuple[float, float]
    summary: tuple[float, float]
    megabytes: float
    off: float


def measured(path: str | None, tokens: int, rounds: int) -> Found:
    """Both in turns, as often as asked; the medians of each."""
    call = loaded(path, tokens)
    parts = segments_of(call.shape[1])
    taken: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for turn in range(rounds):
        if turn == 0:  # before anything else has taken memory
            with risen() as rise:
                own, shares = timed(lambda: call.segments(parts))
        else:
            own, shares = timed(lambda: call.segments(parts))
        taken.append((own, timed(lambda: fresh(call))[0]))
    own, other = (
        (median(one[way][0] for one in taken), median(one[way][1] for one in taken))
        for way in (0, 1)
    )
    return Found(own, other, rise[0], off(call, shares))


def timed(way: Callable[[], T]) -> tuple[tuple[float, float], T]:
    """Seconds by the clock and of the processor, and what came of it."""
    began = time.perf_counter(), time.process_time()
    found = way()
    return (time.perf_counter() - began[0], time.process_time() - began[1]), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} tokens")
    parser.add_argument("--recording", metavar="FILE", help="of one layer, recorded before")
    given = parser.parse_args()
    tokens, rounds = (QUICK, 3) if given.quick else (TOKENS, 1)
    print(f"{machine()}; {given.recording or f'{tokens:,} tokens, {HEADS} heads of one layer'}")
    worst = off_eager()
    print(f"at {EAGER} tokens within {worst:.0e} of sums of eager weights")
    assert worst < 2e-6, f"shares differ by {worst}"
    found = apart(measured, given.recording, tokens, rounds)
    print(f"of the long text within {found.off:.0e} of whole rows")
    assert found.off < 2e-6, f"shares differ by {found.off}"
    for name in ("segments", "summary"):
        clock, processor = getattr(found, name)
        print(f"{name:10}{clock:9.1f} s{processor:9.1f} s of the processor")
    told("memory beyond the recording, MB", found.megabytes, 1000)
    told("segments / summary", found.segments[0] / found.summary[0], 1.3)
    told("the same of the processor's seconds", found.segments[1] / found.summary[1], 1.3)


def told(what: str, found: float, bar: float) -> None:
    met = "met" if found <= bar else "missed"
    print(f"{what:44}{found:9.3g}    bar {bar:g}: {met}\n")


if __name__ == "__main__":
    main()
