"""The tables of docs/scale.md, from the formulas of scale_model.py.

python docs/scale.py                                # print them
python docs/scale.py docs/scale.md docs/pictures    # put them into the page, and draw it
"""

import re
import sys
from pathlib import Path

from scale_model import (
    EXPOSED,
    GPUS,
    H100,
    KEPT,
    PRICE,
    SHAPES,
    TOKENS,
    best_interval,
    interruption,
    lost,
    matrices,
    needs,
    orthogonal_share,
    shards,
    speed,
    step,
)
from scale_runs import GROWING, WHOLE

from heedful.train.memory import memory
from heedful.train.settings import TextSettings, TrainSettings

WAYS = {"ddp": "DDP", "fsdp": "FSDP", "hsdp": "HSDP"}
OURS = ("ddp", "fsdp")  # what heedful has of them
GOOD = 0.9  # of the speed that as many single GPUs would have
# The step of docs/training.md on two threads, 12 × 64 tokens; width 128, 4 blocks, 65 characters
CPU_FLOPS = 12 * 64 / 0.0463 * (6 * (4 * 12 * 128**2 + 65 * 128) + 12 * 4 * 128 * 64)
TEXT, BPE = 4.4, 8.5e6  # bytes of text for a token of OpenWebText; bytes a second, README
STOPPED, COPIED = 148.8, 6.3  # seconds that saving 7 B stops the work, and with `async_save`


