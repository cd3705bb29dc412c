"""Cost of recording a model whose attention is written out as products and a softmax.

    python benchmarks/by_hand.py [--rounds 9] [--device cuda]

The model is a GPT of six blocks, width 256 and eight heads, on 512 tokens. It computes attention
"by hand": masked_fill, softmax and two products in Python. There are two comparisons. "apart":
processes that record every pass alternate with processes that never record, as in ordinary use.
"in turns": recorded and plain passes alternate within a process, in five processes. Both then share
freed pages and caches, and their ratio varies by 0.05 from process to process.

The scores of a layer take 8 MB for each text. If glibc returns them to the system, the next pass
causes 2,000 page faults for each layer and text. So both comparisons are repeated with an allocator
that keeps freed pages ("pages kept").

The last lines report the peak memory of a pass of one layer on 4,096 tokens, plain and recorded,
each in a new process. The recording stores nothing of size N × M. Reading a call for the first time
replays its operations, which takes the memory of a map; this peak is printed too. On a GPU, the
peak is that of torch's allocator.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from placed import add_device, highest_allocated, is_gpu, on
from timing import KEEP_PAGES, Turns, in_new_process
from torch import Tensor, nn

import heedful

WIDTH, HEADS = 256, 8
PROCESSES = 5  # of each comparison


class Attention(nn.Module):
    """Attention as in nanoGPT without a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend causally; x is (B, N, width)."""
        B, N, _ = x.shape
        q, k, v = (t.view(B, N, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, 2))
        scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        masked = torch.tril(torch.ones(N, N, device=x.device)) == 0
        weights = scores.masked_fill(masked, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).contiguous().view(B, N, WIDTH))


class Block(nn.Module):
    """Attention and a feed-forward layer, each after its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.first, self.second = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x, (B, N, width)."""
        x = x + self.attend(self.first(x))
        return x + self.mlp(self.second(x))


def model(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(layers))).eval()


class Run(NamedTuple):
    """A measurement: the number of texts of 512 tokens, the mode of torch, the device."""

    texts: int
    is_inference: bool
    device: str

    def ways(self) -> dict[str, Callable[[], None]]:
        """Return functions that run a plain and a recorded pass of one model."""
        gpt, x = on(self.device, (model(6), torch.randn(self.texts, 512, WIDTH)))
        expected = gpt(x)

        def plain() -> None:
            check(torch.equal(gpt(x), expected))

        def recorded() -> None:
            with heedful.record(gpt):
                output = gpt(x)
            check(torch.equal(output, expected))

        with heedful.record(gpt) as recording:
            gpt(x)
        check([call.proof for call in recording] == ["proved"] * 6)
        return {"plain": plain, "recorded": recorded}

    def mode(self) -> AbstractContextManager[Any]:
        """Return the context without gradients."""
        return torch.inference_mode() if self.is_inference else torch.no_grad()


def check(is_right: bool) -> None:
    if not is_right:
        raise SystemExit("a pass has a different output, or a recording lacks calls")


def in_turns(pipe, run: Run, rounds: int) -> None:
    """Send the time ratio of recorded and plain passes that alternate in this process."""
    with run.mode():
        pipe.send(Turns(run.ways(), rounds).ratio("recorded", "plain"))


def one_way(pipe, run: Run, name: str, passes: int) -> None:
    """Send the seconds of a pass, in a process that runs passes of this kind only."""
    with run.mode():
        turns = Turns({name: run.ways()[name]}, passes)
    pipe.send(turns.median(name))


def apart(run: Run, rounds: int, environment: dict[str, str]) -> float:
    """Return the time ratio of recorded and plain passes in separate processes."""
    ratios, rounds, ways = [], 4 * rounds // run.texts, ("plain", "recorded")
    for turn in range(PROCESSES):
        milliseconds = {
            way: 1e3 * in_new_process(one_way, run, way, rounds, **environment)
            for way in (ways[::-1] if turn % 2 else ways)
        }
        print(", ".join(f"{way} {milliseconds[way]:6.0f} ms" for way in ways), flush=True)
        ratios.append(milliseconds["recorded"] / milliseconds["plain"])
    return statistics.median(ratios)


@torch.no_grad()
def peak(pipe, is_recorded: bool, device: str) -> None:
    """Send the peak memory of a pass, the peak after reading a call, and the recording's size."""
    gpt, x = on(device, (model(1), torch.randn(1, 4096, WIDTH)))
    gpt(x[:, :64])
    if is_recorded:
        with heedful.record(gpt) as recording:
            gpt(x)
        pass_peak, inputs = _peak(device), recording[0].causes
        pipe.send((pass_peak, _peak(device), inputs.query.nbytes + inputs.key.nbytes))
    else:
        gpt(x)
        pipe.send((_peak(device), 0, 0))


def _peak(device: str) -> int:
    if is_gpu(device):
        return highest_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    add_device(parser)
    options = parser.parse_args()
    rounds, device = options.rounds, options.device
    allocators = [("default", {}), *([] if is_gpu(device) else [("pages kept", KEEP_PAGES)])]
    for texts, is_inference in ((4, False), (1, False), (1, True)):
        how = ", inference mode" if is_inference else ""
        for name, environment in allocators:
            run, name = Run(texts, is_inference, device), f"{texts} × 512 tokens{how}, {name}"
            verdict(f"{name}: apart", apart(run, rounds, environment), 1.25)
            turns = [in_new_process(in_turns, run, rounds, **environment) for _ in range(PROCESSES)]
            print(f"in turns {', '.join(f'{ratio:.3f}' for ratio in sorted(turns))}")
            verdict(f"{name}: in turns", statistics.median(turns), 1.25)
    plain, *_ = in_new_process(peak, False, device)
    recorded, after_reading, size = in_new_process(peak, True, device)
    map_ = HEADS * 4096**2 * 4
    peaks = f"{plain / 1e6:,.0f} MB plain, {recorded / 1e6:,.0f} MB recorded"
    print(f"4,096 tokens, one layer: peak {peaks}, {after_reading / 1e6:,.0f} MB with a call read")
    print(f"recording: {size / 1e6:.1f} MB; the maps of all heads would be {map_ / 1e6:,.0f} MB")
    verdict("extra peak memory / maps of all heads", (recorded - plain) / map_, 0.25)


def verdict(name: str, figure: float, target: float) -> None:
    result = "met" if figure <= target else "missed"
    print(f"{name:58}{figure:9.3f}    target at most {target:g}: {result}")


if __name__ == "__main__":
    main()
