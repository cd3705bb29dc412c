"""Generation at the 124 M shape, float32, batch 1: with the cache, without it, and the limit.

    python benchmarks/generate.py

The limit is what reading every weight once per token allows: the products of the model's own
matrices with a vector, and nothing else, timed in the same run. The greedy tokens with and
without the cache are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from timing import Turns, machine

from heedful.generate import Sampling, generate
from heedful.models import GPT, parameters
from heedful.train import PRESETS

GREEDY = Sampling(temperature=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens generated with the cache")
    parser.add_argument("--uncached", type=int, default=6, help="tokens generated without it")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = dataclasses.replace(PRESETS["gpt2"].model, vocabulary=50257)
    model = GPT(config).eval()
    prompt = torch.randint(config.vocabulary, (options.prompt,)).tolist()

    def run(tokens: int, cache: bool) -> list[int]:
        return [
            int(token)
            for token in generate(model, prompt, tokens=tokens, sampling=GREEDY, cache=cache)
        ]

    if run(options.uncached, True) != run(options.uncached, False):
        raise SystemExit("the tokens with the cache are not those without it")
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and name != "positions"
    ]
    vectors = [torch.randn(matrix.shape[1]) for matrix in matrices]

    def read_once() -> None:
        with torch.inference_mode():
            for matrix, vector in zip(matrices, vectors, strict=True):
                torch.mv(matrix, vector)

    turns = Turns(
        {
            "prompt": lambda: run(1, True),
            "cached": lambda: run(options.tokens + 1, True),
            "uncached": lambda: run(options.uncached, False),
            "limit": lambda: [read_once() for _ in range(options.tokens)],
        },
        options.rounds,
    )
    cached = options.tokens / (turns.median("cached") - turns.median("prompt"))
    uncached = options.uncached / turns.median("uncached")
    limit = options.tokens / turns.median("limit")
    gigabytes = 4 * sum(matrix.numel() for matrix in matrices) / 1e9
    print(f"{parameters(config):,} parameters; {machine()}")
    print(f"with the cache     {cached:6.1f} tokens/s after a prompt of {options.prompt}")
    print(f"without it         {uncached:6.1f} tokens/s ({cached / uncached:.1f} times as slow)")
    print(f"reading the weights {limit:5.1f} tokens/s ({limit * gigabytes:.1f} GB/s)")
    print(f"share of that limit  {cached / limit:.2f}")


if __name__ == "__main__":
    main()
