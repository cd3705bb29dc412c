"""Speed of generation with GPT-2's 124 M shape (float32, batch 1), next to transformers.

    python benchmarks/generate.py

transformers saves a checkpoint with random weights, and `heedful.load_model` reads it. Both models
continue the same prompt greedily; their tokens are compared before the timing. The limit is the
memory bandwidth, measured as the time to multiply each matrix with a vector once per token.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from timing import Turns, machine
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

import heedful
from heedful.generate import Sampling, generate

GREEDY = Sampling(temperature=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens generated with the cache")
    parser.add_argument("--uncached", type=int, default=6, help="tokens generated uncached")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    peer, ours = both()
    prompt = torch.randint(ours.config.vocabulary, (options.prompt,)).tolist()

    def run(tokens: int, cache: bool = True) -> list[int]:
        stream = generate(ours, prompt, tokens=tokens, sampling=GREEDY, cache=cache)
        return [int(token) for token in stream]

    def run_peer(tokens: int) -> list[int]:
        config = GenerationConfig(
            max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        ids = torch.tensor([prompt])
        text = peer.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return text[0, options.prompt :].tolist()

    if run(options.uncached) != run(options.uncached, cache=False):
        raise SystemExit("the tokens with and without the cache differ")
    if run(options.tokens) != run_peer(options.tokens):
        raise SystemExit("the tokens of heedful and transformers differ")
    matrices = [
        parameter
        for name, parameter in ours.named_parameters()
        if parameter.ndim == 2 and name != "positions"
    ]
    vectors = [torch.randn(matrix.shape[1]) for matrix in matrices]

    def read_once() -> None:
        with torch.inference_mode():
            for matrix, vector in zip(matrices, vectors, strict=True):
                torch.mv(matrix, vector)

    turns = Turns(
        {
            "prompt": lambda: run(1),
            "cached": lambda: run(options.tokens + 1),
            "uncached": lambda: run(options.uncached, cache=False),
            "peer prompt": lambda: run_peer(1),
            "peer": lambda: run_peer(options.tokens + 1),
            "limit": lambda: [read_once() for _ in range(options.tokens)],
        },
        options.rounds,
    )
    cached = options.tokens / (turns.median("cached") - turns.median("prompt"))
    peer_rate = options.tokens / (turns.median("peer") - turns.median("peer prompt"))
    uncached = options.uncached / turns.median("uncached")
    limit = options.tokens / turns.median("limit")
    gigabytes = 4 * sum(matrix.numel() for matrix in matrices) / 1e9
    number = sum(parameter.numel() for parameter in ours.parameters())
    print(f"{number:,} parameters; {machine()}; after a prompt of {options.prompt}")
    print(f"heedful             {cached:6.1f} tokens/s")
    print(f"transformers        {peer_rate:6.1f} tokens/s ({cached / peer_rate:.1f} times as slow)")
    print(f"without the cache   {uncached:6.1f} tokens/s ({cached / uncached:.1f} times as slow)")
    print(f"reading the weights {limit:6.1f} tokens/s ({limit * gigabytes:.1f} GB/s)")
    print(f"share of that limit   {cached / limit:.2f}")


def both() -> tuple[GPT2LMHeadModel, torch.nn.Module]:
    peer = GPT2LMHeadModel(GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        return peer, heedful.load_model(folder)


if __name__ == "__main__":
    main()
