"""Layouts of attention as public code writes them: what the recorder shows beside their true maps.

    python benchmarks/layouts.py [--only NAME …] [--device cuda] [--json]

Each is a small model of its own (`layout_models_*.py`) that also computes its maps by their
definition, in float64, text by text and head by head. Those are first held beside the model's own
output, so that they are certain. Then the model is recorded. The verdicts:

    right, told | verified | usual | guessed    every map is equal, to 1e-5, in its place
    refused                                     left out by the name of its module, or by an error
    LOST                                        a map is neither shown nor refused
    WRONG, guessed | usual | verified | told    a map differs, and its layout said so

CHANGED is a model whose output, gradients, buffers, random state or number of forward passes are
not those of a run without the recorder, bit for bit. The last column says what the verdict is after
`recording.verify`.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import warnings
from collections import Counter
from typing import Any, NamedTuple

import layout_models_by_hand
import layout_models_exotic
import layout_models_positions
import layout_models_text
import layout_models_torch
import layout_models_vision
import layout_models_windows
import torch
from layout_runs import bits, built, can_be_told, changed, flat, options, ran
from layout_truth import Layout, Maps, Truth, attends, truth_of
from placed import add_device, exactly, on, random_state
from torch import Tensor, nn

import heedful
from heedful.errors import HeedfulError

FILES = (
    layout_models_text,
    layout_models_positions,
    layout_models_vision,
    layout_models_windows,
    layout_models_by_hand,
    layout_models_torch,
    layout_models_exotic,
)
LAYOUTS: dict[str, Layout] = {name: one for file in FILES for name, one in file.LAYOUTS.items()}
TOLERANCE, CERTAIN = 1e-5, 1e-5
SHOWN, VERIFIED = 42, 50
WORDS = ("told", "verified", "usual", "guessed")
WORST_LAST = (
    *(f"right, {word}" for word in WORDS),
    "refused",
    *(f"WRONG, {word}" for word in reversed(WORDS)),
    "LOST",
)


class Row(NamedTuple):
    """One line of the table."""

    name: str
    verdict: str
    right: int = 0  # maps of a sequence that are right
    maps: int = 0  # those that there are
    worst: float = 0.0
    changed: str = ""
    verified: str = ""
    why: str = ""


class Found(NamedTuple):
    """What a recording is, beside one of the truths."""

    verdict: str
    right: int
    maps: int
    worst: float
    why: str


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    exactly(arguments.device)
    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.only or [*LAYOUTS]:
        if LAYOUTS[name].axes and not can_be_told():
            continue
        rows.append(tried(name, arguments.device))
        if not arguments.json:
            print(line(rows[-1]), flush=True)
    missed = bars(rows, *((0, 0) if arguments.only else (SHOWN, VERIFIED)))
    if arguments.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
    else:
        print(totals(rows), *missed, sep="\n")
    sys.exit(bool(missed))


def line(row: Row) -> str:
    worst = f"{row.worst:8.1e}" if row.right else " " * 8
    told = f"CHANGED: {row.changed}; {row.why}" if row.changed else row.why
    counted = f"{row.right} of {row.maps}"
    return f"{row.name:32}{row.verdict:21}{counted:>8} {worst}  {row.verified:27} {told}"[:200]


def totals(rows: list[Row]) -> str:
    verdicts = Counter(row.verdict for row in rows)
    told = ", ".join(f"{verdicts[one]} {one}" for one in WORST_LAST if verdicts[one])
    after = Counter(row.verified for row in rows if row.verified)
    changed = sum(bool(row.changed) for row in rows)
    verified = "; verified: " + ", ".join(f"{n} {one}" for one, n in after.items()) if after else ""
    return f"{len(rows)} layouts: {told}; {changed} changed{verified}"


def bars(rows: list[Row], shown: int, verified: int) -> list[str]:
    """Those that are missed, in words."""
    right = sum(row.verdict.startswith("right") for row in rows)
    after = sum(row.verified.startswith("right") for row in rows)
    certain = ("WRONG, told", "WRONG, verified")
    none = {
        "wrong while told or verified": sum(
            one in certain for row in rows for one in (row.verdict, row.verified)
        ),
        "lost": sum(row.verdict == "LOST" for row in rows),
        "changed": sum(bool(row.changed) or "CHANGED" in row.verified for row in rows),
    }
    missed = [f"BAR MISSED: {count} {what}, not 0" for what, count in none.items() if count]
    usual = sum(row.verdict == "WRONG, usual" for row in rows)
    if usual > 2:
        missed.append(f"BAR MISSED: {usual} wrong while usual, not at most 2")
    for count, wanted, when in ((right, shown, "at once"), (after, verified, "after verify")):
        if count < wanted:
            missed.append(f"BAR MISSED: {count} shown right {when}, not {wanted}")
    return missed


def tried(name: str, device: str) -> Row:
    """The verdict on one layout, after its own truth is known to be certain."""
    layout = LAYOUTS[name]
    model, given = built(layout, device)
    truth = certain(name, model, given, device)
    recording: Any = None
    try:
        recording = recorded(model, given, layout)
        found = judged(recording, truth, attends(model))
    except HeedfulError as error:
        found = Found("refused", 0, _count(truth), 0.0, str(error))
    except Exception as error:  # nobody is told by a name what is missing
        found = Found("LOST", 0, _count(truth), 0.0, f"{type(error).__name__}: {error}")
    after = verified(recording, model, given, truth, device)
    return Row(name, *found[:4], changed=changed(layout, device), verified=after, why=found.why)


def _count(truth: Truth) -> int:
    return sum(len(call) for call in truth.calls or ())


@torch.no_grad()
def recorded(model: nn.Module, given: tuple, layout: Layout) -> Any:
    with heedful.record(model, **options(layout)) as recording:
        ran(model, given)
    return recording


@torch.no_grad()
def certain(name: str, model: nn.Module, given: tuple, device: str) -> Truth:
    """The truth, whose output is the model's, and whose maps are not all alike.

    That the maps explain the output is all that makes them certain, so a layout whose truth does
    not is a fault of this benchmark.
    """
    with torch.device(device):  # the models' own definitions name none; here nothing is recorded
        found = truth_of(copy.deepcopy(model).double(), in_double(given))
    truth = Truth(*on("cpu", tuple(found)))
    outputs = (on("cpu", ran(model, given)), truth.output)
    real, told = (list(flat(output)) for output in outputs)
    for one, other in zip(real, told, strict=True):
        far = float((one - other).abs().max() / other.abs().max())
        if one.shape != other.shape or not far <= CERTAIN:
            raise AssertionError(f"{name}: its truth is not what it computes, by {far:.1e}")
    for call in truth.calls or ():
        if not _is_telling(call):
            raise AssertionError(f"{name}: maps that are too much alike to tell them apart")
    return truth


def _is_telling(call: list[Tensor]) -> bool:
    """Whether maps of sequences and heads differ from each other, and rows from even ones.

    Where a mask leaves each query one key, no map can differ, and few short ones may be alike.
    """
    maps = [one for each in call for one in each if (one.amax(-1) < 1).any()]
    pairs = [
        float((one - other).abs().max()) > 0.02
        for i, one in enumerate(maps)
        for other in maps[:i]
        if one.shape == other.shape
    ]
    peaks = [float(one.amax()) * one.shape[-1] for one in maps] or [2.0]
    return pairs.count(False) <= len(pairs) // 4 and sum(peaks) / len(peaks) > 1.2


def in_double(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.double() if given.is_floating_point() else given
    if isinstance(given, dict):
        return {name: in_double(one) for name, one in given.items()}
    return type(given)(in_double(one) for one in given)


def judged(recording: Any, truth: Truth, names: set[str]) -> Found:
    """Beside the truth, or that of its alternatives which is nearest."""
    options = [truth.calls or [], *truth.others]
    return min(
        (against(recording, calls, names) for calls in options),
        key=lambda found: WORST_LAST.index(found.verdict),
    )


def against(recording: Any, calls: Maps, names: set[str]) -> Found:
    """Each call of each sequence is looked for among the true maps of that sequence."""
    found, why, worst = Counter(), "", 0.0
    cells = sum(one.numel() for call in calls for one in call)  # that are not yet shown
    is_refused = any(name in names for name in recording.missed)
    free: dict[int, list[Tensor]] = {}
    for call in parts_of(recording):
        b = call.sequence * len(call.parts) + call.part
        left = free.setdefault(b, [maps[b] for maps in calls if b < len(maps)])
        cells -= math.prod(call.shape)
        off, at = nearest(call, left)
        if off is None:
            is_refused = True
            cells += math.prod(call.shape)
        elif off <= TOLERANCE:
            found[f"right, {call.layout}"] += 1
            worst = max(worst, off)
            del left[at]
        else:
            found[f"WRONG, {call.layout}"] += 1
            why = why or f"{call.name} {tuple(call.shape)}: off by {off:.2g}"
    if cells > 0 or not found:
        found["refused" if is_refused else "LOST"] += 1
    right = sum(count for verdict, count in found.items() if verdict.startswith("right"))
    why = why or "; ".join(f"{name}: {said}" for name, said in recording.missed.items())
    return Found(max(found, key=WORST_LAST.index), right, sum(map(len, calls)), worst, why)


def parts_of(recording: Any) -> list[Any]:
    """Every part of every call of every text."""
    return [part for text in recording.sequences for call in text for part in call.parts]


def nearest(call: Any, maps: list[Tensor]) -> tuple[float | None, int]:
    """How far the nearest of the maps is, and its place; None where the call is refused."""
    try:
        map_ = call.weights().cpu()
    except HeedfulError:
        return None, -1
    found = [
        float((map_ - one).abs().max()) if map_.shape == one.shape else math.inf for one in maps
    ]
    off = min(found, default=math.inf)
    return (off, found.index(off)) if found else (off, -1)


def verified(recording: Any, model: nn.Module, given: tuple, truth: Truth, device: str) -> str:
    """The verdict after the recorder has asked the model again, where it can."""
    if recording is None or not (len(recording) or recording.missed):
        return ""
    before = bits([model.state_dict(), given, random_state(device)])
    try:
        after = recording.verify(model, given)
        after = after if hasattr(after, "sequences") else recording
        verdict = judged(after, truth, attends(model)).verdict
    except HeedfulError as error:
        verdict = f"refused: {error}"[:21]
    except Exception as error:
        verdict = f"{type(error).__name__}: {error}"[:21]
    is_same = before == bits([model.state_dict(), given, random_state(device)])
    return verdict if is_same else f"CHANGED, {verdict}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(LAYOUTS))
    add_device(parser)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
