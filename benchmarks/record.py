"""Recording attention beside plain sdpa, and its statistics beside eager attention's.

    python benchmarks/record.py
    python benchmarks/record.py --long          # 16,384 tokens, and 65,536 for one layer
    python benchmarks/record.py --forward       # what recording costs a pass, and nothing else
    python benchmarks/record.py --small         # small models, windows, short generations
    python benchmarks/record.py --device cuda   # peaks are then those of torch's allocator there

transformers' GPT2Model in the shape of GPT-2 small, float32, random weights, no cache. What needs
memory runs in a process of its own, whose peak is the operating system's (VmHWM, with torch and
the weights in it). Every way gives its statistics, and they are compared before a time is printed.
The bars: recording at most 1.05 of plain sdpa; forward, record and summary of all heads at most a
quarter of eager with the same statistics, in at most 2.5 GB; the statistics of a layer at most 1.5
of its SDPA, the eight strongest keys at most 2.5; 16,384 tokens in at most 4 GB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from placed import add_device, highest_allocated, is_gpu, now, on
from record_small import small
from rich.progress import Progress, TimeElapsedColumn
from timing import KEEPS, Turns, alone, machine
from tokenizers import Tokenizer as Words
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import heedful

VOCABULARY = 50_257
WARMING = 64  # tokens of each way's first call, which imports what it needs, and does not count
COMPARED = ("received", "entropy", "largest", "sink", "previous", "self", "distance")


class Run(NamedTuple):
    """What one way found of every head, (layers, heads, …), in how long and how much memory."""

    found: dict[str, Tensor]
    seconds: float
    peak: float  # GB


def main() -> None:
    options = _arguments()
    print(machine())
    if options.small:
        small(options.rounds, verdict)
        return
    if options.long:
        longer(options.device, 16_384, layers=12, bar=4.0)
        longer(options.device, 65_536, layers=1)
        return
    given = (options.device, options.tokens, options.rounds)
    if options.forward:
        forward(*given)
        return
    beside_eager(*given)
    forward(*given)
    one_layer(*given)


def gpt2(
    implementation: str,
    device: str,
    tokens: int,
    layers: int = 12,
    kind: type[PreTrainedModel] = GPT2Model,
) -> tuple[PreTrainedModel, Tensor]:
    """The model and its input, the same for every implementation."""
    config = GPT2Config(n_positions=tokens, n_layer=layers, use_cache=False)
    model = kind._from_config(config, attn_implementation=implementation).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.base_model.named_parameters():
            if parameter.ndim == 2:  # as they are drawn by themselves, every key is as good as any
                parameter.normal_(std=0.08 if name.endswith("c_attn.weight") else 0.02)
        first = torch.zeros(1, WARMING, dtype=torch.long)
        on(device, model)(on(device, first))  # so that nobody's first call counts
    return model, on(device, torch.randint(0, VOCABULARY, (1, tokens)))


@torch.no_grad()
def recorded(device: str, tokens: int, layers: int = 12, shown: bool = False) -> Run:
    model, ids = gpt2("sdpa", device, tokens, layers)
    with heedful.record(model) as recording:
        model(ids[:, :WARMING])
    recording.summary()
    began = now(device)
    with heedful.record(model) as recording:
        model(ids)
    done = now(device)
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), disable=not shown) as bar:
        task = bar.add_task(f"{tokens:,} tokens", total=1.0)
        summary = recording.summary(lambda share: bar.update(task, completed=share))
    seconds = now(device) - began
    if shown:
        print(f"{'forward, recorded':44}{done - began:9.1f} s")
    received = torch.stack(summary.pop("received"))
    return Run(on("cpu", {**summary, "received": received}), seconds, peak(device))


@torch.no_grad()
def eager(device: str, tokens: int) -> Run:
    model, ids = gpt2("eager", device, tokens)

    def found_in(ids: Tensor) -> list[dict[str, Tensor]]:
        return [of_map(map_[0]) for map_ in model(ids, output_attentions=True).attentions]

    found_in(ids[:, :WARMING])
    began = now(device)
    found = found_in(ids)
    seconds = now(device) - began
    return Run(on("cpu", together(found)), seconds, peak(device))


@torch.no_grad()
def lens(device: str, tokens: int) -> Run:
    """TransformerLens's cache of every layer's pattern, and the same statistics of it."""
    from transformer_lens.model_bridge import TransformerBridge

    model, ids = gpt2("eager", device, tokens, kind=GPT2LMHeadModel)
    with tempfile.TemporaryDirectory() as folder:  # it reads a tokenizer, though it uses none here
        model.config.architectures = ["GPT2LMHeadModel"]
        model.config.save_pretrained(folder)
        words = Words(WordLevel({"a": 0}, unk_token="a"))
        PreTrainedTokenizerFast(
            tokenizer_object=words, bos_token="a", eos_token="a", pad_token="a"
        ).save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=model)
    began = now(device)
    wanted = lambda name: name.endswith("hook_pattern")  # noqa: E731
    _, cache = bridge.run_with_cache(ids, names_filter=wanted, return_type=None)
    found = [of_map(cache["pattern", layer][0]) for layer in range(12)]
    seconds = now(device) - began
    return Run(on("cpu", together(found)), seconds, peak(device))


def of_map(map_: Tensor) -> dict[str, Tensor]:
    """The statistics of whole maps (H, N, N), as one would write them.

    The first query sees itself alone: where others have a choice, it is left out.
    """
    N = map_.shape[-1]
    places = torch.arange(N, dtype=map_.dtype, device=map_.device)
    return {
        "received": map_.sum(1),
        "entropy": torch.special.entr(map_).sum(-1).mean(-1),
        "largest": map_.amax(-1).mean(-1),
        "sink": map_[:, 1:, 0].mean(-1),
        "previous": map_.diagonal(-1, 1, 2).mean(-1),
        "self": map_.diagonal(0, 1, 2)[:, 1:].mean(-1),
        "distance": (places - map_ @ places).mean(-1),  # causal: no key is ahead
    }


def together(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The statistics of all layers, (layers, heads, …)."""
    return {name: torch.stack([one[name] for one in found]) for name in COMPARED}


