"""`heedful look`."""

from __future__ import annotations

from pathlib import Path

import click

from heedful.cli.cut import cut_option
from heedful.cli.options import (
    checkpoint_option,
    device_option,
    file_option,
    pickle_option,
    read_text,
    revision_option,
    second_option,
)

EXAMPLE = """\b
Examples:
  heedful look first.safetensors
  heedful look runs/first "The import statement finds a module"
  heedful look google-bert/bert-base-uncased "Where is he?" --second "At home."
  heedful look first.safetensors second.safetensors
  heedful look first.safetensors --html first.html

The page is served on this machine alone (127.0.0.1), to whoever has the address that is printed;
Ctrl-C ends it. With --html it is one file that opens anywhere, with no network.
"""


@click.command(epilog=EXAMPLE)
@click.argument("source", nargs=-1, required=True)
@file_option
@second_option
@cut_option
@click.option("--html", type=click.Path(path_type=Path), help="Write the page as one file.")
@click.option("--overwrite", is_flag=True, help="Replace the file of --html.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of the address [a free one]."
)
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@checkpoint_option
@device_option
@revision_option
@pickle_option
def look(
    source: tuple[str, ...],
    file: Path | None,
    second: str | None,
    cut: bool,
    html: Path | None,
    overwrite: bool,
    port: int,
    no_browser: bool,
    **opening: object,
) -> None:
    """Look at recordings, or at what a model does with a text, in a browser.

    SOURCE is one recording or several; or a model of any architecture with a TEXT. With a model,
    the page can record further texts.
    """
    recordings, model = _read(source, file, second, cut, opening)
    if html is not None:
        _write(html, overwrite, recordings)
    else:
        _serve(recordings, model, port, no_browser)


def _read(
    source: tuple[str, ...], file: Path | None, second: str | None, cut: bool, opening: dict
) -> tuple[dict, object]:
    """The recordings by name, and the model that can record more; None without one."""
    from heedful.recorder import load

    paths = [Path(each) for each in source]
    if all(_is_recording(path) for path in paths):
        if cut or file is not None or second is not None:
            raise click.UsageError("A recording has its text already: give no other, nor --cut.")
        return {path.stem: load(path) for path in paths}, None
    if len(source) > 2:
        raise click.UsageError("Give recordings, or one model with one text.")
    from heedful.cli.record import record_text
    from heedful.opened import open_model

    words = read_text(source[1] if len(source) == 2 else None, file)
    opened = open_model(paths[0], **opening)
    return {paths[0].name: record_text(opened, words, second, cut)}, opened


def _is_recording(path: Path) -> bool:
    return path.is_file() or (path.suffix == ".safetensors" and not path.is_dir())


def _write(path: Path, overwrite: bool, recordings: dict) -> None:
    from heedful.errors import SaveError
    from heedful.views.explorer import one_file
    from heedful.views.explorer.texts import Texts
    from heedful.views.progress import share_done

    if path.exists() and not overwrite:
        raise SaveError(f"{path} is there", expected="a new file", remedy="give --overwrite")
    with share_done("writing the page") as tell:
        title = f"{', '.join(recordings)} · heedful"
        size, said = one_file.write(path, Texts(recordings), title, tell)
    click.echo(f"{path}, {size / 1e6:.1f} MB: opens in any browser, with no network")
    click.echo(said)


def _serve(recordings: dict, model: object, port: int, no_browser: bool) -> None:
    import webbrowser

    from heedful.views.explorer.hosting import serve
    from heedful.views.explorer.texts import Texts

    def ready(address: str) -> None:
        click.echo(f"{address}\nCtrl-C ends it.")
        if not no_browser:
            webbrowser.open(address)

    serve(Texts(recordings), ready, port=port, model=model)
