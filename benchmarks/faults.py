"""Faults on purpose, in tiny runs: what becomes of each, and what checking against them costs.

    python benchmarks/faults.py [--quick]

Kills: at random, and inside a write, a rename or a flush, of a run that begins, goes on, or takes
the place of another. Flips and cuts: one bit of a file, or its end. Commands: an output that ends,
a terminal that closes, settings that fit no machine.

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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Turns, machine
from tiny_runs import (
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
from heedful.opened import OpenedGPT, open_as
from heedful.text.tokens import TokenFile, write_ids
from heedful.train import Plan, TrainSettings
from heedful.train.place import owning
from heedful.train.plan import new_plan
from heedful.train.run import begin, prepare_run, replace

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
SETTINGS = (  # each is refused by one line, before any work
    ("--width", "1000000000"),
    ("--vocabulary", "1000000000000"),
    ("--layers", "1000000"),
    ("--batch", "1000000000000"),
    ("--seed", "1000000000000000000000000000000"),
    ("--tokenizer", "another/tokenizer.json"),
    ("--out", ""),
)


def main() -> None:
    arguments = _arguments()
    kills, damages = (6, 4) if arguments.quick else (50, 24)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)  # so that a process can fork
    chosen = random.Random(arguments.seed)
    began = time.perf_counter()
    print(f"{'':34}" + "".join(f"{kind:>10}" for kind in KINDS))
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
    for optimizer in optimizers():
        changes = {"optimizer": optimizer} if optimizer else {}
        wanted = never_stopped(place / f"whole {optimizer}", texts[0], changes)
        name = f"killed, {optimizer or 'AdamW'}"
        yield name, killed(place, texts[0], changes, wanted, kills, chosen)
    old = place / "old"
    wanted = never_stopped(old, texts[0], {})
    other = never_stopped(place / "other", texts[1], {})
    yield (
        "killed with --overwrite",
        overwritten(place, old, texts[1], (wanted, other), kills, chosen),
    )
    for fault in (flip, cut):
        for name in FILES:
            row = f"{name}, {'a bit flipped' if fault is flip else 'cut'}"
            yield row, damaged(place, old, name, fault, damages, chosen)
    yield "a refused second --resume", refused_second(place, old)
    yield "a learning rate that is too high", too_high(place, texts[0])
    yield "an output that ends", unheard(place, texts[0])
    yield "settings that fit no machine", refused_settings(place, texts[0])
    yield "a text that changed, or went", changed_texts(place, texts[0])


def show(name: str, counts: Counter[str]) -> None:
    """A line of the table; zeros are dots."""
    print(f"{name:34}" + "".join(f"{counts[kind] or '·':>10}" for kind in KINDS), flush=True)


def optimizers() -> tuple[str, ...]:
    """The optimizers that there are to choose from."""
    fields = {field.name: field for field in dataclasses.fields(TrainSettings)}
    return fields["optimizer"].metadata["choices"] if "optimizer" in fields else ("",)


def killed(
    place: Path, text: Path, changes: dict, wanted: Outcome, kills: int, chosen: random.Random
) -> Iterator[str]:
    """A run killed, continued, now and then killed again, and continued to its end."""
    seconds = lasting(
        lambda: trained(new_plan(place / "timed", [str(text)], recipe(**changes)), begin)
    )
    for i in range(kills):
        directory = place / f"killed {i} {changes}"
        plan = new_plan(directory, [str(text)], recipe(**changes))
        struck(lambda plan=plan: trained(plan, begin), i, seconds, chosen)
        if i % 5 == 0:
            struck(lambda plan=plan: trained(plan, prepare_run, True), i, seconds, chosen)
        yield verdict(lambda plan=plan: finished(plan), [wanted])
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
    """A run that was to take another's place: one of the two goes on, whole, and which is said."""
    directory = place / "replaced"
    seconds = 0.0
    for i in range(-1, kills):
        shutil.copytree(old, directory)
        plan = new_plan(directory, [str(text)], recipe())
        if i < 0:
            seconds = lasting(lambda plan=plan: trained(plan, replace))
        else:
            struck(lambda plan=plan: trained(plan, replace), i, seconds, chosen)
            begun = (directory / "state/fresh").is_dir()
            said: list[str] = []

            def result(said: list[str] = said) -> Outcome:
                said += resumed(directory)
                return outcome(directory)

            what = verdict(result, list(wanted))
            is_told = not begun or any("was to replace this one" in words for words in said)
            yield what if is_told else "silent"
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


def used(directory: Path, place: Path, said: list[str] | None = None) -> Outcome:
    """What a run tells when it is opened, drawn and continued."""
    opened = open_as(OpenedGPT, directory)
    ids = opened.tokenizer.encode("100 green")
    logits = opened.model(torch.tensor([ids])).logits.tolist()
    words = resumed(directory, steps=STEPS + 2)
    (said if said is not None else []).extend(words)
    return ids, logits, *outcome(directory)


