"""The command `heedful record`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.input_texts import (
    image_option,
    optional_text,
    record_text,
    text_options,
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

Architectures that heedful does not implement need the transformers library:
pip install 'transformers>=5.0'
"""


@click.command(epilog=EXAMPLE)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@text_options
@image_option
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FILE",
    help="File to write, such as first.safetensors; it replaces an existing recording, but no "
    "other file.",
)  # fmt: skip
@layers_option
@heads_option
@click.option("--values", is_flag=True, help="Also record the value vectors.")
@click.option(
    "--budget", type=click.FloatRange(min=0, max=1e9), metavar="GB",
    help="Memory for the recording, in GB [unlimited]; what exceeds it goes to temporary files.",
)  # fmt: skip
@verify_option
@opening_options()
@json_option
def record(
    model: Path, text: str | None, file: Path | None, second: str | None, image: Path | None,
    cut: bool, out: Path, layers: list[int] | None, heads: list[int] | None, values: bool,
    budget: float | None, verify: bool, opening: dict[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """Record the attention of MODEL on TEXT into a file, from which every map can be computed.

    MODEL is a model of any architecture: a training run, a directory in Hugging Face format, or a
    hub name. An encoder–decoder first translates TEXT; then one forward pass over source and target
    is recorded. With --image, many models need no TEXT; a model that describes images first writes
    a description. `heedful heads` lists the heads of the file; `heedful.load` reads it in Python.
    """
    words = optional_text(image, text, file)
    check_folder(out)
    check_replaceable(out, "recording")
    check_model(model, opening)
    from heedful.cli import proofs
    from heedful.loaded import open_model
    from heedful.views.terminal import console, facts

    opened = open_model(model, **opening)
    options: dict[str, Any] = {"layers": layers, "heads": heads, "values": values}
    options["budget"] = None if budget is None else budget * 1e9
    recording = record_text(opened, words, second, image, cut=cut, verify=verify, **options)
    recording.save(out)
    if as_json:
        summary = {"file": str(out), "bytes": out.stat().st_size, "missed": recording.missed}
        click.echo(json.dumps({**summary, "calls": proofs.as_data(recording)}))
        return
    screen = console()
    screen.print(facts(_summary(recording, out)))
    proofs.print_reasons(recording, screen)
    screen.print(f"\nNext: {suggestion('heads', out)}", style="dim", soft_wrap=True)


def _summary(recording: Recording, out: Path) -> list[tuple[str, str]]:
    from rich.filesize import decimal

    from heedful.cli import proofs
    from heedful.recording.proof import counted

    certificates = proofs.certificates(recording)
    return [
        ("recorded", heads_in_words(recording)),
        ("tokens", _tokens(recording)),
        ("proof", counted(call.proof for call in certificates)),
        ("layout", counted(call.layout for call in certificates)),
        ("checked", check_in_words(recording)),
        ("file", f"{out}, {decimal(out.stat().st_size)}"),
    ]


def _tokens(recording: Recording) -> str:
    cross = next((call for call in recording if call.kind == "cross"), None)
    if cross is None:
        return f"{max(call.shape[2] for call in recording):,}"
    _, target, source = cross.shape
    return f"{source:,} read, {target:,} written"


def heads_in_words(recording: Recording) -> str:
    """Return the number of calls of each kind, of layers and of heads, as a phrase."""
    from heedful.recording.proof import counted
    from heedful.views.terminal import plural

    layers = {call.name if call.layer is None else call.layer for call in recording}
    kinds = counted(call.kind for call in recording)
    heads = sorted({len(call.heads) for call in recording})
    count = f"{heads[0]}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
    numbers = recording[0].chosen
    selection = "" if numbers is None else f" ({', '.join(map(str, numbers))})"
    return (
        f"{plural(len(recording), 'call')} ({kinds}) of {plural(len(layers), 'layer')}, "
        f"{count} {'head' if heads == [1] else 'heads'} each{selection}"
    )


def check_in_words(recording: Recording) -> str:
    """Return the largest error of weights × values and the number of unchecked calls, in words."""
    checks = [check for _, check in recording.certificate()]
    errors = [check.worst for check in checks if not math.isnan(check.worst)]
    if not errors:
        return f"nothing: {checks[0].why}"
    unchecked = len(checks) - len(errors)
    ending = f"; {unchecked} of {len(checks)} calls not checked" if unchecked else ""
    return f"weights × values within {max(errors):.0e} of the model's own output{ending}"
