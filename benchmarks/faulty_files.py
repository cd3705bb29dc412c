"""Files of a run that belong together, exported checkpoints and symbolic links, for `faults.py`."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tiny_runs import REFUSED, Outcome, in_fork, outcome, recipe, resumed, struck, trained

from heedful.cli.main import run as run_command
from heedful.errors import HeedfulError
from heedful.models import GPT, GPTConfig, export_model, load_model
from heedful.train.plan import new_plan, read_plan
from heedful.train.run import begin, replace

CHANGING = ("state/recipe.json", "state/last.safetensors", "model.safetensors", "metrics.jsonl")
# Files and directories that a run writes, some of them only with certain options
LINKED = (*CHANGING, "config.json", "tokenizer.json", "state/tokens.npy", "state", "state/lock",
          "state/sharded", "watched", "logs", "pictures", "loss.png")  # fmt: skip
Verdict = Callable[[Callable[[], Outcome], list[Outcome]], str]


def swapped(
    place: Path, old: Path, use: Callable[[Path], Outcome], verdict: Verdict
) -> Iterator[str]:
    """Swap each set of files of two continuations of a run, or put back files of earlier times."""
    runs = [place / "slow", place / "fast"]
    for run, rate in zip(runs, (1e-3, 4e-3), strict=True):
        shutil.copytree(old, run)
        in_fork(lambda run=run, rate=rate: resumed(run, steps=24, learning_rate=rate))
    sets = [names for n in (1, 2, 3) for names in itertools.combinations(CHANGING, n)]
    pairs = [(*runs, sets), (*runs[::-1], sets), (runs[0], old, [("model.safetensors",)])]
    for run, other, swaps in pairs:
        expected = use(shutil.copytree(run, place / "used"))
        shutil.rmtree(place / "used")
        for names in swaps:
            directory = shutil.copytree(run, place / "swapped")
            for name in names:
                shutil.copy(other / name, directory / name)
            yield verdict(lambda directory=directory: use(directory), [expected])
            shutil.rmtree(directory)


def killed_continuations(
    place: Path, text: Path, verdict: Verdict, kills: int, seconds: float, rng: random.Random
) -> Iterator[str]:
    """Kill a run, resume it with other settings, and kill it again."""
    changes = {"steps": 24, "learning_rate": 4e-3}
    for i in range(kills):
        directory, copy = place / "killed twice", place / "killed once"
        while not (directory / "config.json").exists():  # killed before the run was prepared
            shutil.rmtree(directory, ignore_errors=True)
            plan = new_plan(directory, [str(text)], recipe())
            struck(lambda plan=plan: trained(plan, begin), i, seconds, rng)
        shutil.copytree(directory, copy)
        in_fork(lambda copy=copy: resumed(copy, **changes))
        struck(lambda directory=directory: resumed(directory, **changes), i, seconds, rng)

        def result(directory: Path = directory) -> Outcome:
            resumed(directory, **changes)
            load_model(directory)
            return outcome(directory)

        yield verdict(result, [outcome(copy)])
        shutil.rmtree(directory)
        shutil.rmtree(copy)


def damaged_export(
    place: Path, fault: Callable[[Path, random.Random], None], verdict: Verdict, times: int,
    rng: random.Random,
) -> Iterator[str]:  # fmt: skip
    """Damage the tensor file of a checkpoint in Hugging Face format that heedful exported."""
    gpt2 = {"positions": "learned", "activation": "gelu_tanh", "norm": "layer", "qk_norm": False}
    config = {"context_length": 16, "width": 24, "layers": 2, "heads": 2, **gpt2}
    model = GPT(GPTConfig(37, **config, bias=True, attention_bias=True))
    directory = place / "exported"

    def numbers() -> Outcome:
        return tuple((name, t.tolist()) for name, t in load_model(directory).state_dict().items())

    for i in range(times + 1):
        export_model(model, directory)
        if i == 0:
            expected = numbers()
            continue
        fault(directory / "model.safetensors", rng)
        yield verdict(numbers, [expected])


def linked(place: Path, old: Path) -> Iterator[str]:
    """Put a symbolic link into a run, then write to the run: nothing outside may change."""
    outside = place / "outside"
    for name, way in itertools.product(LINKED, WAYS):
        directory, target = shutil.copytree(old, place / "linked"), outside / "target"
        outside.mkdir()
        path = directory / name
        if path.exists():
            shutil.move(path, target)
        elif not path.suffix and path.name != "lock":
            target.mkdir()
        path.symlink_to(target)
        before = _contents(outside)
        status = in_fork(lambda way=way, directory=directory: WAYS[way](directory))
        kinds = {0: "harmless", REFUSED: "clear"}
        yield kinds.get(status, "lost") if _contents(outside) == before else "followed"
        shutil.rmtree(directory)
        shutil.rmtree(outside)


def _plotted(directory: Path) -> None:
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        words = ["plot", str(directory), "--only", "loss", "--overwrite"]
        with contextlib.redirect_stderr(null):
            if run_command(words):
                raise HeedfulError("refused")


WAYS: dict[str, Callable[[Path], object]] = {
    "resume": lambda directory: resumed(directory, steps=18),
    "overwrite": lambda directory: trained(read_plan(directory), replace),
    "plot": _plotted,
}


def _contents(directory: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}
