"""Recorded maps of every architecture in transformers, compared with the maps its model returns.

    python benchmarks/architectures.py [--only NAME …] [--device cuda] [--json]

Each architecture is built small from its configuration class (`tiny_models.py`), in a new process.
With eager attention the model returns its maps (`output_attentions=True`). Then a model with the
same weights runs with sdpa, if it supports it, and is recorded. Each returned map is matched with a
different recorded call of its shape, in order. "2 of 5" means that the model returned two maps and
five calls were recorded. Verdicts:

    exact           every map agrees to 2e-6 (1e-5 for BART, T5 and similar models)
    refused         the recorder reports that it cannot record this model correctly
    not comparable  the model cannot be built small or run in time, or returns no maps
    WRONG           a map differs, or was not recorded

An "exact" row ends with the proofs of the calls and how their layouts were identified.

`eager*`: all calls with sdpa are proved, but the output differs from that of eager attention. So a
recording of eager attention is compared instead.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
import traceback
import warnings
from collections import Counter
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import torch
import transformers
from placed import add_device, make_deterministic, on
from returned_maps import MEAN, WITHOUT_SINK, References, maps_of, usable
from tiny_inputs import candidate_inputs
from tiny_models import build
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

import heedful
from heedful.errors import HeedfulError
from heedful.ops.map_region import weights
from heedful.recording.capture import Capture
from heedful.recording.recording import Recording
from heedful.recording.sequence import call_of

SPREADS = (1.2, 0.8)  # spreads of redrawn parameters; 1 preserves the scale of activations
LIMIT = 20.0  # seconds for an architecture
TOLERANCE, LOOSER = 2e-6, 1e-5
# parts of the names of architectures that get the looser tolerance
LOOSER_NAMES = ("bart", "t5", "pegasus", "blenderbot", "marian", "m2m", "nllb", "udop")


class Row(NamedTuple):
    """One line of the table."""

    name: str
    verdict: str
    maps: int = 0
    calls: int = 0
    worst: float = 0.0
    under: str = ""
    why: str = ""
    proof: str = ""


def main() -> None:
    arguments = _arguments()
    model_class("bert")  # imports shared by all architectures, before forking
    names = arguments.only or list(MODEL_MAPPING._model_mapping)
    rows = []
    for row in in_processes(names, arguments.workers, arguments.device):
        rows.append(row)
        if not arguments.json:
            print(line(row), flush=True)
    if arguments.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
    else:
        print(totals(rows))


def line(row: Row) -> str:
    worst = f"{row.worst:8.1e}" if row.maps else " " * 8
    matched = f"{row.maps} of {row.calls}" if row.maps else ""
    return (
        f"{row.name:34}{row.verdict:16}{matched:>8} {worst}  {row.under:6} {row.proof} {row.why}"[
            :190
        ]
    )


def totals(rows: list[Row]) -> str:
    count = Counter(row.verdict for row in rows)
    comparable = len(rows) - count["not comparable"]
    share = count["exact"] / comparable if comparable else 0.0
    counts = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
    proved = sum(row.verdict == "exact" and "un" not in row.proof and "guessed" not in row.proof
               for row in rows)  # fmt: skip
    return (
        f"{len(rows)} architectures: {counts}; {share:.0%} of the comparable ones are exact\n"
        f"{proved} of the exact ones have only proved calls and no guessed layout"
    )


def in_processes(names: list[str], workers: int, device: str):
    """Examine each architecture in a new process, so that a crash or hang affects no other."""
    context = multiprocessing.get_context("fork")
    waiting, running = list(names), {}
    while waiting or running:
        while waiting and len(running) < workers:
            name = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send, args=(sender, name, device))
            process.start()
            sender.close()
            running[receiver] = (name, process, time.monotonic() + LIMIT)
        for pipe in wait(list(running), timeout=0.2):
            name, process, _ = running.pop(pipe)
            try:
                row = pipe.recv()
            except EOFError:
                row = Row(name, "not comparable", why="the process ended")
            process.join()
            yield row
        for pipe, (name, process, end) in list(running.items()):
            if time.monotonic() > end:
                process.kill()
                process.join()
                del running[pipe]
                yield Row(name, "not comparable", why=f"more than {LIMIT:.0f} s")


def _send(pipe: Any, name: str, device: str) -> None:
    torch.set_num_threads(1)
    make_deterministic(device)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(60)
    pipe.send(examine(name, device))


def examine(name: str, device: str) -> Row:
    """Return the row of an architecture.

    Scores and their rounding errors grow with the square of the parameters' spread. If maps differ
    by at most 1e-3, the row is repeated with a smaller spread, at which they must be equal.
    """
    row = Row(name, "WRONG")
    for spread in SPREADS:
        row = examine_with(name, spread, device)
        if row.verdict != "WRONG" or row.worst > 1e-3:
            break
    return row


def examine_with(name: str, spread: float, device: str) -> Row:
    try:
        cls = model_class(name)
        eager = on(device, build(name, cls, "eager", spread))
        with heedful.record(eager):  # raises an error if the model cannot be recorded
            pass
        inputs, returned = run_with_maps(eager, name, device)
        references, note = usable(name, returned)
    except HeedfulError as error:
        return Row(name, "refused", why=str(error))
    except Exception as error:
        return Row(name, "not comparable", why=summary(error))
    if not references:
        return Row(name, "not comparable", why=note or "it returns no maps")
    try:
        row = compare(name, cls, spread, eager, inputs, references, device)
        return row._replace(why="; ".join(part for part in (row.why, note) if part))
    except HeedfulError as error:
        return Row(name, "refused", why=str(error))
    except Exception as error:
        return Row(name, "WRONG", why=summary(error))


def summary(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:110]
    return f"{type(error).__name__}: {text} ({place.name}:{place.lineno})"


def model_class(name: str) -> type:
    cls = MODEL_MAPPING[type(CONFIG_MAPPING[name]())]
    return cls[0] if isinstance(cls, tuple) else cls


def run_with_maps(model: torch.nn.Module, name: str, device: str) -> tuple[dict, list[References]]:
    """Return the first inputs that yield maps, else the last that run; and their maps."""
    first: Exception | None = None
    result: tuple[dict, list[References]] | None = None
    for inputs in candidate_inputs(model, name):
        inputs = on(device, inputs)
        try:
            output = output_with_maps(model, inputs)
        except Exception as error:
            first = first or error
            continue
        result = (inputs, list(maps_of(output)))
        if result[1]:
            return result
    if result is None:
        raise first or ValueError("no candidate inputs")
    return result


def output_with_maps(model: torch.nn.Module, inputs: dict) -> Any:
    """Run the model with `output_attentions`, an argument or a field of the configuration."""
    try:
        return run(model, inputs, output_attentions=True)
    except TypeError as error:
        if "output_attentions" not in str(error):
            raise
    model.config.output_attentions = True
    return run(model, inputs)


@torch.no_grad()
def run(model: torch.nn.Module, inputs: dict, **options: Any) -> Any:
    torch.manual_seed(0)
    return model(**inputs, **options)


def flat(value: Any):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)


def compare(
    name: str,
    cls: type,
    spread: float,
    eager: torch.nn.Module,
    inputs: dict,
    references: list[References],
    device: str,
) -> Row:
    """Record the model and compare the calls with the maps that it returned."""
    limit = LOOSER if any(part in name for part in LOOSER_NAMES) else TOLERANCE
    count = sum(len(reference.maps) for reference in references)
    under, model = "sdpa", None
    try:
        model = on(device, build(name, cls, "sdpa", spread))
    except ValueError:
        under, model = "eager", eager
    model.load_state_dict(eager.state_dict())
    recording = recorded(model, inputs)
    captures = recording._captures
    worst, why = match_maps(name, captures, references, limit)
    is_proved = under == "sdpa" and all(capture.check.passed for capture in captures)
    if why and is_proved and differs(run(model, inputs), run(eager, inputs)):
        under, model = "eager*", eager
        recording = recorded(eager, inputs)
        captures = recording._captures
        worst, why = match_maps(name, captures, references, limit)
    proof = proof_counts(recording) if not why else ""
    verdict = "WRONG" if why else "exact"
    return Row(name, verdict, count, len(captures), worst, under, why, proof)


def proof_counts(recording: Recording) -> str:
    """Return how many calls of the first sequence have each proof and layout."""
    counts = Counter(
        f"{call.proof}, {call.layout}" for text in recording.sequences[:1] for call in text
    )
    return "; ".join(f"{number} {words}" for words, number in counts.items())


def recorded(model: torch.nn.Module, inputs: dict) -> Recording:
    with heedful.record(model, values=True) as recording:
        run(model, inputs)
    _ = recording.missed  # finalizes all calls
    return recording


def differs(output: Any, other: Any) -> bool:
    first, second = (next(flat(list(result.values()))) for result in (output, other))
    return not torch.allclose(first, second, atol=1e-3, equal_nan=True)


def match_maps(
    name: str, captures: list[Capture], references: list[References], limit: float
) -> tuple[float, str]:
    """Match maps with calls; return the largest difference, and the reason if a map has no call."""
    free, worst = list(captures), 0.0
    for reference in references:
        start = 0  # the calls of a list have its order
        for layer, map_ in enumerate(reference.maps):
            errors = {
                i: difference(name, free[i], map_)
                for i in range(start, len(free))
                if fits(free[i], map_, reference.name)
            }
            start = next((i for i, error in errors.items() if error <= limit), -1)
            if start < 0:
                shape, best = tuple(map_.shape), min(errors.values(), default=math.inf)
                fitting = f"{len(errors)} of {len(captures)} calls have this shape"
                return best, f"{reference.name}[{layer}] {shape}: {fitting}"
            worst = max(worst, errors[start])
            del free[start]
    return worst, ""


def shape_of(capture: Capture) -> tuple[int, int, int, int]:
    B, H, N, _ = capture.query.shape
    return B, H, N, capture.key.shape[2]


def fits(capture: Capture, map_: Tensor, name: str) -> bool:
    """Return whether a call may be a map: equal sizes, and cross-attention if its name says so."""
    shape = shape_of(capture)
    if math.prod(shape) != map_.numel() or shape[2:] != map_.shape[-2:]:
        return False
    return "cross_attentions" not in name or capture.kind == "cross"


def difference(name: str, capture: Capture, map_: Tensor) -> float:
    """Return the largest difference of a call and a map over all sequences."""
    gaps, map_ = [0.0], map_.reshape(shape_of(capture))
    for b, real in enumerate(capture.tokens):
        real_map = map_[b][:, real.queries][:, :, real.keys]
        text, part = divmod(b, capture.parts)
        call = call_of(capture, capture.first + text, part)
        inputs = call.checked_inputs()
        if name in WITHOUT_SINK:
            inputs = inputs._replace(sinks=None)
        ours = weights(inputs) if call.map_ is None else call.map_
        if name in MEAN:
            ours = ours.mean(dim=0, keepdim=True)
        gaps.append(float((ours - real_map).abs().max()))
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="model types")
    add_device(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
