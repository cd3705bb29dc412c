"""Faults on purpose, in tiny runs: what becomes of each, and what checking against them costs.

    python benchmarks/faults.py [--quick]

Kills: at random, and inside a write, a rename or a flush, of a run that begins, goes on, or takes
the place of another, with every optimizer and decay; of two processes one is killed, and the other
must say so in a line. A disk that fills: no file may grow beyond a
size. Flips and cuts: one bit of a file, or its end. Files of another run: whole, and of the same
shapes. Commands: an output that ends, a terminal that closes, values that fit no machine.

clear     said in a line, and nothing that was saved is lost
harmless  the same numbers, bit for bit, as without the fault
silent    other numbers, and not a word
lost      what was saved cannot be had any more, or an error that is no clear line

The bar: 0 in the last two columns.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faulty_commands import changed_texts, refused_second, refused_settings, unheard
from faulty_processes import killed_together
from timing import Turns, machine
from tiny_runs import (
    REFUSED,
    STEPS,
    Outcome,
    apart,
    lasting,
    never_stopped,
    outcome,
    recipe,
    resumed,
    struck,
    trained,
    written_texts,
)

from heedful.errors import HeedfulError
from heedful.files import load_tensors, read_tensors, save_tensors
from heedful.loaded import LoadedGPT, open_as
from heedful.text.token_file import TokenFile, write_ids
from heedful.train import Plan, TrainSettings
from heedful.train.plan import new_plan
from heedful.train.run import begin, prepare_run, replace

NAME = 42  # characters of a row's name
ALL_PARTS = {
    "optimizer": "muon",
    "accumulation": 2,
    "watch": "12 green bottles",
    "watch_every": 3,
}
TOGETHER = {
    "one of two killed, a copy in each": ("--optimizer", "adamw"),
    "one of two killed, cut among them": ("--shard", "--optimizer", "muon"),
}
KINDS = ("clear", "harmless", "silent", "lost")
FILES = (
    "config.json",
    "tokenizer.json",
    "model.safetensors",
    "metrics.jsonl",
    "state/recipe.json",
    "state/tokens.npy",
    "state/last.safetensors",
)


def main() -> None:
    arguments = _arguments()
    kills, damages = (6, 4) if arguments.quick else (50, 24)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)  # so that a process can fork
    chosen = random.Random(arguments.seed)
    began = time.perf_counter()
    print(" " * NAME + "".join(f"{kind:>10}" for kind in KINDS))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        total = Counter[str]()
        for name, results in rows(place, kills, damages, chosen):
            counts = Counter(results)
            total += counts
            show(name, counts)
        show("all", total)
        print(f"\n{time.perf_counter() - began:.0f} s; {machine()}\n")
        cost(place, 30_000_000 if arguments.quick else 100_000_000)
    sys.exit(bool(total["silent"] or total["lost"]))


def rows(
    place: Path, kills: int, damages: int, chosen: random.Random
) -> Iterator[tuple[str, Iterable[str]]]:
    """The rows of the table, each a name and what became of its faults."""
    texts = written_texts(place)
    trained(new_plan(place / "first", [str(texts[0])], recipe()), begin)  # its imports are forked
    for optimizer in choices("optimizer"):
        changes = {"optimizer": optimizer}
        yield f"killed, {optimizer}", killed(place, texts[0], changes, kills, chosen)
    yield "killed, all parts of a recipe", killed(place, texts[0], ALL_PARTS, kills, chosen)
    for name, options in TOGETHER.items():
        yield name, killed_together(place, texts[0], options, max(10, kills // 2), chosen)
    old = place / "old"
    wanted = never_stopped(old, texts[0], {})
    other = never_stopped(place / "other", texts[1], {})
    never_stopped(place / "slower", texts[0], {"learning_rate": 1e-3})
    largest = max(path.stat().st_size for path in old.rglob("*"))
    yield "a disk that fills", filled(place, texts[0], wanted, damages, largest, chosen)
    yield (
        "killed with --overwrite",
        overwritten(place, old, texts[1], (wanted, other), kills, chosen),
    )
    for fault in (flip, cut):
        for name in FILES:
            row = f"{name}, {'a bit flipped' if fault is flip else 'cut'}"
            yield row, damaged(place, old, name, fault, damages, chosen)
    for name in FILES:
        others = [place / "other", place / "slower"]
        yield f"{name}, of another run", mixed(place, old, name, others)
    yield "a refused second --resume", refused_second(place, old)
    yield "a learning rate that is too high", too_high(place, texts[0])
    yield "an output that ends", unheard(place, texts[0])
    yield "values that fit nothing", refused_settings(place, texts[0])
    yield "a text that changed, or went", changed_texts(place, texts[0])


def show(name: str, counts: Counter[str]) -> None:
    """A line of the table; zeros are dots."""
    print(f"{name:{NAME}}" + "".join(f"{counts[kind] or '·':>10}" for kind in KINDS), flush=True)


def choices(name: str) -> tuple[str, ...]:
    """The words that a setting of training is chosen from."""
    fields = {field.name: field for field in dataclasses.fields(TrainSettings)}
    return fields[name].metadata["choices"]


def killed(
    place: Path, text: Path, changes: dict[str, Any], kills: int, chosen: random.Random
) -> Iterator[str]:
    """A run killed, continued, now and then killed again, and continued to its end."""
    decays = choices("decay")
    wanted, seconds = {}, 0.0
    for decay in decays:
        directory = place / f"whole {len(changes)} {changes['optimizer']} {decay}"
        began = time.perf_counter()
        wanted[decay] = never_stopped(directory, text, {**changes, "decay": decay})
        seconds = time.perf_counter() - began
    for i in range(kills):
        decay = decays[i % len(decays)]
        directory = place / f"killed {i}"
        plan = new_plan(directory, [str(text)], recipe(**changes, decay=decay))
        struck(lambda plan=plan: trained(plan, begin), i, seconds, chosen)
        if i % 3 == 0:
            struck(lambda plan=plan: trained(plan, prepare_run, True), i, seconds, chosen)
        yield verdict(lambda plan=plan: finished(plan), [wanted[decay]])
        shutil.rmtree(directory)


def filled(
    place: Path, text: Path, wanted: Outcome, times: int, largest: int, chosen: random.Random
) -> Iterator[str]:
    """A run whose files may not grow beyond a size; then they may, and it goes on."""
    for i in range(times):
        directory = place / f"filled {i}"
        plan = new_plan(directory, [str(text)], recipe())
        most = chosen.randrange(largest)

        def work(plan: Plan = plan, most: int = most) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            trained(plan, begin)

        status = apart(work)
        what = verdict(lambda plan=plan: finished(plan), [wanted])
        yield "lost" if status not in (0, REFUSED) else "clear" if what == "harmless" else what
        shutil.rmtree(directory)


def finished(plan: Plan) -> Outcome:
    """Go on with a run that was killed, or begin it anew where nothing was begun."""
    has_plan = (plan.directory / "state/recipe.json").exists()
    work = (lambda: resumed(plan.directory)) if has_plan else (lambda: trained(plan, begin))
    if apart(work):
        raise RuntimeError("it does not go on")
    left = [path for path in plan.directory.rglob(".*") if path.is_file()]
    if left:
        raise RuntimeError(f"left over: {left}")
    return outcome(plan.directory)


def verdict(result: Callable[[], Outcome], wanted: list[Outcome]) -> str:
    """What became of a fault, by the numbers that came out."""
    try:
        return "harmless" if result() in wanted else "silent"
    except HeedfulError as error:
        return "clear" if "\n" not in str(error) else "lost"
    except Exception as error:
        print(f"  {type(error).__name__}: {error}", file=sys.stderr)
        return "lost"


def overwritten(
    place: Path,
    old: Path,
    text: Path,
    wanted: tuple[Outcome, Outcome],
    kills: int,
    chosen: random.Random,
) -> Iterator[str]:
    """A run that was to take another's place: one of the two goes on, or a mixture is refused."""
    directory = place / "replaced"
    seconds = 0.0
    for i in range(-1, kills):
        shutil.copytree(old, directory)
        plan = new_plan(directory, [str(text)], recipe())
        if i < 0:
            seconds = lasting(lambda plan=plan: trained(plan, replace))
        else:
            struck(lambda plan=plan: trained(plan, replace), i, seconds, chosen)

            def result() -> Outcome:
                resumed(directory)
                return outcome(directory)

            yield verdict(result, list(wanted))
        shutil.rmtree(directory)