def table(head: str, rows) -> str:
    """A Markdown table: names to the left, numbers to the right."""
    lines = [head, " | ".join(["---"] + ["---:"] * head.count("|"))]
    lines += [" | ".join(map(str, row)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def rounded(number: float) -> str:
    """Two digits that say something.

    >>> [rounded(n) for n in (0.0213, 1.04, 9.96, 36.8, 12345)]
    ['0.021', '1.0', '10', '37', '12,000']
    """
    two = float(f"{number:.1e}")
    power = int(f"{number:.1e}".partition("e")[2])
    return f"{two:,.{max(0, 1 - power)}f}"


def lasting(seconds: float) -> str:
    """A time for people.

    >>> [lasting(s) for s in (0.0051, 90, 5400, 200_000, 5e8)]
    ['5.1 ms', '90 s', '90 min', '2.3 days', '16 years']
    """
    units = ((3.156e7, "years"), (86_400, "days"), (3600, "h"), (60, "min"), (1, "s"))
    for unit, name in units:
        if seconds >= 2 * unit:
            return f"{rounded(seconds / unit)} {name}"
    return f"{rounded(seconds * 1000)} ms"


def size(number: float) -> str:
    """A count or bytes, without its unit's letter: 2.5 G, 137 G, 1.2 T."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= unit:
            return f"{rounded(number / unit)} {name}"
    return f"{number:,.0f} "


def fits(model, gpus: int, how: str) -> bool:
    return needs(model, shards(gpus, how)).total <= H100.memory


def efficiency(model, gpus: int, how: str) -> float | None:
    """The speed of so many GPUs as a share of that many times one; None where it cannot be."""
    many = fits(model, gpus, how) and speed(model, H100, gpus, how)
    return many / gpus / speed(model, H100, 1, "ddp") if many else None


def best(model, gpus: int, ways=tuple(WAYS)) -> tuple[float, str] | None:
    """The highest efficiency of these ways, and which."""
    found = [(share, how) for how in ways if (share := efficiency(model, gpus, how))]
    return max(found, default=None)


def training(model, gpus: int, share: float) -> float:
    """Seconds for 20 tokens a parameter."""
    return TOKENS * model.parameters / (speed(model, H100, 1, "ddp") * gpus * share)


def worth(model, ways) -> tuple[int, str, float]:
    """The most GPUs that have 0.9 of the speed of as many single ones; how, and their share."""
    found = [(gpus, *best(model, gpus, ways)[::-1]) for gpus in GPUS if best(model, gpus, ways)]
    return max(each for each in found if round(each[2], 2) >= GOOD)


def answer() -> str:
    rows = []
    for model in SHAPES:
        gpus, how, share = worth(model, OURS)
        seconds = training(model, gpus, share)
        more, _, _ = worth(model, WAYS)
        rows.append((
            model.name, "yes" if fits(model, 1, "ddp") else "no", f"{gpus:,}", WAYS[how],
            lasting(seconds), rounded(PRICE * gpus * seconds / 3600),
            f"{more:,}",
        ))  # fmt: skip
    return table(
        "model | one 80 GB GPU holds it | GPUs that pay | by | time | US$ | that pay by HSDP",
        rows,
    )


def corners() -> str:
    rows = []
    for model in SHAPES:
        alone = "enough" if fits(model, 1, "ddp") else "memory"
        rows.append((model.name, alone, *(corner(model, gpus) for gpus in GPUS[1:])))
    return table(f"what stops it first | {head_of(GPUS)}", rows)


def corner(model, gpus: int) -> str:
    """By heedful's better way: its share of the ideal speed, and what takes most of the rest."""
    if model.batch / model.context < gpus:
        return "the batch"
    share, how = best(model, gpus, OURS)
    one = step(model, H100, gpus, how)
    latency = EXPOSED * one.latency
    parts = {
        "latency": latency,
        "update": one.optimizer,
        "bytes": one.total - one.compute - latency - one.optimizer,
    }
    why = "" if round(share, 2) >= GOOD else f": {max(parts, key=parts.get)}"
    return f"{WAYS[how]} {share:.2f}{why}"


def memories() -> str:
    rows = []
    for model in SHAPES:
        one, again = needs(model), needs(model, recompute=True)
        each = [one.state, one.blocks, one.logits, one.total]
        each.append(needs(model, 8).total)
        cells = [f"{part / 1e9:.1f}" for part in each]
        cells[1] += f" ({again.blocks / 1e9:.1f})"
        rows.append((model.name, *cells))
    return table(
        "GB on each GPU | state | activations (recomputed) | logits | all by DDP | by FSDP over 8",
        rows,
    )


def times() -> str:
    rows = []
    for model in SHAPES:
        threads = TOKENS * model.parameters * model.flops / CPU_FLOPS
        found = [best(model, gpus) for gpus in GPUS]
        cells = [
            f"{lasting(training(model, gpus, one[0]))}" if one else "–"
            for gpus, one in zip(GPUS, found, strict=True)
        ]
        rows.append((model.name, lasting(threads), *cells))
    return table(f"model | two CPU threads | {head_of(GPUS)}", rows)


def head_of(counts) -> str:
    first, *others = counts
    return " | ".join([f"{first:,} GPU" + "s" * (first > 1), *(f"{n:,}" for n in others)])


def shares() -> str:
    rows = []
    for model in SHAPES:
        for how, name in WAYS.items():
            found = [efficiency(model, gpus, how) for gpus in GPUS[1:]]
            if any(found):
                cells = [f"{share:.2f}" if share else "–" for share in found]
                rows.append((f"{model.name}, {name}", *cells))
    return table(f"share of the ideal speed | {head_of(GPUS[1:])}", rows)


def steps() -> str:
    rows = []
    for model in SHAPES:
        ways = [step(model, H100, 256, how) for how in WAYS]
        cells = [f"{rounded(1000 * one.wire)}, {rounded(1000 * one.latency)}" for one in ways]
        work = rounded(1000 * ways[0].compute)
        rows.append((model.name, f"{model.batch // 256:,}", work, *cells))
    ways = " | ".join(f"{name}: bytes, latency" for name in WAYS.values())
    return table(f"ms of a step on 256 GPUs | tokens of each | products | {ways}", rows)


def failures() -> str:
    rows = []
    for gpus in GPUS[1:]:
        between = interruption(gpus)
        row = [f"{gpus:,}", lasting(between)]
        for saving in (STOPPED, COPIED):
            row += [lasting(best_interval(saving, between)), f"{lost(saving, between):.1%}"]
        rows.append(row)
    return table(
        f"GPUs | between two interruptions | save every, at {STOPPED} s | lost "
        f"| every, at {COPIED} s | lost",
        rows,
    )


def files() -> str:
    rows = []
    every, kept = TrainSettings().evaluate_every, TextSettings().validation
    for model in SHAPES:
        tokens = TOKENS * model.parameters
        validating = kept * tokens / 3 / (every * model.batch)  # forward alone: a third
        rows.append((
            model.name, f"{tokens / 1e9:.1f} G",
            f"{size(TEXT * tokens)}B", lasting(TEXT * tokens / BPE),
            f"{size(KEPT * model.parameters)}B", f"{rounded(validating)} ×",
        ))  # fmt: skip
    return table(
        "model | tokens | of text | which one process makes in | checkpoint "
        "| validation by default, beside training",
        rows,
    )


def stacks(model) -> int:
    """Bytes that Muon needs besides on each of eight GPUs, by heedful's estimate."""
    adamw, muon = (
        memory(model.config, TrainSettings(optimizer=name), 8).weights for name in ("adamw", "muon")
    )
    return muon - adamw


def muon() -> str:
    rows = []
    for model in SHAPES:
        cells = [lasting(orthogonal_share(model, gpus) / H100.peak) for gpus in (1, 8, 256)]
        work = step(model, H100, 256, "fsdp").compute
        count = sum(matrices(model).values())
        rows.append((model.name, count, *cells, lasting(work), f"{stacks(model) / 1e9:.1f}"))
    return table(
        "model | matrices | each GPU does all | shared by 8 | by 256 "
        "| a step's products on 256 | GB of stacks, on each of 8",
        rows,
    )


def compared(runs) -> str:
    rows = [
        (
            f"[{run.what}]({run.source})", f"{run.gpus} {run.gpu.name}",
            f"{run.measured:,.0f}", f"{run.modelled:,.0f}", f"{run.off:.2f}",
        )
        for run in runs
    ]  # fmt: skip
    return table("run | GPUs | tokens/s of a GPU, measured | by the model | model / measured", rows)


def shapes() -> str:
    rows = []
    for model in SHAPES:
        config = model.config
        rows.append((
            model.name, f"{model.parameters / 1e6:,.0f} M", f"{config.layers} × {config.width:,}",
            f"{model.context:,}", f"{model.batch:,}", model.texts,
        ))  # fmt: skip
    return table(
        "model | parameters | blocks × width | context | tokens of a step "
        "| texts of a pass on a GPU",
        rows,
    )


TABLES = {
    "shapes": shapes,
    "answer": answer,
    "corners": corners,
    "memory": memories,
    "time": times,
    "shares": shares,
    "step": steps,
    "failures": failures,
    "files": files,
    "muon": muon,
    "runs": lambda: compared(WHOLE),
    "growing": lambda: compared(GROWING),
}


def page_with(page: str) -> str:
    """A page with each table after the comment that names it."""
    for name, made in TABLES.items():
        place = re.compile(rf"(<!-- {name} -->\n)(?:\n|\|.*\n)*")
        page = place.sub(lambda found, made=made: f"{found[1]}\n{made()}\n\n", page)
    return page


def main(page=None, pictures=None) -> None:
    """Print the tables, or put them into a page and draw its pictures."""
    if page is None:
        for name, made in TABLES.items():
            print(f"\n{name}\n\n{made()}")
        return
    path = Path(page)
    path.write_text(page_with(path.read_text("utf-8")), "utf-8")
    if pictures:
        from scale_pictures import draw

        draw(Path(pictures))


if __name__ == "__main__":
    main(*sys.argv[1:])
