"""The two pictures of docs/scale.md, from the formulas of scale_model.py."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scale_model import GPUS, H100, SHAPES, Shape, needs, shards, speed
from scale_runs import GROWING

from heedful.pictures import style

# Okabe and Ito (2008): told apart by everyone
COLOURS = dict(
    zip(
        [model.name for model in SHAPES],
        ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00"),
        strict=True,
    )
)
PARTS = {
    "state": ("weights, gradients, AdamW", "#0072b2"),
    "copies": ("bfloat16 weights in use", "#56b4e9"),
    "blocks": ("activations", "#e69f00"),
    "logits": ("logits", "#9aa4ae"),
}
OVER = {"DDP": 1, "FSDP over 8": 8, "FSDP over 64": 64}
COUNTS = [2**n for n in range(10)] + [1000]


def draw(folder: Path) -> None:
    """Write both."""
    for name, figure in {"scale-speed": speeds(), "scale-memory": memories()}.items():
        style.literal(figure)
        figure.savefig(folder / f"{name}.png", dpi=160)


def quiet(ax: Axes, x: str, y: str) -> None:
    """Axes as those of this project's curves."""
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.spines["bottom"].set_color("#d0d7de")
    ax.grid(axis="y", color="#eaeef2", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel(x, fontsize=9, color=style.QUIET, labelpad=6)
    ax.set_ylabel(y, fontsize=9, color=style.QUIET, labelpad=6)
    ax.tick_params(which="both", length=0, pad=5, labelsize=8.5, labelcolor=style.INK)


def gpus_along(ax: Axes, counts: Sequence[int]) -> None:
    """A logarithmic axis that names these counts."""
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(counts))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))


def speeds() -> Figure:
    """Tokens a second by the number of GPUs; beside it, how well the model tells what is lost."""
    figure = Figure(figsize=(10, 4.4), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    for model in SHAPES:
        grown(left, model)
    gpus_along(left, GPUS)
    left.set(yscale="log", xlim=(0.4, 1300), ylim=(6e3, 3e8))
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: counted(value)))
    quiet(left, "GPUs", "tokens a second of all of them")
    left.set_title("One batch for all", fontsize=10, loc="left", color=style.INK)
    note(left, 0.03, "dotted: no time lost\nthick: DDP or FSDP\nthin: HSDP")
    kept(right)
    style.head(figure, "More GPUs: what they bring, and what is lost on the way")
    return figure


def note(ax: Axes, x: float, text: str) -> None:
    """Quiet lines in the upper left corner."""
    ax.text(x, 0.97, text, transform=ax.transAxes, va="top", fontsize=8, color=style.QUIET,
            linespacing=1.5)  # fmt: skip


def counted(value: float) -> str:
    return f"{value / 1e6:,.0f} M" if value >= 1e6 else f"{value / 1e3:,.0f} k"


def grown(ax: Axes, model: Shape) -> None:
    """The speeds of one model, up to where a GPU would get less than a text."""
    colour, one = COLOURS[model.name], speed(model, H100, 1, "ddp")
    counts = [n for n in COUNTS if model.batch / model.context >= n]
    ax.plot(counts, [one * n for n in counts], color=colour, linewidth=1, dashes=(1, 2))
    for ways, width in ((("hsdp",), 0.9), (("ddp", "fsdp"), 2.2)):
        points = [(n, found) for n in counts if (found := fastest(model, n, ways))]
        ax.plot(*zip(*points, strict=True), color=colour, linewidth=width)
    ax.plot(*points[-1], "o", color=colour, markersize=4.5)
    ax.annotate(model.name, (1, one), xytext=(-7, 0), textcoords="offset points", fontsize=9,
                color=colour, ha="right", va="center")  # fmt: skip


def fastest(model: Shape, gpus: int, ways: Sequence[str]) -> float | None:
    room = [how for how in ways if needs(model, shards(gpus, how)).total <= H100.memory]
    return max((speed(model, H100, gpus, how) for how in room), default=None)


def kept(ax: Axes) -> None:
    """Of MosaicML's runs what a GPU keeps of the speed that it had among 128: dots, and lines."""
    sizes = [list(runs) for _, runs in groupby(GROWING, lambda run: run.what)]
    for colour, runs, aside in zip(list(COLOURS.values())[2:], sizes, (0, -8, 5), strict=True):
        counts = [run.gpus for run in runs]
        ax.plot(counts, [run.modelled / runs[0].modelled for run in runs], color=colour)
        ax.plot(counts, [run.measured / runs[0].measured for run in runs], "o", color=colour)
        ax.annotate(runs[0].what.partition(", ")[2], (512, runs[-1].modelled / runs[0].modelled),
                    xytext=(9, aside), textcoords="offset points", fontsize=9, color=colour,
                    va="center")  # fmt: skip
    gpus_along(ax, [128, 256, 512])
    ax.set(xlim=(115, 700), ylim=(0.86, 1.01))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}".replace("%", " %")))
    quiet(ax, "GPUs, each with the same share", "speed of a GPU, beside 128")
    ax.set_title("The same work for each", fontsize=10, loc="left", color=style.INK)
    ax.text(0.02, 0.06, "dots: measured by MosaicML\nlines: the model", transform=ax.transAxes,
            fontsize=8, color=style.QUIET, linespacing=1.5)  # fmt: skip


def memories() -> Figure:
    """What each GPU holds, by DDP and by FSDP over 8 and 64, beside its 80 GB."""
    figure = Figure(figsize=(10, 5.2), layout="constrained", facecolor="white")
    ax = figure.add_subplot()
    rows, names = [], []
    for place, model in enumerate(SHAPES):
        for line, (way, count) in enumerate(
            {"DDP": 1, "FSDP over 8": 8, "FSDP over 64": 64}.items()
        ):
            rows.append(place * 3.9 + line)
            names.append(way)
            bar(ax, rows[-1], needs(model, count))
        ax.text(-0.135, rows[-2], model.name, transform=ax.get_yaxis_transform(), fontsize=10.5,
                fontweight="bold", color=style.INK, va="center", ha="right")  # fmt: skip
    ax.axvline(80, color=style.INK, linewidth=1.2)
    ax.text(81, -0.85, "80 GB", fontsize=9, color=style.INK, va="center")
    ax.set(ylim=(rows[-1] + 0.7, -1.3), xlim=(0, 175))
    ax.set_yticks(rows, names)
    quiet(ax, "GB on each GPU", "")
    ax.grid(False)
    ax.grid(axis="x", color="#eaeef2", linewidth=0.8)
    for number, (name, colour) in enumerate(PARTS.values()):
        ax.plot([], [], "s", color=colour, label=name, zorder=number)
    ax.legend(loc="upper right", bbox_to_anchor=(1, 0.62), frameon=False, fontsize=9,
              labelcolor=style.INK)  # fmt: skip
    style.head(figure, "What has to have room on one GPU")
    return figure


def bar(ax: Axes, place: float, needed) -> None:
    """The parts one after the other."""
    begin = 0.0
    for part, (_, colour) in PARTS.items():
        width = getattr(needed, part) / 1e9
        ax.barh(place, width, left=begin, height=0.82, color=colour)
        begin += width
    ax.text(begin + 1, place, f"{begin:.0f}", fontsize=8, color=style.QUIET, va="center")