def flip(path: Path, chosen: random.Random) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    path.write_bytes(content)


def cut(path: Path, chosen: random.Random) -> None:
    """Cut off the end of a file."""
    os.truncate(path, chosen.randrange(path.stat().st_size))


def damaged(
    place: Path, run: Path, name: str, fault: Callable, times: int, chosen: random.Random
) -> Iterator[str]:
    """A file that is damaged, and the run opened and continued."""
    directory = place / "damaged"
    shutil.copytree(run, directory)
    wanted = [used(directory, place)]
    shutil.rmtree(directory)
    for _ in range(times):
        shutil.copytree(run, directory)
        fault(directory / name, chosen)
        said: list[str] = []
        what = verdict(lambda said=said: used(directory, place, said), wanted)
        yield "clear" if what == "silent" and any("metrics.jsonl has" in w for w in said) else what
        shutil.rmtree(directory)


def mixed(place: Path, run: Path, name: str, others: list[Path]) -> Iterator[str]:
    """A file of another run of the same shapes, whole, in the place of a run's own."""
    directory = place / "mixed"
    shutil.copytree(run, directory)
    wanted = [used(directory, place)]
    for other in others:
        shutil.rmtree(directory)
        shutil.copytree(run, directory)
        shutil.copy(other / name, directory / name)
        said: list[str] = []
        what = verdict(lambda said=said: used(directory, place, said), wanted)
        yield "clear" if what == "silent" and any("metrics.jsonl has" in w for w in said) else what
    shutil.rmtree(directory)


