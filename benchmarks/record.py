"""Cost of recording attention and of its statistics, next to plain sdpa and eager attention.

    python benchmarks/record.py
    python benchmarks/record.py --long          # 16,384 tokens, and 65,536 for one layer
    python benchmarks/record.py --forward       # only the cost of recording a forward pass
    python benchmarks/record.py --small         # small models, windows, short generations
    python benchmarks/record.py --device cuda   # peaks are those of torch's allocator

The model is transformers' GPT2Model in the shape of GPT-2 small, with random float32 weights and no
cache. Peak memory is the figure of the operating system (VmHWM) in a new process, torch and weights
included. All ways compute the same statistics, which are compared before the times are printed.
Targets: a recorded pass takes at most 1.05 times as long as a plain sdpa pass. Forward pass,
recording and summary of all heads take at most a quarter of the time of eager attention with the
same statistics, and at most 2.5 GB. The summary of a layer takes at most 1.5 times as long as the
layer's SDPA, the eight largest weights of each row 2.5 times. 16,384 tokens need at most 4 GB.
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
from timing import KEEP_PAGES, Turns, in_new_process, machine
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
WARMING = 64  # tokens of a first pass, which is not timed
COMPARED = ("received", "entropy", "largest", "sink", "previous", "self", "distance")


class Run(NamedTuple):
    """The statistics of a way, each (layers, heads, …), its seconds and its peak memory."""

    statistics: dict[str, Tensor]
    seconds: float
    peak: float  # GB


def main() -> None:
    options = _arguments()
    print(machine())
    if options.small:
        small(options.rounds, verdict)
        return
    if options.long:
        longer(options.device, 16_384, layers=12, target=4.0)
        longer(options.device, 65_536, layers=1)
        return
    arguments = (options.device, options.tokens, options.rounds)
    if options.forward:
        forward(*arguments)
        return
    compare_with_eager(*arguments)
    forward(*arguments)
    one_layer(*arguments)


def gpt2(
    implementation: str,
    device: str,
    tokens: int,
    layers: int = 12,
    kind: type[PreTrainedModel] = GPT2Model,
) -> tuple[PreTrainedModel, Tensor]:
    """Return the model and its input, equal for every implementation of attention."""
    config = GPT2Config(n_positions=tokens, n_layer=layers, use_cache=False)
    model = kind._from_config(config, attn_implementation=implementation).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.base_model.named_parameters():
            if parameter.ndim == 2:  # the default initialisation gives nearly uniform attention
                parameter.normal_(std=0.08 if name.endswith("c_attn.weight") else 0.02)
        first = torch.zeros(1, WARMING, dtype=torch.long)
        on(device, model)(on(device, first))  # warm-up
    return model, on(device, torch.randint(0, VOCABULARY, (1, tokens)))


@torch.no_grad()
def recorded(device: str, tokens: int, layers: int = 12, verbose: bool = False) -> Run:
    model, ids = gpt2("sdpa", device, tokens, layers)
    with heedful.record(model) as recording:
        model(ids[:, :WARMING])
    recording.summary()
    began = now(device)
    with heedful.record(model) as recording:
        model(ids)
    passed = now(device)
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), disable=not verbose) as bar:
        task = bar.add_task(f"{tokens:,} tokens", total=1.0)
        summary = recording.summary(lambda share: bar.update(task, completed=share))
    seconds = now(device) - began
    if verbose:
        print(f"{'forward, recorded':44}{passed - began:9.1f} s")
    received = torch.stack(summary.pop("received"))
    return Run(on("cpu", {**summary, "received": received}), seconds, peak(device))


@torch.no_grad()
def eager(device: str, tokens: int) -> Run:
    model, ids = gpt2("eager", device, tokens)

    def layer_statistics(ids: Tensor) -> list[dict[str, Tensor]]:
        return [map_statistics(map_[0]) for map_ in model(ids, output_attentions=True).attentions]

    layer_statistics(ids[:, :WARMING])
    began = now(device)
    layers = layer_statistics(ids)
    seconds = now(device) - began
    return Run(on("cpu", stacked(layers)), seconds, peak(device))


@torch.no_grad()
def lens(device: str, tokens: int) -> Run:
    """Cache every layer's pattern in TransformerLens and compute the same statistics."""
    from transformer_lens.model_bridge import TransformerBridge

    model, ids = gpt2("eager", device, tokens, kind=GPT2LMHeadModel)
    with tempfile.TemporaryDirectory() as folder:  # the bridge requires a tokenizer
        model.config.architectures = ["GPT2LMHeadModel"]
        model.config.save_pretrained(folder)
        words = Words(WordLevel({"a": 0}, unk_token="a"))
        PreTrainedTokenizerFast(
            tokenizer_object=words, bos_token="a", eos_token="a", pad_token="a"
        ).save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=model)
    began = now(device)
    is_pattern = lambda name: name.endswith("hook_pattern")  # noqa: E731
    _, cache = bridge.run_with_cache(ids, names_filter=is_pattern, return_type=None)
    layers = [map_statistics(cache["pattern", layer][0]) for layer in range(12)]
    seconds = now(device) - began
    return Run(on("cpu", stacked(layers)), seconds, peak(device))


