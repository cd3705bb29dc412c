"""What a model is, in the terminal: its settings, its parameters by part, the way of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from heedful.models.description import Description, Part, Shape
from heedful.views.terminal import Trimmed, table

ARROW = "→ "


def written(shape: Shape) -> str:
    """A shape as text.

    >>> written(("B", "N", 128))
    '[B, N, 128]'
    """
    return "[" + ", ".join(str(size) for size in shape) + "]"


def show(console: Console, told: Description) -> None:
    """Prints a description, to the width of a console."""
    title = f"{told.kind}{_norms(told)}: {told.parameters:,} parameters"
    for line in _wrapped(console, title[0].upper() + title[1:], 0, "bold"):
        console.print(line)
    console.print(Text("\nSettings", "bold"))
    _settings(console, told)
    console.print(Text("\nParameters", "bold"))
    console.print(_parameters(told))
    if told.passages:
        console.print(Text("\nShapes", "bold"))
        for line in _wrapped(console, _letters(told), 2):
            console.print(line)
        for line in _passages(told, console.width):
            console.print(line, no_wrap=True, overflow="ignore", crop=False)


def as_json(told: Description) -> dict[str, Any]:
    """A description as plain lists and dictionaries."""
    return {
        "kind": told.kind,
        "norm_order": told.norm_order,
        "settings": [setting._asdict() for setting in told.settings],
        "parameters": told.parameters,
        "parts": [_plain(part) for part in told.parts],
        "shapes": [passage._asdict() for passage in told.passages],
    }


def _plain(part: Part) -> dict[str, Any]:
    return {**part._asdict(), "total": part.total, "parts": [_plain(one) for one in part.parts]}


def _norms(told: Description) -> str:
    where = {"pre": "norms before each part", "post": "norms after each sum"}
    return f", {told.norm_order}-norm ({where[told.norm_order]})" if told.norm_order else ""


def _settings(console: Console, told: Description) -> None:
    rows = [(one.name, _value(one.value), one.meaning) for one in told.settings]
    grid = Trimmed.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold", style="dim")
    for row in rows:
        grid.add_row("  " + row[0], *(Text(cell) for cell in row[1:]))
    console.print(grid)


def _wrapped(console: Console, words: str, indent: int, style: str = "dim") -> Iterator[Text]:
    """Words in lines of one indent, with no blanks after them."""
    for line in Text(words).wrap(console, console.width - indent):
        yield Text(" " * indent + line.plain.rstrip(), style)


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(_value(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parameters(told: Description) -> Trimmed:
    made = table(["  part", "each", "in all", "share"], [], [1, 2, 3])
    for part in told.parts:
        for depth, one, times in _rows(part, 0, 1):
            total = one.parameters * times
            name = Text((f"{times} × " if one.times > 1 else "") + one.name)
            if one.note:
                name.append(f" ({one.note})", "dim")
            each = f"{one.parameters:,}" if times > 1 else ""
            share = f"{100 * total / max(told.parameters, 1):.1f}%" if total else ""
            style = "dim" if depth else ""
            made.add_row(
                Padding(name, (0, 0, 0, 2 * depth + 2)),
                each,
                f"{total:,}" if total else "–",
                share,
                style=style,
            )
    made.add_row(Text("  total", "bold"), "", Text(f"{told.parameters:,}", "bold"), "")
    return made  # type: ignore[return-value]


def _rows(part: Part, depth: int, times: int) -> Iterator[tuple[int, Part, int]]:
    """A part and what it is made of: how deep, which, and how often in the model."""
    times *= part.times
    yield depth, part, times
    for one in part.parts:
        yield from _rows(one, depth + 1, times)


def _letters(told: Description) -> str:
    settings = {one.name: one.value for one in told.settings}
    most = f"at most {settings['context_length']:,}"
    if told.kind == "encoder–decoder":
        return f"B texts, M tokens of the source and N of the target, {most}"
    return f"B texts, N tokens of each, {most}"


def _passages(told: Description, width: int) -> Iterator[Text]:
    """A line for each step; under a heading where it is in a block. Long chains are broken."""
    passages, times = told.passages, {part.name: part.times for part in told.parts}
    name = max(len(passage.step) + (2 if passage.within else 0) for passage in passages) + 4
    within = ""
    for passage in passages:
        if passage.within and passage.within != within:
            yield Text(f"  {passage.within}, one of {times[passage.within]}")
        within = passage.within
        step = ("    " if within else "  ") + passage.step
        for i, line in enumerate(_broken(passage.shapes, width - name)):
            yield Text.assemble(((step if i == 0 else "").ljust(name), "dim"), line)


def _broken(shapes: Sequence[Shape], room: int) -> list[str]:
    """Shapes with arrows between them, in lines that fit.

    >>> _broken([("B", "N", 12), ("B", "N", 3, 4), ("B", 3, "N", 4)], 30)
    ['[B, N, 12] → [B, N, 3, 4]', '→ [B, 3, N, 4]']
    """
    lines = [written(shapes[0])]
    for shape in shapes[1:]:
        longer = f"{lines[-1]} {ARROW}{written(shape)}"
        if len(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(ARROW + written(shape))
    return lines