def peak(device: str) -> float:
    """GB, of this process since it began, on a GPU what torch has allocated there."""
    if is_gpu(device):
        return highest_allocated() / 1e9
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e9
    raise SystemExit("no VmHWM in /proc/self/status: the peaks are measured on Linux")


def apart(way: Callable[[], Run]) -> Run:
    """In a fresh process, whose memory nothing else has touched."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(way)


def beside_eager(device: str, tokens: int, rounds: int) -> None:
    ways = {"heedful": partial(recorded, device, tokens), "eager": partial(eager, device, tokens)}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            runs[name].append(apart(way))
    compare(runs["heedful"][0].found, runs["eager"][0].found)
    print(f"\nGPT-2 small, {tokens:,} tokens: forward and the statistics of all 144 heads")
    print(f"{'':44}{'seconds':>11}{'peak':>12}")
    for name in ways:
        row(name, runs[name])
    if find_spec("transformer_lens"):
        run = apart(partial(lens, device, tokens))
        compare(run.found, runs["eager"][0].found, quietly=True)
        row("TransformerLens, all patterns cached", [run])
    else:
        print(f"{'TransformerLens':44}not installed here: pip install transformer_lens")
    pairs = zip(runs["heedful"], runs["eager"], strict=True)
    ratio = statistics.median(one.seconds / other.seconds for one, other in pairs)
    verdict("heedful / eager", ratio, 0.25)
    verdict("peak, GB", max(run.peak for run in runs["heedful"]), 2.5)


def row(name: str, runs: list[Run]) -> None:
    seconds = statistics.median(run.seconds for run in runs)
    print(f"{name:44}{seconds:9.1f} s{max(run.peak for run in runs):9.2f} GB", flush=True)


def compare(found: dict[str, Tensor], wanted: dict[str, Tensor], quietly: bool = False) -> None:
    """Means to 2e-5, sums over all queries to a thousandth: layers hand rounding on to the next."""
    for name in COMPARED:
        exact = 1e-3 if name == "received" else 2e-5
        torch.testing.assert_close(
            found[name],
            wanted[name],
            atol=exact,
            rtol=max(exact, 1e-4),
            msg=lambda text, name=name: f"{name}: {text}",
        )
    if not quietly:
        print(f"\nthe same values as eager's: {', '.join(COMPARED)}")


@torch.no_grad()
def in_turns(pipe: Any, device: str, tokens: int, rounds: int) -> None:
    """Send how many times as long a recorded pass takes, of passes in turns in this process."""
    model, ids = gpt2("sdpa", device, tokens)
    outputs = []

    def plain() -> None:
        outputs[:] = [model(ids)[0]]

    def recording() -> None:
        with heedful.record(model):
            output = model(ids)[0]
        if not torch.equal(output, outputs[0]):
            raise SystemExit("a recorded model gives another output")

    plain()
    turns = Turns({"plain sdpa": plain, "recorded": recording}, 2 * rounds + 1)
    for name in turns.seconds:
        print(f"{name:44}{turns.median(name):9.2f} s")
    print("the recorded one gave the same output, bit for bit")
    pipe.send(turns.ratio("recorded", "plain sdpa"))


@torch.no_grad()
def passes(pipe: Any, is_recorded: bool, device: str, tokens: int) -> None:
    """Send the seconds of a pass, in a process that only records, or never does."""
    model, ids = gpt2("sdpa", device, tokens)
    held = []

    def one() -> None:
        if not is_recorded:
            model(ids)
            return
        with heedful.record(model) as recording:
            model(ids)
        held[:] = [recording]  # until the next one, as by who looks at it

    name = "recorded" if is_recorded else "plain sdpa"
    turns = Turns({name: one}, 2)
    print(f"{name:44}{turns.median(name):9.2f} s", flush=True)
    pipe.send(turns.median(name))


def forward(device: str, tokens: int, rounds: int) -> None:
    """The forward pass alone: in processes as they are, and in one that keeps its pages.

    glibc gives the memory of a layer back to the system, or not, as it happens, and the kernel then
    clears a million pages anew. What a recording leaves free spares the passes after it just that,
    plain ones too: so the two are in processes of their own, which take turns.
    """
    name, ways = "recorded / plain sdpa", (False, True)
    if is_gpu(device):
        verdict(name, alone(in_turns, device, tokens, rounds), 1.05)
        return
    print("\nthe forward pass alone, each way in processes of its own")
    ratios = []
    for turn in range(rounds):
        seconds = {
            way: alone(passes, way, device, tokens) for way in (ways[::-1] if turn % 2 else ways)
        }
        ratios.append(seconds[True] / seconds[False])
    verdict(name, statistics.median(ratios), 1.05)
    print("\nin turns in one process")
    verdict(f"{name}, pages kept", alone(in_turns, device, tokens, rounds, **KEEPS), 1.05)


@torch.no_grad()
def one_layer(device: str, tokens: int, rounds: int) -> None:
    model, ids = gpt2("sdpa", device, tokens, layers=2)
    with heedful.record(model, values=True, layers=[1]) as recording:
        model(ids)
    [call] = recording
    query, key = call.causes.query[None], call.causes.key[None]
    map_ = call.weights(queries=slice(-64, None))
    values, _ = map_.topk(8, dim=-1)
    torch.testing.assert_close(call.top(8).weights[:, -64:], values)

    def summary() -> None:
        call._kept.clear()
        call.summary()

    ways = {
        "SDPA of a layer": lambda: F.scaled_dot_product_attention(
            query, key, call.value[None], is_causal=True
        ),
        "its whole summary": summary,
        "its 8 strongest keys": lambda: call.top(8),
    }
    turns = Turns(ways, 2 * rounds + 1)
    print(f"\none layer, 12 heads, {tokens:,} tokens")
    for name in ways:
        print(f"{name:44}{1e3 * turns.median(name):9.0f} ms")
    verdict("summary / SDPA", turns.ratio("its whole summary", "SDPA of a layer"), 1.5)
    verdict("8 keys / SDPA", turns.ratio("its 8 strongest keys", "SDPA of a layer"), 2.5)


def longer(device: str, tokens: int, layers: int, bar: float | None = None) -> None:
    print(f"\n{tokens:,} tokens, {layers} layers of 12 heads")
    run = apart(partial(recorded, device, tokens, layers, True))
    row("forward, record and summary", [run])
    if bar:
        verdict("peak, GB", run.peak, bar)


def verdict(name: str, figure: float, bar: float) -> None:
    print(f"{name:44}{figure:9.3f}    bar {bar:g}: {'met' if figure <= bar else 'missed'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", action="store_true", help="the two long texts alone")
    parser.add_argument("--small", action="store_true", help="small models and windows alone")
    parser.add_argument("--forward", action="store_true", help="the forward pass alone")
    add_device(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
