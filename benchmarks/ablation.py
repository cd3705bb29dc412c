"""Time of taking away each of 144 heads, relative to 144 plain forward passes in the same run.

    python benchmarks/ablation.py
    python benchmarks/ablation.py --kind resample

The models have the shape of GPT-2 small (12 layers, 12 heads, width 768, 50,257 tokens), with
random weights: heedful's GPT, and transformers' GPT2LMHeadModel with sdpa. `heedful.ablate` computes
the loss and the certificate of each changed pass; a plain pass computes the logits only. Plain
passes are timed before and after, and their median counts. Target: at most 0.8.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from timing import machine
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import heedful
from heedful.models import GPT, GPTConfig

TARGET = 0.8
VOCABULARY = 50_257
PLAIN = 8  # plain passes that are timed before, and after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--kind", choices=["zero", "mean", "resample"], default="zero")
    options = parser.parse_args()
    print(machine())
    shape = GPTConfig(vocabulary=VOCABULARY, context_length=1024, width=768, layers=12, heads=12)
    models: dict[str, tuple[str, Callable[[], nn.Module]]] = {
        "heedful": ("ids", lambda: GPT(shape)),
        "transformers, sdpa": (
            "input_ids",
            lambda: GPT2LMHeadModel._from_config(GPT2Config(), attn_implementation="sdpa"),
        ),
    }
    for name, (argument, new_model) in models.items():
        texts = [
            {argument: torch.randint(VOCABULARY, (1, options.tokens))}
            for _ in range(2 if options.kind == "resample" else 1)
        ]
        compare(name, new_model().eval(), texts, options.kind)


@torch.no_grad()
def compare(name: str, model: nn.Module, texts: list[Mapping[str, Any]], kind: str) -> None:
    """Print the time of an ablation of all heads, in plain passes."""
    plain = [timed(lambda: model(**texts[0])) for _ in range(PLAIN + 1)][1:]
    results: list[dict[str, Any]] = []
    seconds = timed(lambda: results.append(heedful.ablate(model, texts, kind=kind))) / len(texts)
    plain += [timed(lambda: model(**texts[0])) for _ in range(PLAIN)]
    heads, median = len(results[0]["heads"]), statistics.median(plain)
    ratio = seconds / (heads * median)
    print(
        f"{name}, {kind}: {heads} heads in {seconds:.1f} s per text, a plain pass in {median:.3f} "
        f"s; ratio {ratio:.2f}, target {TARGET}: {ratio <= TARGET}; {results[0]['proofs']}"
    )


def timed(function: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
