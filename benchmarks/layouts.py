"""Recorded maps of many axis layouts of attention, compared with the maps by definition.

    python benchmarks/layouts.py [--only NAME …] [--device cuda] [--json]

Each layout is a small model, written as public code writes it (`layout_models_*.py`). It also
computes its maps by definition, in float64, for each sequence and head. The benchmark first checks
that this computation gives the model's output. Then it records the model. Verdicts:

    right, told | verified | usual | guessed    every map agrees to 1e-5; how axes were identified
    refused                                     the recorder names the module or raises an error
    LOST                                        a map is neither recorded nor refused
    WRONG, guessed | usual | verified | told    a map differs; how the axes were identified

CHANGED: with recording, the output, gradients, buffers, random state or number of forward passes
are not those of a plain run, bit for bit. The verdict after `recording.verify` is in the next to
last column.
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
from layout_runs import bits, built, changed, flat, options, ran, record_accepts_axes
from layout_truth import Layout, Maps, Truth, attending_modules, truth_of
from placed import add_device, make_deterministic, on, random_state
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
LAYOUTS: dict[str, Layout] = {key: layout for f in FILES for key, layout in f.LAYOUTS.items()}
TOLERANCE, CERTAIN = 1e-5, 1e-5
RIGHT, VERIFIED = 42, 50  # minimum number of right layouts, at once and after verify
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
    right: int = 0  # number of maps that are right
    maps: int = 0  # number of maps
    worst: float = 0.0
    changed: str = ""
    verified: str = ""
    why: str = ""


class Comparison(NamedTuple):
    """The result of comparing a recording with the maps by definition."""

    verdict: str
    right: int
    maps: int
    worst: float
    why: str


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    make_deterministic(arguments.device)
    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.only or [*LAYOUTS]:
        if LAYOUTS[name].axes and not record_accepts_axes():
            continue
        rows.append(examine(name, arguments.device))
        if not arguments.json:
            print(line(rows[-1]), flush=True)
    missed = missed_targets(rows, *((0, 0) if arguments.only else (RIGHT, VERIFIED)))
    if arguments.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
    else:
        print(totals(rows), *missed, sep="\n")
    sys.exit(bool(missed))


def line(row: Row) -> str:
    worst = f"{row.worst:8.1e}" if row.right else " " * 8
    why = f"CHANGED: {row.changed}; {row.why}" if row.changed else row.why
    counted = f"{row.right} of {row.maps}"
    return f"{row.name:32}{row.verdict:21}{counted:>8} {worst}  {row.verified:27} {why}"[:200]


def totals(rows: list[Row]) -> str:
    verdicts = Counter(row.verdict for row in rows)
    counts = ", ".join(f"{verdicts[name]} {name}" for name in WORST_LAST if verdicts[name])
    after = Counter(row.verified for row in rows if row.verified)
    changed = sum(bool(row.changed) for row in rows)
    verified = "; after verify: " + ", ".join(f"{n} {name}" for name, n in after.items())
    return f"{len(rows)} layouts: {counts}; {changed} changed{verified if after else ''}"


def missed_targets(rows: list[Row], at_once: int, verified: int) -> list[str]:
    """Return a sentence for each target that the results miss."""
    right = sum(row.verdict.startswith("right") for row in rows)
    after = sum(row.verified.startswith("right") for row in rows)
    certain = ("WRONG, told", "WRONG, verified")
    none = {
        "wrong although told or verified": sum(
            verdict in certain for row in rows for verdict in (row.verdict, row.verified)
        ),
        "lost": sum(row.verdict == "LOST" for row in rows),
        "changed": sum(bool(row.changed) or "CHANGED" in row.verified for row in rows),
    }
    missed = [f"TARGET MISSED: {count} {what}, not 0" for what, count in none.items() if count]
    usual = sum(row.verdict == "WRONG, usual" for row in rows)
    if usual > 2:
        missed.append(f"TARGET MISSED: {usual} wrong by the usual order, not at most 2")
    for count, target, when in (
        (right, at_once, "at once"),
        (after, verified, "after verify"),
    ):
        if count < target:
            missed.append(f"TARGET MISSED: {count} right {when}, not {target}")
    return missed


def examine(name: str, device: str) -> Row:
    """Record one layout and compare it with its maps by definition."""
    layout = LAYOUTS[name]
    model, inputs = built(layout, device)
    truth = certain(name, model, inputs, device)
    recording: Any = None
    try:
        recording = recorded(model, inputs, layout)
        result = compare(recording, truth, attending_modules(model))
    except HeedfulError as error:
        result = Comparison("refused", 0, _count(truth), 0.0, str(error))
    except Exception as error:  # such an error does not name the missing module
        result = Comparison("LOST", 0, _count(truth), 0.0, f"{type(error).__name__}: {error}")
    after = verified(recording, model, inputs, truth, device)
    return Row(name, *result[:4], changed=changed(layout, device), verified=after, why=result.why)


def _count(truth: Truth) -> int:
    return sum(len(call) for call in truth.calls or ())


@torch.no_grad()
def recorded(model: nn.Module, inputs: tuple, layout: Layout) -> Any:
    with heedful.record(model, **options(layout)) as recording:
        ran(model, inputs)
    return recording


@torch.no_grad()
def certain(name: str, model: nn.Module, inputs: tuple, device: str) -> Truth:
    """Return the maps by definition; raise an error if this benchmark's model is wrong."""
    with torch.device(device):  # `by_definition` uses the default device; nothing is recorded here
        double = truth_of(copy.deepcopy(model).double(), in_double(inputs))
    truth = Truth(*on("cpu", tuple(double)))
    outputs = (on("cpu", ran(model, inputs)), truth.output)
    for real, expected in zip(*(list(flat(output)) for output in outputs), strict=True):
        error = float((real - expected).abs().max() / expected.abs().max())
        if real.shape != expected.shape or not error <= CERTAIN:
            raise AssertionError(f"{name}: `by_definition` differs from `forward` by {error:.1e}")
    for call in truth.calls or ():
        if not _is_distinct(call):
            raise AssertionError(f"{name}: the maps are too similar to tell them apart")
    return truth


