"""Training speed next to nanoGPT and nanochat: seconds to a loss, and the loss at equal time.

    python benchmarks/train.py tinyshakespeare.txt --nanogpt ../nanoGPT --other sales_textbook.txt
    python benchmarks/train.py tinyshakespeare.txt --nanochat ../nanochat

Each run is a new process, and its whole time counts: imports, validation on the whole split,
writing files, and preparing the text (for nanoGPT, the text is prepared before). Both programs read
the same characters and validate about equally often. nanoGPT trains with the recipe for CPUs in its
README. A copy of its train.py validates on the whole split instead of a few random batches, and
gets its seed from this benchmark.

"equal" has nanoGPT's width, depth, context and batch. "free" has the same but a context twice as
long. "to the loss" runs `--steps`, the fewest that get below `--target` (no free setting was
faster). The other rows use 0.9 of nanoGPT's time, because the speed of a shared machine varies; the
time of each run is printed. If nanoGPT misses the target in its 2,000 steps, its whole time counts,
although reaching the target would take longer. `--other` compares the default recipe with heedful's
earlier AdamW recipe at equal time, on texts for which no setting was tuned: the given files in BPE,
and the Python language reference.

With `--nanochat`, nanochat's loop and optimizer train nanochat's model with nanoGPT's width, depth,
context, batch and number of steps: compiled by default (TORCHDYNAMO_DISABLE=1 disables it), with
the learning rates that it selects for such a batch. heedful's "equal, to the loss" follows.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nanochat_copy
import numpy as np
from timing import machine

STEPS, EVERY, CONTEXT, BATCH = 2000, 250, 64, 12
AIM = 0.9  # share of nanoGPT's time that heedful uses, since the machine's speed varies
SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": CONTEXT, "batch_size": BATCH}
CHECK = re.compile(r"step ([\d,]+)(?:: train loss \S+, val|  validation) loss ([\d.]+)")
ESTIMATE = """
def estimate_loss():
    model.eval()
    data = np.fromfile(os.path.join(data_dir, 'val.bin'), dtype=np.uint16).astype(np.int64)
    total, whole = 0.0, (len(data) - 1) // block_size * block_size
    ends = [*range(0, whole, 128 * block_size), whole]
    parts = [(a, b, block_size) for a, b in zip(ends, ends[1:])]
    parts += [(whole, len(data) - 1, len(data) - 1 - whole)] if whole < len(data) - 1 else []
    for start, stop, length in parts:
        x = torch.from_numpy(data[start:stop]).view(-1, length)
        y = torch.from_numpy(data[start + 1:stop + 1]).view(-1, length)
        total += model(x, y)[1].item() * (stop - start)
    model.train()
    return {'train': float('nan'), 'val': total / (len(data) - 1)}
