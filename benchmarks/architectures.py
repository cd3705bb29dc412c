"""Every architecture of the installed transformers: recorded maps beside those of eager attention.

    python benchmarks/architectures.py [--only NAME …] [--device cuda] [--json]

Each is built small from its configuration class (`tiny_models.py`), in a process of its own. Eager
attention gives the maps that the model itself returns (`output_attentions=True`); then the same
weights run under sdpa, where the model has it, and are recorded. Each map that was returned is
matched with one recorded call of its shape, in order and none twice; "2 of 5" are two maps among
five calls, of which the model returned no more. The verdicts:

    exact           every map is equal, to 2e-6 (1e-5 for BART, T5 and their kin)
    refused         the recorder says that it cannot show this layout truthfully
    not comparable  the model could not be built small, or returns no maps
    WRONG           a map differs, or was not recorded

Beside "exact" stands how many calls are proved, and how their layouts are known.

`eager*` is a model that computes something else under sdpa, as its outputs show and the recording's
own check confirms; then the recording of eager attention is compared.
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
from tiny_inputs import inputs
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

DRAWS = (1.2, 0.8)  # the spread of parameters, in units that keep the size of activations
LIMIT = 20.0  # seconds for an architecture
TOLERANCE, LOOSER = 2e-6, 1e-5
KIN = ("bart", "t5", "pegasus", "blenderbot", "marian", "m2m", "nllb", "udop")  # in a name


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
    model_class("bert")  # what all of them import, once and not in each process
    names = arguments.only or list(MODEL_MAPPING._model_mapping)
    rows = []
    for row in apart(names, arguments.workers, arguments.device):
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
    told = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
    sure = sum(row.verdict == "exact" and "un" not in row.proof and "guessed" not in row.proof
               for row in rows)  # fmt: skip
    return (
        f"{len(rows)} architectures: {told}; of the comparable ones {share:.0%} are exact\n"
        f"of the exact ones {sure} have all calls proved, and no layout guessed"
    )


def apart(names: list[str], workers: int, device: str):
    """Each in a process of its own, so that one that hangs or crashes ends alone."""
    context = multiprocessing.get_context("fork")
    waiting, running = list(names), {}
    while waiting or running:
        while waiting and len(running) < workers:
            name = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_send, args=(theirs, name, device))
            process.start()
            theirs.close()
            running[ours] = (name, process, time.monotonic() + LIMIT)
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
    pipe.send(tried(name, device))


def tried(name: str, device: str) -> Row:
    """The verdict on one architecture.

    Scores grow with the square of the draw, and with them what rounding makes of two ways to the
    same weights; so where one draw differs by little, a milder one has to be equal.
    """
    row = Row(name, "WRONG")
    for draw in DRAWS:
        row = once(name, draw, device)
        if row.verdict != "WRONG" or row.worst > 1e-3:
            break
    return row


def once(name: str, draw: float, device: str) -> Row:
    try:
        cls = model_class(name)
        eager = on(device, build(name, cls, "eager", draw))
        with heedful.record(eager):  # refused before anything runs
            pass
        given, found = asked(eager, name, device)
        references, note = usable(name, found)
    except HeedfulError as error:
        return Row(name, "refused", why=str(error))
    except Exception as error:
        return Row(name, "not comparable", why=said(error))
    if not references:
        return Row(name, "not comparable", why=note or "it returns no maps")
    try:
        row = compared(name, cls, draw, eager, given, references, device)
        return row._replace(why="; ".join(part for part in (row.why, note) if part))
    except HeedfulError as error:
        return Row(name, "refused", why=str(error))
    except Exception as error:
        return Row(name, "WRONG", why=said(error))


def said(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:110]
    return f"{type(error).__name__}: {text} ({place.name}:{place.lineno})"


def model_class(name: str) -> type:
    cls = MODEL_MAPPING[type(CONFIG_MAPPING[name]())]
    return cls[0] if isinstance(cls, tuple) else cls


def asked(model: torch.nn.Module, name: str, device: str) -> tuple[dict, list[References]]:
    """What the model was given, and the maps that it then returned."""
    first: Exception | None = None
    found: tuple[dict, list[References]] | None = None
    for given in inputs(model, name):
        given = on(device, given)
        try:
            output = mapped(model, given)
        except Exception as error:
            first = first or error
            continue
        found = (given, list(maps_of(output)))
        if found[1]:
            return found
    if found is None:
        raise first or ValueError("nothing to give it")
    return found


def mapped(model: torch.nn.Module, given: dict) -> Any:
    """The output with its maps; some are told to return them by their configuration alone."""
    try:
        return run(model, given, output_attentions=True)
    except TypeError as error:
        if "output_attentions" not in str(error):
            raise
    model.config.output_attentions = True
    return run(model, given)


@torch.no_grad()
def run(model: torch.nn.Module, given: dict, **options: Any) -> Any:
    torch.manual_seed(0)
    return model(**given, **options)


def flat(value: Any):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from flat(one)


def compared(
    name: str,
    cls: type,
    draw: float,
    eager: torch.nn.Module,
    given: dict,
    references: list[References],
    device: str,
) -> Row:
    """Record what the model does and hold it beside the maps that it returned."""
    limit = LOOSER if any(kin in name for kin in KIN) else TOLERANCE
    count = sum(len(one.maps) for one in references)
    under, model = "sdpa", None
    try:
        model = on(device, build(name, cls, "sdpa", draw))
    except ValueError:
        under, model = "eager", eager
    model.load_state_dict(eager.state_dict())
    recording = recorded(model, given)
    captures = recording._captures
    worst, why = matched(name, captures, references, limit)
    proven = under == "sdpa" and all(capture.check.passed for capture in captures)
    if why and proven and differs(run(model, given), run(eager, given)):
        under, model = "eager*", eager
        recording = recorded(eager, given)
        captures = recording._captures
        worst, why = matched(name, captures, references, limit)
    proof = proven_by(recording) if not why else ""
    verdict = "WRONG" if why else "exact"
    return Row(name, verdict, count, len(captures), worst, under, why, proof)


def proven_by(recording: Recording) -> str:
    """How the calls of a recording are proved, and how their layouts are known."""
    settled = Counter(
        f"{call.proof}, {call.layout}" for text in recording.sequences[:1] for call in text
    )
    return "; ".join(f"{number} {word}" for word, number in settled.items())


def recorded(model: torch.nn.Module, given: dict) -> Recording:
    with heedful.record(model, values=True) as recording:
        run(model, given)
    _ = recording.missed  # after which all calls are settled
    return recording


def differs(one: Any, other: Any) -> bool:
    first, second = (next(flat(list(output.values()))) for output in (one, other))
    return not torch.allclose(first, second, atol=1e-3, equal_nan=True)


def matched(
    name: str, captures: list[Capture], references: list[References], limit: float
) -> tuple[float, str]:
    """The worst difference, and where maps are not as they should be, why."""
    free, worst = list(captures), 0.0
    for reference in references:
        place = 0  # the calls of a list come in its order
        for layer, map_ in enumerate(reference.maps):
            found = {
                i: difference(name, free[i], map_)
                for i in range(place, len(free))
                if fits(free[i], map_, reference.name)
            }
            place = next((i for i, off in found.items() if off <= limit), -1)
            if place < 0:
                shape, best = tuple(map_.shape), min(found.values(), default=math.inf)
                told = f"{len(found)} of {len(captures)} calls fit"
                return best, f"{reference.name}[{layer}] {shape}: {told}"
            worst = max(worst, found[place])
            del free[place]
    return worst, ""


def shape_of(capture: Capture) -> tuple[int, int, int, int]:
    B, H, N, _ = capture.query.shape
    return B, H, N, capture.key.shape[2]


def fits(capture: Capture, map_: Tensor, name: str) -> bool:
    """Whether a call can be this map: of its sizes, and cross-attention where that is told."""
    shape = shape_of(capture)
    if math.prod(shape) != map_.numel() or shape[2:] != map_.shape[-2:]:
        return False
    return "cross_attentions" not in name or capture.kind == "cross"


def difference(name: str, capture: Capture, map_: Tensor) -> float:
    """The worst of a call and a map, over all sequences."""
    gaps, map_ = [0.0], map_.reshape(shape_of(capture))
    for b, real in enumerate(capture.tokens):
        real_map = map_[b][:, real.queries][:, :, real.keys]
        text, part = divmod(b, capture.parts)
        call = call_of(capture, capture.first + text, part)
        causes = call.checked()
        if name in WITHOUT_SINK:
            causes = causes._replace(sinks=None)
        ours = weights(causes) if call.map_ is None else call.map_
        if name in MEAN:
            ours = ours.mean(dim=0, keepdim=True)
        gaps.append(float((ours - real_map).abs().max()))
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="architectures, by model_type")
    add_device(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
