"""Time of a forward pass with changed heads, relative to a plain forward pass in the same run.

    python benchmarks/interventions.py
    python benchmarks/interventions.py --tokens 512

The models have the shape of GPT-2 small (12 layers, 12 heads, width 768), with random weights:
heedful's GPT, and transformers' GPT2Model with sdpa. All heads of one layer, or of all layers, are
changed; the certificate is included. Every change and the plain pass run in turns, and the medians
of the ratios are printed. Targets, for one layer: at most 1.1 for zero, scale, mean, first,
uniform and pattern_from, at most 1.25 for block of 256 rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from timing import Turns, machine
from torch import nn
from transformers import GPT2Config, GPT2Model

import heedful
from heedful import change
from heedful.models import GPT, GPTConfig

VOCABULARY = 256  # a small one, so that attention is a larger part of the time
TARGETS = {"block": 1.25}  # default 1.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=options.tokens,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    models: dict[str, tuple[nn.Module, str]] = {
        "heedful": (GPT(GPTConfig(vocabulary=VOCABULARY, context_length=options.tokens, width=768,
                                  layers=12, heads=12)), "blocks.{}"),
        "transformers, sdpa": (GPT2Model._from_config(config, attn_implementation="sdpa"), "h.{}"),
    }  # fmt: skip
    ids = torch.randint(VOCABULARY, (1, options.tokens))
    for name, (model, key) in models.items():
        print(f"\n{name}: {options.tokens:,} tokens, all heads of one layer and of all layers")
        table(model.eval(), key, ids, options.rounds)


@torch.no_grad()
def table(model: nn.Module, key: str, ids: torch.Tensor, rounds: int) -> None:
    """Print the ratios of each change in all heads of one layer and of all layers."""
    with heedful.record(model, values=True) as recording:
        model(ids)
    _ = recording.certificate()  # checked once, before anything is timed
    tokens = ids.shape[1]
    rows = range(tokens // 2, tokens // 2 + min(256, tokens // 2))
    made: dict[str, object] = {
        "zero": change.zero(),
        "scale": change.scale(0.5),
        "mean": change.mean(of=torch.zeros(12, 64)),
        "first": change.first(),
        "uniform": change.uniform(),
        "pattern_from": change.pattern_from(recording),
        "block": change.block(rows, slice(3, 60)),
    }
    ratios: dict[str, list[float]] = {name: [] for name in made}
    for module in (key.format(5), key.format("*")):
        ways = {name: changed(model, ids, {module: item}) for name, item in made.items()}
        turns = Turns({"plain": lambda: model(ids)} | ways, rounds)
        for name in made:
            ratios[name].append(turns.ratio(name, "plain"))
    for name, numbers in ratios.items():
        target = TARGETS.get(name, 1.1)
        words = "".join(f"{number:10.2f}" for number in numbers)
        print(f"{name:<14}{words}   target {target}: {numbers[0] <= target}")


def changed(model: nn.Module, ids: torch.Tensor, changes: dict) -> Callable[[], None]:
    """Return a function that runs the model with the changes."""

    def run() -> None:
        with heedful.intervene(model, changes):
            model(ids)

    return run


if __name__ == "__main__":
    main()