"""
EQUAL = ["--context-length", "64", "--batch", "12"]
RECIPE, QUICK = ["--preset", "characters"], ["--preset", "quick"]
SHORT = [*RECIPE, "--order", "random"]  # for a run that reads only a seventh of the text
ADAMW = [*QUICK, "--optimizer", "adamw", "--initial", "normal", "--decay", "cosine"]
ADAMW += ["--final-rate", "0.1", "--warmup", "50", "--weight-decay", "0.1"]
ADAMW += ["--order", "random", "--precision", "float32"]


@dataclass
class Run:
    """The validations of a process as (seconds since its start, loss), and its total costs."""

    checks: list[tuple[float, float]]
    seconds: float
    gigabytes: float
    tokens: int

    @property
    def loss(self) -> float:
        """The loss of the last validation."""
        return self.checks[-1][1]

    @property
    def speed(self) -> float:
        """Tokens per second between the first and the last validation."""
        return self.tokens / (self.checks[-1][0] - self.checks[0][0])

    def reaching(self, target: float) -> float:
        """Return the seconds until the first loss at the target or below, else NaN."""
        return next((second for second, loss in self.checks if loss <= target), float("nan"))


def main() -> None:
    options = _arguments()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if options.nanogpt:
            beside_nanogpt(place, options)
        if options.nanochat:
            beside_nanochat(place, options)
        for text in options.other:
            at_equal_time(place, text, options.seeds)
        if options.other:
            at_equal_time(place, None, options.seeds)


def beside_nanogpt(place: Path, options: argparse.Namespace) -> None:
    """Print the rows of nanoGPT, and of heedful to the loss and at nanoGPT's time."""
    copy = copied(options.nanogpt, place / "nanoGPT", options.text)
    free = ["--context-length", "128", "--batch", "12"]
    rounds: dict[str, list[Run]] = {}
    for seed in range(options.seeds):
        peer = nanogpt(copy, seed)
        rounds.setdefault("nanoGPT", []).append(peer)
        _show("nanoGPT", [peer], options.target)

        def ours(name: str, steps: int, every: int, words: Sequence[str], seed: int = seed) -> Run:
            tokens = steps * int(words[1]) * int(words[3])
            run = heedful(place / "run", options.text, seed, steps, every, words, tokens)
            rounds.setdefault(name, []).append(run)
            _show(name, [run], options.target)
            return run

        ours("equal, to the loss", options.steps, options.steps, [*EQUAL, *SHORT])
        for name, words in (("equal", [*EQUAL, *RECIPE]), ("free", [*free, *RECIPE])):
            seconds = AIM * peer.seconds
            steps = steps_within(seconds, place / "run", options.text, words)
            ours(name, steps, -(-steps // (STEPS // EVERY)), words)
    print(f"\nmedians of {options.seeds} seeds, with the lowest and highest loss")
    for name, runs in rounds.items():
        _show(name, runs, options.target)
    peers = rounds["nanoGPT"]
    times = [
        peer.seconds if math.isnan(t := peer.reaching(options.target)) else t for peer in peers
    ]
    missed = sum(math.isnan(peer.reaching(options.target)) for peer in peers)
    pairs = zip(rounds["equal, to the loss"], times, strict=True)
    shares = [run.reaching(options.target) / other for run, other in pairs]
    print(f"{statistics.median(shares):.3f} of nanoGPT's time to {options.target}")
    if missed:
        print(
            f"({missed} of {len(peers)} runs of nanoGPT missed the target: their whole time counts)"
        )


def beside_nanochat(place: Path, options: argparse.Namespace) -> None:
    """Print the rows of nanochat in nanoGPT's shape, and of heedful's equal model."""
    copy = nanochat_copy.copied(options.nanochat, place / "nanochat", options.text)
    command = nanochat_copy.arguments(copy, STEPS, EVERY, BATCH, CONTEXT)
    rounds: dict[str, list[Run]] = {"nanochat": [], "equal, to the loss": []}
    tokens = options.steps * BATCH * CONTEXT
    for seed in range(options.seeds):
        variables = nanochat_copy.variables(copy, seed)
        peer = timed(command, STEPS * CONTEXT * BATCH, copy, nanochat_copy.CHECK, **variables)
        peer.checks = [(second, loss * nanochat_copy.NATS) for second, loss in peer.checks]
        steps = options.steps, options.steps
        ours = heedful(place / "run", options.text, seed, *steps, [*EQUAL, *SHORT], tokens)
        for name, run in zip(rounds, (peer, ours), strict=True):
            rounds[name].append(run)
            _show(name, [run], options.target)
    print(f"\nmedians of {options.seeds} seeds, with the lowest and highest loss")
    for name, runs in rounds.items():
        _show(name, runs, options.target)


def steps_within(seconds: float, out: Path, text: str, words: Sequence[str]) -> int:
    """Estimate the number of steps that fit into a time, with nanoGPT's number of validations.

    A run of 100 steps with validations after 80 steps and at the end separates the time of a step
    from the time of a validation.
    """
    probe = heedful(out, text, 0, 100, 80, words, 1)
    first, second, last = (moment for moment, _ in probe.checks)
    step = ((second - first) - (last - second)) / 60
    validation = last - second - 20 * step
    remaining = seconds - first - (probe.seconds - last) - STEPS // EVERY * validation
    return max(1, round(remaining / step))


def at_equal_time(place: Path, text: str | None, seeds: int) -> None:
    """Compare the AdamW recipe with the default recipe, run for the same time."""
    losses: dict[str, list[float]] = {}
    for seed in range(seeds):
        plain = heedful(place / "run", text, seed, 500, 500, [*ADAMW, "--batch", "16"])
        short = heedful(place / "run", text, seed, 60, 60, QUICK)
        each = (short.checks[-1][0] - short.checks[0][0]) / 60
        steps = max(1, round(60 + (plain.seconds - short.seconds) / each))
        fast = heedful(place / "run", text, seed, steps, steps, QUICK)
        for name, run in (("adamw", plain), (f"fast, {steps} steps", fast)):
            print(f"  {name:20}{run.seconds:7.1f} s  loss {run.loss:.3f}", flush=True)
            losses.setdefault(name.split(",")[0], []).append(run.loss)
    ahead = [a - b for a, b in zip(losses["adamw"], losses["fast"], strict=True)]
    title = Path(text).name if text else "the Python language reference"
    print(f"{title}: ahead by {statistics.median(ahead):.3f} ({min(ahead):.3f}–{max(ahead):.3f})")


def copied(checkout: Path, copy: Path, text: str) -> Path:
    """Copy nanoGPT, change its train.py to validate on the whole split, and prepare the text."""
    copy.mkdir()
    for name in ("model.py", "configurator.py"):
        shutil.copy(checkout / name, copy)
    shutil.copytree(checkout / "config", copy / "config")
    source = (checkout / "train.py").read_text()
    changes = (
        (r"\ndef estimate_loss\(\):\n(?:    .*\n)+", lambda _: ESTIMATE),
        (r"manual_seed\(1337 \+", lambda _: "manual_seed(int(os.environ['SEED']) +"),
    )
    for pattern, change in changes:
        source, count = re.subn(pattern, change, source)
        if count != 1:
            raise SystemExit(f"{checkout / 'train.py'}: expected a line to change, {pattern!r}")
    (copy / "train.py").write_text(source)
    data = copy / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    characters = Path(text).read_text("utf-8")
    names = sorted(set(characters))
    numbers = {name: number for number, name in enumerate(names)}
    ids = np.array([numbers[name] for name in characters], np.uint16)
    split = int(0.9 * len(ids))
    ids[:split].tofile(data / "train.bin")
    ids[split:].tofile(data / "val.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(names)}))
    return copy


def nanogpt(copy: Path, seed: int) -> Run:
    shape = [f"--{name}={value}" for name, value in SHAPE.items()]
    steps = [f"--max_iters={STEPS}", f"--lr_decay_iters={STEPS}", f"--eval_interval={EVERY}"]
    arguments = ["train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False"]
    command = [*arguments, *shape, *steps, "--dropout=0.0", "--log_interval=1"]
    return timed(command, STEPS * CONTEXT * BATCH, copy, SEED=str(seed))


def heedful(
    out: Path,
    text: str | None,
    seed: int,
    steps: int,
    every: int,
    words: Sequence[str],
    tokens: int = 0,
) -> Run:
    """Run `heedful train` with the steps and further options in a new process."""
    start = "from heedful.cli import main; main()"
    sizes = {"--steps": steps, "--evaluate-every": every, "--save-every": every, "--seed": seed}
    options = [word for name, value in sizes.items() for word in (name, str(value))]
    if tokens:
        options += ["--tokenizer", "characters"]
    files = [text] if text else []
    command = ["-c", start, "train", *files, "--out", str(out), "--overwrite", *options, *words]
    return timed(command, tokens, Path.cwd())


def timed(
    arguments: Sequence[str],
    tokens: int,
    folder: Path,
    check: re.Pattern[str] = CHECK,
    **variables: str,
) -> Run:
    """Run Python with these arguments, and note when each validation is printed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-u", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    checks, lines = [], []
    for line in process.stdout or ():
        lines.append(line)
        if match := check.match(line):
            checks.append((time.perf_counter() - began, float(match[2])))
    _, status, usage = os.wait4(process.pid, 0)
    if status or not checks:
        raise SystemExit("".join(lines[-20:]))
    return Run(checks, time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e9, tokens)


def _show(name: str, runs: Sequence[Run], target: float) -> None:
    def middle(figure: Callable[[Run], float]) -> float:
        return statistics.median(map(figure, runs))

    losses = [run.loss for run in runs]
    spread = f" ({min(losses):.3f}–{max(losses):.3f})" if len(runs) > 1 else ""
    print(f"{name:20}{middle(lambda run: run.seconds):7.1f} s  to {target}", end=" ")
    print(f"{middle(lambda run: run.reaching(target)):6.1f} s", end="  ")
    print(f"loss {middle(lambda run: run.loss):.3f}{spread}", end="  ")
    print(f"{middle(lambda run: run.speed):,.0f} tokens/s", end="  ")
    print(f"{middle(lambda run: run.gigabytes):.2f} GB", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", help="the training text; its characters are the tokens")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--nanochat", type=Path, help="a checkout of nanochat")
    parser.add_argument("--other", nargs="*", default=[], help="texts to compare recipes on")
    parser.add_argument("--target", type=float, default=1.874, help="validation loss to reach")
    parser.add_argument("--steps", type=int, default=190, help="steps that reach it (equal shape)")
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
