"""A model's summary in the terminal: settings, parameters by part, shapes of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from heedful.errors import printable
from heedful.models.description import Description, Part, Shape
from heedful.views.terminal import Trimmed, table

ARROW = "→ "


def shape_text(shape: Shape) -> str:
    """Write a shape as text.

    >>> shape_text(("B", "N", 128))
    '[B, N, 128]'
    """
    return "[" + ", ".join(str(size) for size in shape) + "]"


def show(console: Console, description: Description) -> None:
    """Print a description, wrapped to the console's width."""
    order = description.norm_order
    meanings = {"pre": "norms before each part", "post": "norms after each sum"}
    norms = f", {order}-norm ({meanings[order]})" if order else ""
    title = f"{description.kind}{norms}: {description.parameters:,} parameters"
    for line in _wrapped(console, title[0].upper() + title[1:], 0, "bold"):
        console.print(line)
    console.print(Text("\nSettings", "bold"))
    _settings(console, description)
    console.print(Text("\nParameters", "bold"))
    console.print(_parameters(description))
    if description.shape_steps:
        console.print(Text("\nShapes", "bold"))
        settings = {setting.name: setting.value for setting in description.settings}
        sizes = "N tokens each, N"
        if description.kind == "encoder–decoder":
            sizes = "M source tokens and N target tokens, M and N"
        legend = f"B texts of {sizes} at most {settings['context_length']:,}"
        for line in _wrapped(console, legend, 2):
            console.print(line)
        for line in _shape_lines(description, console.width):
            console.print(line, no_wrap=True, overflow="ignore", crop=False)


def as_json(description: Description) -> dict[str, Any]:
    """Return a description as plain lists and dictionaries."""
    return {
        "kind": description.kind,
        "norm_order": description.norm_order,
        "settings": [setting._asdict() for setting in description.settings],
        "parameters": description.parameters,
        "parts": [_part_data(part) for part in description.parts],
        "shapes": [step._asdict() for step in description.shape_steps],
    }


def _part_data(part: Part) -> dict[str, Any]:
    return {**part._asdict(), "total": part.total, "parts": [_part_data(p) for p in part.parts]}


def _settings(console: Console, description: Description) -> None:
    grid = Trimmed.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold", style="dim")
    for name, value, meaning in description.settings:
        grid.add_row("  " + name, Text(printable(_value(value))), Text(meaning))
    console.print(grid)


def _wrapped(console: Console, words: str, indent: int, style: str = "dim") -> Iterator[Text]:
    """Wrap words into indented lines without trailing blanks."""
    for line in Text(words).wrap(console, console.width - indent):
        yield Text(" " * indent + line.plain.rstrip(), style)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parameters(description: Description) -> Trimmed:
    output = table(["  part", "each", "total", "share"], [], [1, 2, 3])
    for part in description.parts:
        for depth, child, times in _rows(part, 0, 1):
            total = child.parameters * times
            name = Text((f"{times} × " if child.times > 1 else "") + child.name)
            if child.note:
                name.append(f" ({child.note})", "dim")
            each = f"{child.parameters:,}" if times > 1 else ""
            share = f"{100 * total / max(description.parameters, 1):.1f} %" if total else ""
            style = "dim" if depth else ""
            output.add_row(
                Padding(name, (0, 0, 0, 2 * depth + 2)),
                each,
                f"{total:,}" if total else "–",
                share,
                style=style,
            )
    output.add_row(Text("  total", "bold"), "", Text(f"{description.parameters:,}", "bold"), "")
    return output  # type: ignore[return-value]


def _rows(part: Part, depth: int, times: int) -> Iterator[tuple[int, Part, int]]:
    """Yield a part and its descendants, as (depth, part, number of copies in the model)."""
    times *= part.times
    yield depth, part, times
    for child in part.parts:
        yield from _rows(child, depth + 1, times)


def _shape_lines(description: Description, width: int) -> Iterator[Text]:
    """Yield lines with the shapes of each step, and a heading before each block."""
    steps, times = description.shape_steps, {part.name: part.times for part in description.parts}
    indent = max(len(step.step) + (2 if step.within else 0) for step in steps) + 4
    block = ""
    for step in steps:
        if step.within and step.within != block:
            yield Text(f"  {step.within}, one of {times[step.within]}")
        block = step.within
        name = ("    " if block else "  ") + step.step
        for i, line in enumerate(_wrapped_chain(step.shapes, width - indent)):
            yield Text.assemble(((name if i == 0 else "").ljust(indent), "dim"), line)


def _wrapped_chain(shapes: Sequence[Shape], room: int) -> list[str]:
    """Write shapes with arrows between them, in lines of at most `room` characters.

    >>> _wrapped_chain([("B", "N", 12), ("B", "N", 3, 4), ("B", 3, "N", 4)], 30)
    ['[B, N, 12] → [B, N, 3, 4]', '→ [B, 3, N, 4]']
    """
    lines = [shape_text(shapes[0])]
    for shape in shapes[1:]:
        longer = f"{lines[-1]} {ARROW}{shape_text(shape)}"
        if len(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(ARROW + shape_text(shape))
    return lines