def used(directory: Path, place: Path, said: list[str] | None = None) -> Outcome:
    """What a run tells when it is opened, drawn and continued."""
    opened = open_as(LoadedGPT, directory)
    ids = opened.tokenizer.encode("100 green")
    logits = opened.model(torch.tensor([ids])).logits.tolist()
    words = resumed(directory, steps=STEPS + 2)
    (said if said is not None else []).extend(words)
    return ids, logits, *outcome(directory)


def too_high(place: Path, text: Path) -> Iterator[str]:
    """Steps so large that the loss is no number: the checkpoint before it is kept."""
    directory = place / "high"
    plan = new_plan(directory, [str(text)], recipe(learning_rate=1e-2, steps=120, decay="constant"))
    trained(plan, begin)
    before = outcome(directory)[1:]
    try:
        resumed(directory, steps=400, learning_rate=1e30)
        yield "silent"
    except HeedfulError as error:
        kept = "was kept" in str(error) and "--resume" in str(error)
        yield "clear" if kept and outcome(directory)[1:] == before else "lost"


def cost(place: Path, bytes: int) -> None:
    """What comparing checksums adds to opening weights and tokens, and making them to saving."""
    path, ids = place / "weights.safetensors", place / "tokens.npy"
    tensors = {f"layer {i}": torch.randn(bytes // 40) for i in range(10)}
    made = Turns({"saved": lambda: save_tensors(path, tensors, {})}, 3)
    zeros = np.zeros(1 << 20, np.uint16)
    with ids.open("w+b") as file:
        write_ids(file, (zeros for _ in range(bytes // zeros.nbytes)), zeros.dtype)
    ways = {
        "weights": lambda: {name: t.clone() for name, t in load_tensors(path)[0].items()},
        "unchecked": lambda: {name: t.clone() for name, t in read_tensors(path)[0].items()},
        "tokens": lambda: TokenFile(ids),
    }
    turns = Turns(ways, 5)
    opened, checks = turns.median("weights"), turns.median("weights") - turns.median("unchecked")
    size, tokens = bytes / 1e6, turns.median("tokens")
    print(f"{size:.0f} MB of weights saved in {made.median('saved'):.2f} s", end=", ")
    print(f"opened in {opened:.2f} s, of which checksums {checks:.2f} s")
    print(f"as many tokens opened in {tokens:.2f} s, {size / 1e3 / tokens:.2f} GB/s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="an eighth of the faults")
    parser.add_argument("--seed", type=int, default=0, help="which moments, bits and places")
    return parser.parse_args()


if __name__ == "__main__":
    main()
