"""`heedful record`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.input_texts import (
    cut_option,
    file_option,
    image_option,
    recorded,
    second_option,
    text_beside,
    verify_option,
)
from heedful.cli.options import (
    check_model,
    heads_option,
    json_option,
    layers_option,
    opening_options,
)
from heedful.cli.output_paths import check_folder
from heedful.cli.suggested_commands import suggestion
from heedful.files import check_replaceable

if TYPE_CHECKING:
    from heedful.recording import Recording

EXAMPLE = """\b
Examples:
  heedful record runs/first "The import statement" --out first.safetensors
  heedful record runs/first --file chapter.txt --out chapter.safetensors --layers 0,5 --heads 3
  heedful record google-bert/bert-base-uncased "Where?" --second "Here." --out pair.safetensors
  heedful record google-t5/t5-small "translate English to German: yes" --out t5.safetensors
  heedful record google/vit-base-patch16-224 --image photo.jpg --out vit.safetensors
  heedful record microsoft/swin-tiny-patch4-window7-224 --image a.jpg --out s.safetensors --verify

Architectures that are not ours need the transformers library: pip install 'transformers>=5.0'
"""


@click.command(epilog=EXAMPLE)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@second_option
@image_option
@cut_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write; a recording that is there is replaced, and nothing else.",
)
@layers_option
@heads_option
@click.option("--values", is_flag=True, help="Keep the values too.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, max=1e9),
    metavar="GB",
    help="Memory to take; what is past it waits in temporary files.",
)
@verify_option
@opening_options()
@json_option
def record(
    model: Path,
    text: str | None,
    file: Path | None,
    second: str | None,
    image: Path | None,
    cut: bool,
    out: Path,
    layers: list[int] | None,
    heads: list[int] | None,
    values: bool,
    budget: float | None,
    verify: bool,
    opening: dict[str, Any],
    as_json: bool,
) -> None:
    """Record what MODEL attends to on TEXT: the causes of every map, in one file.

    MODEL is a run, a directory in Hugging Face format or a hub name, of any architecture. An
    encoder–decoder translates TEXT first; recorded is one pass over the two. A model that looks at
    an --image may have a TEXT beside it; one that writes of images writes it. `heedful heads` lists
    the heads of the file, and `heedful.load` opens it in Python.
    """
    words = text_beside(image, text, file)
    check_folder(out)
    check_replaceable(out, "recording")
    check_model(model, opening)
    from heedful.cli import certainty
    from heedful.loaded import open_model
    from heedful.views.terminal import console, facts

    opened = open_model(model, **opening)
    options: dict[str, Any] = {"layers": layers, "heads": heads, "values": values}
    options["budget"] = None if budget is None else budget * 1e9
    recording = recorded(opened, words, second, image, cut=cut, verify=verify, **options)
    recording.save(out)
    if as_json:
        about = {"file": str(out), "bytes": out.stat().st_size, "missed": recording.missed}
        click.echo(json.dumps({**about, "calls": certainty.as_data(recording)}))
        return
    screen = console()
    screen.print(facts(_about(recording, out)))
    certainty.show_reasons(recording, screen)
    screen.print(f"\nNext: {suggestion('heads', out)}", style="dim", soft_wrap=True)


def _about(recording: Recording, out: Path) -> list[tuple[str, str]]:
    from heedful.cli import certainty
    from heedful.recording.proof import counted

    known = certainty.calls_of(recording)
    return [
        ("recorded", heads_in_words(recording)),
        ("tokens", _tokens(recording)),
        ("proof", counted(call.proof for call in known)),
        ("layout", counted(call.layout for call in known)),
        ("checked", certified(recording)),
        ("file", f"{out}, {_size(out.stat().st_size)}"),
    ]


def _tokens(recording: Recording) -> str:
    crossing = next((call for call in recording if call.kind == "cross"), None)
    if crossing is None:
        return f"{max(call.shape[2] for call in recording):,}"
    _, written, read = crossing.shape
    return f"{read:,} read, {written:,} written"


def heads_in_words(recording: Recording) -> str:
    """How many calls there are, of which kinds and layers, and their heads."""
    from heedful.recording.proof import counted
    from heedful.views.terminal import many

    layers = {call.name if call.layer is None else call.layer for call in recording}
    kinds = counted(call.kind for call in recording)
    heads = sorted({len(call.heads) for call in recording})
    each = f"{heads[0]}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
    chosen = recording[0].chosen
    which = "" if chosen is None else f" ({', '.join(map(str, chosen))})"
    return (
        f"{many(len(recording), 'call')} ({kinds}) of {many(len(layers), 'layer')}, "
        f"{each} {'head' if heads == [1] else 'heads'} each{which}"
    )


def certified(recording: Recording) -> str:
    """The worst of what could be compared, and of how many calls nothing could."""
    checks = [check for _, check in recording.certificate()]
    known = [check.worst for check in checks if not math.isnan(check.worst)]
    if not known:
        return f"nothing: {checks[0].why}"
    besides = (
        f"; {len(checks) - len(known)} of {len(checks)} not" if len(known) < len(checks) else ""
    )
    return f"weights × values within {max(known):.0e} of the model's own output{besides}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 10**5 else f"{size / 1e3:,.0f} kB"
