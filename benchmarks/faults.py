"""Fault injection in tiny training runs: the outcome of each fault, and the cost of checksums.

    python benchmarks/faults.py [--quick]

Kills: runs are killed at random times and inside a write, rename or flush, while they start, resume
or replace another run, with every optimizer and decay. If one of two processes is killed, the other
must report it in one line. Full disk: no file may grow beyond a limit. Damage: a bit of a file is
flipped, or the end of the file is cut off; also of an exported checkpoint. Foreign files: a file is
replaced by that of another run of the same shapes, or of another continuation of the run. Links: a
file or directory of a run is a symbolic link. Commands: a closed output or terminal, values that no
machine can handle.

clear     a one-line error, and no saved data is lost
harmless  the same numbers as without the fault, bit for bit
silent    different numbers without a message
lost      saved data that cannot be read any more, or an error that is not one clear line
followed  something outside the run was written through a link

Target: 0 in the last three columns.
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
from bombs import bombs
from faulty_commands import closed_outputs, refused_second, refused_settings
from faulty_files import damaged_export, killed_continuations, linked, swapped
from faulty_processes import killed_together
from timing import Turns, machine
from tiny_runs import (
    REFUSED,
    STEPS,
    Outcome,
    duration_of,
    in_fork,
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

NAME = 46  # characters of the first column
ALL_PARTS = {
    "optimizer": "muon",
    "accumulation": 2,
    "watch": "12 green bottles",
    "watch_every": 3,
}
TOGETHER = {
    "one of two processes killed, DDP": ("--optimizer", "adamw"),
    "one of two processes killed, FSDP2": ("--shard", "--optimizer", "muon"),
}
KINDS = ("clear", "harmless", "silent", "lost", "followed")
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
    rng = random.Random(arguments.seed)
    began = time.perf_counter()
    print(" " * NAME + "".join(f"{kind:>10}" for kind in KINDS))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        total = Counter[str]()
        for name, results in rows(place, kills, damages, rng):
            if arguments.only not in name:
                continue
            counts = Counter(results)
            total += counts
            show(name, counts)
        show("all", total)
        print(f"\n{time.perf_counter() - began:.0f} s; {machine()}\n")
        cost(place, 30_000_000 if arguments.quick else 100_000_000)
    sys.exit(any(total[kind] for kind in ("silent", "lost", "followed")))


def rows(
    place: Path, kills: int, damages: int, rng: random.Random
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the rows of the table: a name and the outcomes of its faults."""
    texts = written_texts(place)
    trained(new_plan(place / "first", [str(texts[0])], recipe()), begin)  # imports before forking
    for optimizer in choices("optimizer"):
        changes = {"optimizer": optimizer}
        yield f"killed, {optimizer}", killed(place, texts[0], changes, kills, rng)
    yield "killed, all parts of a recipe", killed(place, texts[0], ALL_PARTS, kills, rng)
    for name, options in TOGETHER.items():
        yield name, killed_together(place, texts[0], options, max(10, kills // 2), rng)
    old = place / "old"
    expected = never_stopped(old, texts[0], {})
    other = never_stopped(place / "other", texts[1], {})
    never_stopped(place / "slower", texts[0], {"learning_rate": 1e-3})
    largest = max(path.stat().st_size for path in old.rglob("*"))
    yield "a full disk", filled(place, texts[0], expected, damages, largest, rng)
    yield (
        "killed with --overwrite",
        overwritten(place, old, texts[1], (expected, other), kills, rng),
    )
    for fault in (flip, cut):
        for name in FILES:
            row = f"{name}, {'a bit flipped' if fault is flip else 'cut'}"
            yield row, damaged(place, old, name, fault, damages, rng)
    for name in FILES:
        others = [place / "other", place / "slower"]
        yield f"{name}, of another run", mixed(place, old, name, others)
    yield "files of another continuation", swapped(place, old, lambda d: used(d, []), verdict)
    seconds = duration_of(
        lambda: trained(new_plan(place / "timed", [str(texts[0])], recipe()), begin)
    )
    yield (
        "killed, continued with other settings, killed",
        killed_continuations(place, texts[0], verdict, kills, seconds, rng),
    )
    for fault in (flip, cut):
        row = f"exported checkpoint, {'a bit flipped' if fault is flip else 'cut'}"
        yield row, damaged_export(place, fault, verdict, 2 * damages, rng)
    yield "links in a run directory", linked(place, old)
    yield "a refused second --resume", refused_second(place, old)
    yield "a learning rate that is too high", too_high(place, texts[0])
    yield "a closed output or terminal", closed_outputs(place, texts[0])
    yield "impossible values", refused_settings(place, texts[0])
    yield "a text that changed or is missing", changed_texts(place, texts[0])
    yield "bombs in small files", bombs(old, texts[0], place)


def show(name: str, counts: Counter[str]) -> None:
    print(f"{name:{NAME}}" + "".join(f"{counts[kind] or '·':>10}" for kind in KINDS), flush=True)


def choices(name: str) -> tuple[str, ...]:
    """Return the allowed values of a training setting."""
    fields = {field.name: field for field in dataclasses.fields(TrainSettings)}
    return fields[name].metadata["choices"]


def killed(
    place: Path, text: Path, changes: dict[str, Any], kills: int, rng: random.Random
) -> Iterator[str]:
    """Kill a run, kill every third resumed run again, and resume the run to its end."""
    decays = choices("decay")
    expected, seconds = {}, 0.0
    for decay in decays:
        directory = place / f"uninterrupted {len(changes)} {changes['optimizer']} {decay}"
        began = time.perf_counter()
        expected[decay] = never_stopped(directory, text, {**changes, "decay": decay})
        seconds = time.perf_counter() - began
    for i in range(kills):
        decay = decays[i % len(decays)]
        directory = place / f"killed {i}"
        plan = new_plan(directory, [str(text)], recipe(**changes, decay=decay))
        struck(lambda plan=plan: trained(plan, begin), i, seconds, rng)
        if i % 3 == 0:
            struck(lambda plan=plan: trained(plan, prepare_run, True), i, seconds, rng)
        yield verdict(lambda plan=plan: finished(plan), [expected[decay]])
        shutil.rmtree(directory)


def filled(
    place: Path, text: Path, expected: Outcome, times: int, largest: int, rng: random.Random
) -> Iterator[str]:
    """Limit the size of files during a run, then resume the run without the limit."""
    for i in range(times):
        directory = place / f"filled {i}"
        plan = new_plan(directory, [str(text)], recipe())
        limit = rng.randrange(largest)

        def work(plan: Plan = plan, limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            trained(plan, begin)

        status = in_fork(work)
        result = verdict(lambda plan=plan: finished(plan), [expected])
        yield "lost" if status not in (0, REFUSED) else "clear" if result == "harmless" else result
        shutil.rmtree(directory)


def finished(plan: Plan) -> Outcome:
    """Resume a killed run, or restart it if it has written nothing; return its outcome."""
    has_plan = (plan.directory / "state/recipe.json").exists()
    work = (lambda: resumed(plan.directory)) if has_plan else (lambda: trained(plan, begin))
    if in_fork(work):
        raise RuntimeError("the run cannot be resumed")
    leftovers = [path for path in plan.directory.rglob(".*") if path.is_file()]
    if leftovers:
        raise RuntimeError(f"temporary files left over: {leftovers}")
    return outcome(plan.directory)


def verdict(result: Callable[[], Outcome], expected: list[Outcome]) -> str:
    """Return the kind of a result: by the numbers of the run, or by its error."""
    try:
        return "harmless" if result() in expected else "silent"
    except HeedfulError as error:
        return "clear" if "\n" not in str(error) else "lost"
    except Exception as error:
        print(f"  {type(error).__name__}: {error}", file=sys.stderr)
        return "lost"


def overwritten(
    place: Path,
    old: Path,
    text: Path,
    expected: tuple[Outcome, Outcome],
    kills: int,
    rng: random.Random,
) -> Iterator[str]:
    """Kill a run that replaces another; either run must resume, or their mixture be refused."""
    directory = place / "replaced"
    seconds = 0.0
    for i in range(-1, kills):
        shutil.copytree(old, directory)
        plan = new_plan(directory, [str(text)], recipe())
        if i < 0:
            seconds = duration_of(lambda plan=plan: trained(plan, replace))
        else:
            struck(lambda plan=plan: trained(plan, replace), i, seconds, rng)

            def result() -> Outcome:
                resumed(directory)
                return outcome(directory)

            yield verdict(result, list(expected))
        shutil.rmtree(directory)


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def damaged(
    place: Path, run: Path, name: str, fault: Callable, times: int, rng: random.Random
) -> Iterator[str]:
    directory = place / "damaged"
    shutil.copytree(run, directory)
    expected = [used(directory, [])]
    shutil.rmtree(directory)
    for _ in range(times):
        shutil.copytree(run, directory)
        fault(directory / name, rng)
        notices: list[str] = []
        result = verdict(lambda notices=notices: used(directory, notices), expected)
        is_reported = any("metrics.jsonl has" in notice for notice in notices)
        yield "clear" if result == "silent" and is_reported else result
        shutil.rmtree(directory)


def mixed(place: Path, run: Path, name: str, others: list[Path]) -> Iterator[str]:
    """Replace a file of a run by the file of another run of the same shapes."""
    directory = place / "mixed"
    shutil.copytree(run, directory)
    expected = [used(directory, [])]
    for other in others:
        shutil.rmtree(directory)
        shutil.copytree(run, directory)
        shutil.copy(other / name, directory / name)
        notices: list[str] = []
        result = verdict(lambda notices=notices: used(directory, notices), expected)
        is_reported = any("metrics.jsonl has" in notice for notice in notices)
        yield "clear" if result == "silent" and is_reported else result
    shutil.rmtree(directory)


def used(directory: Path, notices: list[str]) -> Outcome:
    """Open and resume a run; return its numbers and add its notices to the list."""
    loaded = open_as(LoadedGPT, directory)
    ids = loaded.tokenizer.encode("100 green")
    logits = loaded.model(torch.tensor([ids])).logits.tolist()
    notices += resumed(directory, steps=STEPS + 2)
    return ids, logits, *outcome(directory)


def changed_texts(place: Path, text: Path) -> Iterator[str]:
    """Change or remove the text of a run, then resume it, which reads only the stored tokens."""
    copy, run = place / "mine.txt", place / "mine"
    shutil.copy(text, copy)
    trained(new_plan(run, [str(copy)], recipe()), begin)
    expected = []
    for content in (text.read_text(), text.read_text().replace("green", "brown"), None):
        copy.write_text(content) if content else copy.unlink()
        directory = place / "resumed"
        shutil.copytree(run, directory)

        def result(directory: Path = directory) -> Outcome:
            resumed(directory, steps=STEPS + 2)
            return outcome(directory)

        if not expected:  # the text is unchanged
            expected.append(result())
        else:
            yield verdict(result, expected)
        shutil.rmtree(directory)


def too_high(place: Path, text: Path) -> Iterator[str]:
    """Train until the loss is NaN or infinite; the last checkpoint before must remain."""
    directory = place / "high"
    plan = new_plan(directory, [str(text)], recipe(learning_rate=1e-2, steps=120, decay="constant"))
    trained(plan, begin)
    saved = outcome(directory)[1:]
    try:
        resumed(directory, steps=400, learning_rate=1e30)
        yield "silent"
    except HeedfulError as error:
        is_clear = "was kept" in str(error) and "--resume" in str(error)
        yield "clear" if is_clear and outcome(directory)[1:] == saved else "lost"


def cost(place: Path, bytes: int) -> None:
    """Print the time of saving and opening weights and tokens, and the share of checksums."""
    path, ids = place / "weights.safetensors", place / "tokens.npy"
    tensors = {f"layer {i}": torch.randn(bytes // 40) for i in range(10)}
    saving = Turns({"save": lambda: save_tensors(path, tensors, {})}, 3)
    zeros = np.zeros(1 << 20, np.uint16)
    with ids.open("w+b") as file:
        write_ids(file, (zeros for _ in range(bytes // zeros.nbytes)), zeros.dtype)
    ways = {
        "weights": lambda: {name: t.clone() for name, t in load_tensors(path)[0].items()},
        "unchecked": lambda: {name: t.clone() for name, t in read_tensors(path)[0].items()},
        "tokens": lambda: TokenFile(ids),
    }
    turns = Turns(ways, 5)
    seconds, checks = turns.median("weights"), turns.median("weights") - turns.median("unchecked")
    size, tokens = bytes / 1e6, turns.median("tokens")
    print(f"{size:.0f} MB of weights saved in {saving.median('save'):.2f} s", end=", ")
    print(f"opened in {seconds:.2f} s, of which checksums {checks:.2f} s")
    print(f"the same size of tokens opened in {tokens:.2f} s, {size / 1e3 / tokens:.2f} GB/s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer faults: about an eighth")
    parser.add_argument("--only", default="", help="only the rows with this in their name")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of random times, bits and positions"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
