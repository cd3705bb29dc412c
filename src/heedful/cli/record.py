"""`heedful record`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import click

from heedful.cli.cut import cut_option
from heedful.cli.images import image_option, record_image, text_beside
from heedful.cli.options import (
    Numbers,
    check_model,
    file_option,
    json_option,
    opening_options,
    program,
    second_option,
    verify_option,
)

if TYPE_CHECKING:
    from heedful.opened import Opened
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
@click.option("--layers", type=Numbers(), help="Only these layers, from 0: 0,3 or 0-2.")
@click.option("--heads", type=Numbers(), help="Only these heads of each layer: 3,1 or 0-3.")
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
    words = text_beside(image, text, file, second)
    _check_place(out)
    check_model(model, opening)
    from heedful.cli import proofs
    from heedful.opened import open_model
    from heedful.views.terminal import console, facts

    opened = open_model(model, **opening)
    options = {"layers": layers, "heads": heads, "values": values, "budget": _bytes(budget),
               "verify": verify}  # fmt: skip
    if image is not None:
        recording = record_image(opened, image, words, cut, **options)
    else:
        recording = record_text(opened, words or "", second, cut, **options)
    recording.save(out)
    if as_json:
        about = {"file": str(out), "bytes": out.stat().st_size, "missed": recording.missed}
        click.echo(json.dumps({**about, "calls": proofs.as_data(recording)}))
        return
    screen = console()
    screen.print(facts(_about(recording, out)))
    proofs.show_reasons(recording, screen)
    screen.print(f"\nNext: {program()} heads {out}", style="dim", soft_wrap=True)


def _check_place(out: Path) -> None:
    """Refuse, before the model runs, a place that cannot be written or where something is lost.

    Raises:
        SaveError: no folder that can be written, or something there that is no recording.
    """
    from heedful.files import check_replaceable, saving

    with saving(out):
        check_replaceable(out, "recording")
        with TemporaryFile(dir=out.parent):
            return


def _bytes(gigabytes: float | None) -> float | None:
    """Whole bytes; what is no number is for `record` to refuse."""
    if gigabytes is None or not math.isfinite(gigabytes):
        return gigabytes
    return round(gigabytes * 1e9)


def _about(recording: Recording, out: Path) -> list[tuple[str, str]]:
    from heedful.cli import proofs
    from heedful.recording.proof import counted

    known = proofs.calls_of(recording)
    return [
        ("recorded", _heads(recording)),
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


def _heads(recording: Recording) -> str:
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


def record_text(
    opened: Opened, text: str, second: str | None = None, cut: bool = False, **options: Any
) -> Recording:
    """As `opened.record`, told in a terminal: how far it is, what is cut, and what is missed."""
    from heedful.cli.cut import cuts_told
    from heedful.cli.proofs import show_missed
    from heedful.views.progress import share_done

    with share_done("recording") as tell, catch_warnings():
        simplefilter("ignore", UserWarning)  # what is missed is told below
        with cuts_told():
            recording = opened.record(text, second, cut=cut, progress=tell, **options)
    show_missed(recording, options.get("verify", False))
    return recording
