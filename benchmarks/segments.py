"""Who reads what in a long text, beside `summary()` of the same call.

    python benchmarks/segments.py
    python benchmarks/segments.py --quick       # 16,384 tokens, in some seconds

One layer of 12 heads of width 64, causal, random queries and keys, recorded around torch's SDPA; a
system prompt, a document, a question and a rest. Shares are compared with whole rows in float64
before a time is printed. The bars, at 131,072 tokens: time at most 1.3 of `summary()`, measured in
turns; memory beyond the recording under 1 GB.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from memory import apart, risen
from timing import Turns, machine
from torch import Tensor, nn

import heedful
from heedful.recorder import Call

HEADS, WIDTH, TOKENS, QUICK = 12, 64, 131_072, 16_384
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


def fresh(call: Call) -> dict[str, Tensor]:
    """The summary, computed anew."""
    call._kept.clear()
    return call.summary()


def off(call: Call) -> float:
    """How far the question's shares are from sums of its whole rows in float64."""
    tokens, parts = call.shape[1], segments_of(call.shape[1])
    rows = {(row.head, row.to): row for row in call.segments(parts) if row.from_ == "question"}
    worst = 0.0
    for head in (0, HEADS - 1):
        whole = call.weights(head, parts["question"]).double()
        for name, where in parts.items():
            share = whole[:, range(tokens)[where] if isinstance(where, slice) else where].sum(-1)
            worst = max(worst, abs(float(share.mean()) - (rows[head, name].share or 0.0)))
    return worst


def seconds(tokens: int, rounds: int) -> tuple[float, float, float, float]:
    """Medians of both in seconds, the median of their ratios, and how far shares are off."""
    call = recorded(tokens)
    worst = off(call)
    parts = segments_of(tokens)
    turns = Turns(
        {"summary": lambda: fresh(call), "segments": lambda: call.segments(parts)}, rounds
    )
    ratio = turns.ratio("segments", to="summary")
    return turns.median("segments"), turns.median("summary"), ratio, worst


def megabytes(tokens: int) -> float:
    """The most memory that the shares take beyond the recording."""
    call = recorded(tokens)
    with risen() as rise:
        call.segments(segments_of(tokens))
    return rise[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} tokens")
    quick = parser.parse_args().quick
    tokens, rounds = (QUICK, 3) if quick else (TOKENS, 1)
    print(f"{machine()}; {tokens:,} tokens, {HEADS} heads of one layer")
    rise = apart(megabytes, tokens)
    told("memory beyond the recording, MB", rise, 1000)
    own, other, ratio, worst = apart(seconds, tokens, rounds)
    print(f"segments {own:.1f} s, summary {other:.1f} s, shares within {worst:.0e} of float64")
    assert worst < 2e-6, f"shares differ by {worst}"
    told("segments / summary", ratio, 1.3)


def told(what: str, found: float, bar: float) -> None:
    met = "met" if found <= bar else "missed"
    print(f"{what:44}{found:9.3g}    bar {bar:g}: {met}\n")


if __name__ == "__main__":
    main()