def _is_distinct(call: list[Tensor]) -> bool:
    """Return whether maps differ between sequences and heads, and from uniform weights.

    Maps whose rows all have one unmasked key are skipped. A quarter of the pairs may be alike.
    """
    maps = [map_ for text in call for map_ in text if (map_.amax(-1) < 1).any()]
    pairs = [
        float((map_ - other).abs().max()) > 0.02
        for i, map_ in enumerate(maps)
        for other in maps[:i]
        if map_.shape == other.shape
    ]
    peaks = [float(map_.amax()) * map_.shape[-1] for map_ in maps] or [2.0]
    return pairs.count(False) <= len(pairs) // 4 and sum(peaks) / len(peaks) > 1.2


def in_double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: in_double(item) for name, item in value.items()}
    return type(value)(in_double(item) for item in value)


def compare(recording: Any, truth: Truth, names: set[str]) -> Comparison:
    """Compare with each correct set of maps; return the best result."""
    options = [truth.calls or [], *truth.others]
    return min(
        (compare_maps(recording, calls, names) for calls in options),
        key=lambda result: WORST_LAST.index(result.verdict),
    )


def compare_maps(recording: Any, calls: Maps, names: set[str]) -> Comparison:
    """Match each recorded call with the nearest true map of its sequence."""
    verdicts, why, worst = Counter(), "", 0.0
    cells = sum(map_.numel() for call in calls for map_ in call)  # not matched yet
    is_refused = any(name in names for name in recording.missed)
    free: dict[int, list[Tensor]] = {}
    for call in parts_of(recording):
        b = call.sequence * len(call.parts) + call.part
        unmatched = free.setdefault(b, [maps[b] for maps in calls if b < len(maps)])
        cells -= math.prod(call.shape)
        error, index = nearest(call, unmatched)
        if error is None:
            is_refused = True
            cells += math.prod(call.shape)
        elif error <= TOLERANCE:
            verdicts[f"right, {call.layout}"] += 1
            worst = max(worst, error)
            del unmatched[index]
        else:
            verdicts[f"WRONG, {call.layout}"] += 1
            why = why or f"{call.name} {tuple(call.shape)}: off by {error:.2g}"
    if cells > 0 or not verdicts:
        verdicts["refused" if is_refused else "LOST"] += 1
    right = sum(count for verdict, count in verdicts.items() if verdict.startswith("right"))
    why = why or "; ".join(f"{name}: {reason}" for name, reason in recording.missed.items())
    maps = sum(map(len, calls))
    return Comparison(max(verdicts, key=WORST_LAST.index), right, maps, worst, why)


def parts_of(recording: Any) -> list[Any]:
    return [part for text in recording.sequences for call in text for part in call.parts]


def nearest(call: Any, maps: list[Tensor]) -> tuple[float | None, int]:
    """Return the error and index of the nearest map; (None, -1) if `weights` raises an error."""
    try:
        map_ = call.weights().cpu()
    except HeedfulError:
        return None, -1
    errors = [
        float((map_ - true).abs().max()) if map_.shape == true.shape else math.inf for true in maps
    ]
    error = min(errors, default=math.inf)
    return (error, errors.index(error)) if errors else (error, -1)


def verified(recording: Any, model: nn.Module, inputs: tuple, truth: Truth, device: str) -> str:
    """Return the verdict after `recording.verify`, which runs the model again."""
    if recording is None or not (len(recording) or recording.missed):
        return ""
    bits_before = bits([model.state_dict(), inputs, random_state(device)])
    try:
        after = recording.verify(model, inputs)
        after = after if hasattr(after, "sequences") else recording
        verdict = compare(after, truth, attending_modules(model)).verdict
    except HeedfulError as error:
        verdict = f"refused: {error}"[:21]
    except Exception as error:
        verdict = f"{type(error).__name__}: {error}"[:21]
    is_same = bits_before == bits([model.state_dict(), inputs, random_state(device)])
    return verdict if is_same else f"CHANGED, {verdict}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(LAYOUTS))
    add_device(parser)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
