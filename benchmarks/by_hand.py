"""What it costs to record a model that writes its attention by hand.

    python benchmarks/by_hand.py [--rounds 9] [--device cuda]

A GPT of six blocks, width 256, eight heads, whose weights are masked_fill, softmax and two products
in Python, on 512 tokens. A process whose passes are recorded takes turns with one that never
records, as people run them: what a recording leaves free spares a plain pass after it the clearing
of pages, and a plain pass before it leaves the recorder's code in no cache. Such passes, in turns
in one process, are measured too, in five processes: the ratio of one is that of another to 0.05, as
its tables happen to lie. Each table takes 8 MB, which glibc's allocator gives back to the
system or not, as it happens: the kernel then clears 2,000 pages a table anew, none in one pass and
thousands in the next. So all is measured once more with an allocator that keeps what it has.

Then one layer on 4,096 tokens: the peak of memory of a pass, plain and recorded, each in a process
of its own; the record itself has no N × M. The first look at a call runs its tape once more, and
has a map of it meanwhile, as the model had: that peak is printed beside. On a GPU the peak is that
of torch's allocator, and glibc's plays no part.
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
from timing import KEEPS, Turns, alone
from torch import Tensor, nn

import heedful

WIDTH, HEADS = 256, 8
PROCESSES = 5  # of each kind


class Attention(nn.Module):
    """As nanoGPT has it without a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, width), causal."""
        B, N, _ = x.shape
        q, k, v = (t.view(B, N, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, 2))
        scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        hidden = torch.tril(torch.ones(N, N, device=x.device)) == 0
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).contiguous().view(B, N, WIDTH))


class Block(nn.Module):
    """Attention and a feed-forward layer, each after its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.first, self.second = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.forth = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, width)."""
        x = x + self.attend(self.first(x))
        return x + self.forth(self.second(x))


def model(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(layers))).eval()


class Run(NamedTuple):
    """What is measured: how many texts of 512 tokens, in which mode, and where."""

    texts: int
    is_inference: bool
    device: str

    def ways(self) -> dict[str, Callable[[], None]]:
        """A plain pass and a recorded one, of one model."""
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
        """The mode of torch that it runs in."""
        return torch.inference_mode() if self.is_inference else torch.no_grad()


def check(is_right: bool) -> None:
    """End the benchmark where a pass was not as it should be."""
    if not is_right:
        raise SystemExit("a pass gives another output, or a recording lacks calls")


def in_turns(pipe, run: Run, rounds: int) -> None:
    """Send how many times as long recorded passes take as the plain ones between them."""
    with run.mode():
        pipe.send(Turns(run.ways(), rounds).ratio("recorded", "plain"))


def one_way(pipe, run: Run, name: str, passes: int) -> None:
    """Send the seconds of a pass in a process that makes no others, but one plain one at first."""
    with run.mode():
        turns = Turns({name: run.ways()[name]}, passes)
    pipe.send(turns.median(name))


def apart(run: Run, rounds: int, environment: dict[str, str]) -> float:
    """How many times as long recorded passes take as plain ones in a process of their own."""
    ratios, rounds, ways = [], 4 * rounds // run.texts, ("plain", "recorded")
    for turn in range(PROCESSES):
        milliseconds = {
            way: 1e3 * alone(one_way, run, way, rounds, **environment)
            for way in (ways[::-1] if turn % 2 else ways)
        }
        print(", ".join(f"{way} {milliseconds[way]:6.0f} ms" for way in ways), flush=True)
        ratios.append(milliseconds["recorded"] / milliseconds["plain"])
    return statistics.median(ratios)


@torch.no_grad()
def peak(pipe, is_recorded: bool, device: str) -> None:
    """Send the peak of memory in a pass, then with a first look, and how much the record takes."""
    gpt, x = on(device, (model(1), torch.randn(1, 4096, WIDTH)))
    gpt(x[:, :64])
    if is_recorded:
        with heedful.record(gpt) as recording:
            gpt(x)
        of_pass, causes = _peak(device), recording[0].causes
        pipe.send((of_pass, _peak(device), causes.query.nbytes + causes.key.nbytes))
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
    allocators = [("as it is", {}), *([] if is_gpu(device) else [("pages kept", KEEPS)])]
    for texts, is_inference in ((4, False), (1, False), (1, True)):
        how = ", inference mode" if is_inference else ""
        for name, environment in allocators:
            run, name = Run(texts, is_inference, device), f"{texts} × 512 tokens{how}, {name}"
            verdict(f"{name}: apart", apart(run, rounds, environment), 1.25)
            turns = [alone(in_turns, run, rounds, **environment) for _ in range(PROCESSES)]
            print(f"in turns {', '.join(f'{ratio:.3f}' for ratio in sorted(turns))}")
            verdict(f"{name}: in turns", statistics.median(turns), 1.25)
    (plain, *_), (recorded, looked, kept) = alone(peak, False, device), alone(peak, True, device)
    map_ = HEADS * 4096**2 * 4
    peaks = f"{plain / 1e6:,.0f} MB plain, {recorded / 1e6:,.0f} MB recorded"
    print(f"4,096 tokens, one layer: peak {peaks}, {looked / 1e6:,.0f} MB with a first look")
    print(f"the record: {kept / 1e6:.1f} MB; the maps of all heads would be {map_ / 1e6:,.0f} MB")
    verdict("memory beyond its own, in maps of all heads", (recorded - plain) / map_, 0.25)


def verdict(name: str, figure: float, bar: float) -> None:
    print(f"{name:58}{figure:9.3f}    bar {bar:g}: {'met' if figure <= bar else 'missed'}")


if __name__ == "__main__":
    main()