def refused_second(place: Path, old: Path) -> Iterator[str]:
    """A second `--resume` with other settings, while the first one trains."""
    directory = place / "second"
    shutil.copytree(old, directory)
    before = (directory / "state/recipe.json").read_bytes()
    with owning(directory):
        status, error = command("train", "--out", directory, "--resume", "--learning-rate", "0.5")
    kept = (directory / "state/recipe.json").read_bytes() == before
    yield "clear" if kept and status == 1 and "another process" in error else "silent"


def too_high(place: Path, text: Path) -> Iterator[str]:
    """What was learned is lost, by steps that are too large: the checkpoint before it is kept."""
    directory = place / "high"
    plan = new_plan(directory, [str(text)], recipe(learning_rate=1e-2, steps=120, decay="constant"))
    trained(plan, begin)
    for rate in (3.0, 30.0, 1e30):
        before = outcome(directory)[1:]
        try:
            resumed(directory, steps=400, learning_rate=rate)
            yield "silent"
        except HeedfulError as error:
            kept = "was kept" in str(error) and "--resume --learning-rate" in str(error)
            step = load_tensors(directory / "state/last.safetensors")[1]["step"]
            yield "clear" if kept and step >= before[0]["step"] else "lost"


def command(*words: Any, output: Any = subprocess.DEVNULL, shell: str = "") -> tuple[int, str]:
    """Run the command; its status and what it says on standard error."""
    program = [sys.executable, "-c", "from heedful.cli import main; main()", *map(str, words)]
    done = subprocess.run(program, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


SMALL = (
    *("--context-length", "16", "--width", "24", "--layers", "2", "--heads", "2", "--batch", "3"),
    *("--tokenizer", "characters", "--device", "cpu", "--steps", "1000000"),
    *("--save-every", "1000000", "--evaluate-every", "20"),
)


def unheard(place: Path, text: Path) -> Iterator[str]:
    """A pipe that is closed, a full disk behind standard output, a terminal that closes."""
    for name in ("pipe", "hangup", "full"):
        directory = place / name
        program = [sys.executable, "-c", "from heedful.cli import main; main()", "train", text]
        output = open("/dev/full", "w") if name == "full" else subprocess.PIPE  # noqa: SIM115
        process = subprocess.Popen(
            [*program, "--out", directory, *SMALL], stdout=output, stderr=subprocess.PIPE, text=True
        )
        if process.stdout:
            while "step 40" not in (line := process.stdout.readline()) and line:
                pass
            if name == "hangup":
                process.send_signal(signal.SIGHUP)
                said = process.stdout.read()
            else:
                process.stdout.close()
        error = process.stderr.read() if process.stderr else ""
        process.wait()
        told = said if name == "hangup" else error
        is_saved = (directory / "state/last.safetensors").is_file() or name == "full"
        yield "clear" if is_saved and "--resume" in told else "lost"


def refused_settings(place: Path, text: Path) -> Iterator[str]:
    """Settings that fit no machine: one line, and no directory."""
    for option, value in SETTINGS:
        out = place / "none"
        status, error = command("train", text, "--out", out, option, value)
        is_line = status in (1, 2) and error.count("\n") == 1 and "unexpected" not in error
        yield "clear" if is_line and not out.exists() else "lost"
        shutil.rmtree(out, ignore_errors=True)


def changed_texts(place: Path, text: Path) -> Iterator[str]:
    """A text that is another one, or gone, when its run goes on."""
    mine, directory = place / "mine.txt", place / "mine"
    shutil.copy(text, mine)
    trained(new_plan(directory, [str(mine)], recipe()), begin)
    for content in (text.read_text().replace("green", "brown"), None):
        mine.write_text(content) if content else mine.unlink()
        program = [sys.executable, "-c", "from heedful.cli import main; main()", "train"]
        done = subprocess.run(
            [*program, "--out", directory, "--resume"], capture_output=True, text=True, check=True
        )
        yield "clear" if "mine.txt" in done.stdout.partition("text ")[0] else "silent"


def cost(place: Path, bytes: int) -> None:
    """What comparing checksums adds to opening weights and tokens, and making them to saving."""
    path, ids = place / "weights.safetensors", place / "tokens.npy"
    tensors = {f"layer {i}": torch.randn(bytes // 40) for i in range(10)}
    made = Turns({"saved": lambda: save_tensors(path, tensors, {})}, 3)
    zeros = np.zeros(1 << 20, np.uint16)
    write_ids(ids, (zeros for _ in range(bytes // zeros.nbytes)), zeros.dtype)
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