def map_statistics(map_: Tensor) -> dict[str, Tensor]:
    """Compute the statistics of whole maps (H, N, N) by their definitions.

    "sink" and "self" exclude the first query, which can only attend to itself.
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


def stacked(layers: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([layer[name] for layer in layers]) for name in COMPARED}


def peak(device: str) -> float:
    """Return the peak memory of this process in GB; on a GPU, that of torch's allocator."""
    if is_gpu(device):
        return highest_allocated() / 1e9
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e9
    raise SystemExit("no VmHWM in /proc/self/status: the peaks are measured on Linux")


def in_fresh_process(way: Callable[[], Run]) -> Run:
    """Run a way in a new process, so that earlier work does not affect its memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(way)


def compare_with_eager(device: str, tokens: int, rounds: int) -> None:
    ways = {"heedful": partial(recorded, device, tokens), "eager": partial(eager, device, tokens)}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            runs[name].append(in_fresh_process(way))
    compare(runs["heedful"][0].statistics, runs["eager"][0].statistics)
    print(f"\nGPT-2 small, {tokens:,} tokens: forward and the statistics of all 144 heads")
    print(f"{'':44}{'seconds':>11}{'peak':>12}")
    for name in ways:
        row(name, runs[name])
    if find_spec("transformer_lens"):
        run = in_fresh_process(partial(lens, device, tokens))
        compare(run.statistics, runs["eager"][0].statistics, quietly=True)
        row("TransformerLens, all patterns cached", [run])
    else:
        print(f"{'TransformerLens':44}not installed: pip install transformer_lens")
    pairs = zip(runs["heedful"], runs["eager"], strict=True)
    ratio = statistics.median(ours.seconds / eager.seconds for ours, eager in pairs)
    verdict("heedful / eager", ratio, 0.25)
    verdict("peak, GB", max(run.peak for run in runs["heedful"]), 2.5)


def row(name: str, runs: list[Run]) -> None:
    seconds = statistics.median(run.seconds for run in runs)
    print(f"{name:44}{seconds:9.1f} s{max(run.peak for run in runs):9.2f} GB", flush=True)


def compare(ours: dict[str, Tensor], expected: dict[str, Tensor], quietly: bool = False) -> None:
    """Compare means to 2e-5 and sums over queries to 1e-3; rounding adds up over the layers."""
    for name in COMPARED:
        tolerance = 1e-3 if name == "received" else 2e-5
        torch.testing.assert_close(
            ours[name],
            expected[name],
            atol=tolerance,
            rtol=max(tolerance, 1e-4),
            msg=lambda text, name=name: f"{name}: {text}",
        )
    if not quietly:
        print(f"\nequal to the eager statistics: {', '.join(COMPARED)}")


@torch.no_grad()
def in_turns(pipe: Any, device: str, tokens: int, rounds: int) -> None:
    """Send the time ratio of recorded and plain passes that alternate in this process."""
    model, ids = gpt2("sdpa", device, tokens)
    outputs = []

    def plain() -> None:
        outputs[:] = [model(ids)[0]]

    def recording() -> None:
        with heedful.record(model):
            output = model(ids)[0]
        if not torch.equal(output, outputs[0]):
            raise SystemExit("recording changed the output of the model")

    plain()
    turns = Turns({"plain sdpa": plain, "recorded": recording}, 2 * rounds + 1)
    for name in turns.seconds:
        print(f"{name:44}{turns.median(name):9.2f} s")
    print("the outputs are equal, bit for bit")
    pipe.send(turns.ratio("recorded", "plain sdpa"))


@torch.no_grad()
def passes(pipe: Any, is_recorded: bool, device: str, tokens: int) -> None:
    """Send the seconds of a pass, in a process that records every pass or none."""
    model, ids = gpt2("sdpa", device, tokens)
    latest = []

    def run() -> None:
        if not is_recorded:
            model(ids)
            return
        with heedful.record(model) as recording:
            model(ids)
        latest[:] = [recording]  # alive until the next pass, as in ordinary use

    name = "recorded" if is_recorded else "plain sdpa"
    turns = Turns({name: run}, 2)
    print(f"{name:44}{turns.median(name):9.2f} s", flush=True)
    pipe.send(turns.median(name))


def forward(device: str, tokens: int, rounds: int) -> None:
    """Measure the forward pass in separate processes, and in one process that keeps freed pages.

    glibc may return freed memory to the system; later passes then cause a million page faults.
    Pages freed by a recorded pass are reused by the next pass, even a plain one. So plain and
    recorded passes run in separate processes, which alternate.
    """
    name, ways = "recorded / plain sdpa", (False, True)
    if is_gpu(device):
        verdict(name, in_new_process(in_turns, device, tokens, rounds), 1.05)
        return
    print("\nthe forward pass, plain and recorded in separate processes")
    ratios = []
    for turn in range(rounds):
        seconds = {
            way: in_new_process(passes, way, device, tokens)
            for way in (ways[::-1] if turn % 2 else ways)
        }
        ratios.append(seconds[True] / seconds[False])
    verdict(name, statistics.median(ratios), 1.05)
    print("\nalternating in one process")
    ratio = in_new_process(in_turns, device, tokens, rounds, **KEEP_PAGES)
    verdict(f"{name}, pages kept", ratio, 1.05)


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
        call._cache.clear()
        call.summary()

    ways = {
        "SDPA of the layer": lambda: F.scaled_dot_product_attention(
            query, key, call.value[None], is_causal=True
        ),
        "its summary": summary,
        "its 8 largest weights per query": lambda: call.top(8),
    }
    turns = Turns(ways, 2 * rounds + 1)
    print(f"\none layer, 12 heads, {tokens:,} tokens")
    for name in ways:
        print(f"{name:44}{1e3 * turns.median(name):9.0f} ms")
    sdpa, _, largest = ways
    verdict("summary / SDPA", turns.ratio("its summary", sdpa), 1.5)
    verdict("8 largest weights / SDPA", turns.ratio(largest, sdpa), 2.5)


def longer(device: str, tokens: int, layers: int, target: float | None = None) -> None:
    print(f"\n{tokens:,} tokens, {layers} layers of 12 heads")
    run = in_fresh_process(partial(recorded, device, tokens, layers, True))
    row("forward, recording and summary", [run])
    if target:
        verdict("peak, GB", run.peak, target)


def verdict(name: str, figure: float, target: float) -> None:
    result = "met" if figure <= target else "missed"
    print(f"{name:44}{figure:9.3f}    target at most {target:g}: {result}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", action="store_true", help="only the two long texts")
    parser.add_argument("--small", action="store_true", help="only small models and windows")
    parser.add_argument("--forward", action="store_true", help="only the forward pass")
    add_device(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
