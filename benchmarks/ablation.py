"""Time of taking away each of 144 heads, relative to 144 plain forward passes in the same run.

    python benchmarks/ablation.py
    python benchmarks/ablation.py --model transformers --kind resample

The model has the shape of GPT-2 small (12 layers, 12 heads, width 768, 50,257 tokens), with random
weights. All that `heedful.ablate` does is timed: the loss, the certificate of each changed pass,
the passes before the first change. A plain pass only computes logits; one is timed after every
sixth changed pass. Target: at most 0.8 of 144 plain passes
(their mean).
"""

import argparse
import time
from typing import Any

import torch
from timing import machine
from transformers import GPT2Config, GPT2LMHeadModel

from heedful.interventions import Context
from heedful.interventions.ablation import Ablation
from heedful.models import GPT, GPTConfig

TARGET = 0.8
VOCABULARY = 50_257
EVERY = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["heedful", "transformers"], default="heedful")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--kind", choices=["zero", "mean", "resample"], default="zero")
    options = parser.parse_args()
    print(machine())
    shape = {"vocabulary": VOCABULARY, "context_length": 1024, "width": 768}
    model: Any = GPT(GPTConfig(**shape, layers=12, heads=12))
    if options.model == "transformers":
        model = GPT2LMHeadModel._from_config(GPT2Config(), attn_implementation="sdpa")
    name = "ids" if options.model == "heedful" else "input_ids"
    first, second = ({name: torch.randint(VOCABULARY, (1, options.tokens))} for _ in range(2))
    compare(model.eval(), Context(first, other=second), options.kind)


@torch.no_grad()
def compare(model: torch.nn.Module, context: Context, kind: str) -> None:
    """Print the time of an ablation of all heads in a context, in plain passes."""
    model(**context.inputs)
    plain, effects, began = [], [], now()
    ablation = Ablation(model, [context], "loss", kind, {}, False, 0)
    for effect in ablation.effects(0):
        effects.append(effect)
        if len(effects) % EVERY == 0:
            start = now()
            model(**context.inputs)
            plain.append(now() - start)
    seconds = now() - began - sum(plain)
    result, mean = ablation.result(effects), sum(plain) / len(plain)
    heads = len(result["heads"])
    wall, cpu = (seconds / (heads * mean)).tolist()
    print(
        f"{kind}: {heads} heads in {seconds[0]:.0f} s, a plain pass in {mean[0]:.2f} s: ratio "
        f"{wall:.2f} (of CPU time {cpu:.2f}), target {TARGET}: {wall <= TARGET}; "
        f"outputs: {result['proofs']}"
    )


def now() -> torch.Tensor:
    """Return the time and the CPU time of all threads, which other programs change less."""
    return torch.tensor([time.perf_counter(), time.process_time()], dtype=torch.float64)


if __name__ == "__main__":
    main()
