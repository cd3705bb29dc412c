"""The command `heedful look`."""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from heedful.cli.input_texts import (
    image_option,
    is_recording,
    optional_text,
    read_text,
    record_text,
    refuse_with_recording,
    text_options,
    verify_option,
)
from heedful.cli.options import check_model, heads_option, layers_option, opening_options, refuse
from heedful.cli.output_paths import check_file
from heedful.cli.segments_option import (
    SegmentsOption,
    check_usage,
    record_with_segments,
    segments_option,
)
from heedful.cli.watched_heads import load_watched, was_watched

if TYPE_CHECKING:
    from heedful.recording import Recording
    from heedful.views.explorer.catalogue import Catalogue

LIFETIME = 60  # seconds for which an address that a terminal shows works
REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">open</a>\n'
EXAMPLE = """\b
Examples:
  heedful look first.safetensors
  heedful look runs/first "The import statement finds a module"
  heedful look google-bert/bert-base-uncased "Where is he?" --second "At home."
  heedful look runs/first "The import" --generate
  heedful look google/vit-base-patch16-224 --image photo.jpg
  heedful look microsoft/swin-tiny-patch4-window7-224 --image photo.jpg --verify
  heedful look first.safetensors second.safetensors
  heedful look runs/first runs/second "The import statement finds a module"
  heedful look runs/seen
  heedful look runs/first "The import statement" --ablation heads.json
  heedful look google-bert/bert-base-uncased --file prompt.txt --segments @@
  heedful look first.safetensors --html first.html
  heedful look first.safetensors --html one.html --layers 2 --heads 0-3 --limit 100

The server accepts connections only from this machine (127.0.0.1). An address opens the page once,
in a terminal within 60 seconds; Enter prints a new address. Ctrl-C ends the server, with exit
status 0. With a model and no --image, readers can type more texts into the page. With --generate,
the model continues TEXT, and the maps grow.

--html writes the page as one file that needs no network. The page computes each weight from the
queries and keys that the file stores. Heads with the highest scores are stored first; heads beyond
--limit have only pictures and scores. Architectures that heedful does not implement need the
transformers library.
"""


@click.command(epilog=EXAMPLE)
@click.argument("source", nargs=-1)
@text_options
@image_option
@layers_option
@heads_option
@segments_option
@click.option(
    "--ablation", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Show what `heedful ablate --out FILE` measured for each head.",
)  # fmt: skip
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the page to this file instead of serving it.",
)  # fmt: skip
@click.option(
    "--limit", type=click.FloatRange(0.5, 300), metavar="MB",
    help="With --html: maximum size of the file in MB [25].",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="With --html: replace an existing file.")
@click.option("--generate", is_flag=True, help="Let the model continue TEXT in the page.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=0,
    help="Port of the server [a free one].",
)  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the address; do not open a browser.")
@verify_option
@opening_options()
def look(
    source: tuple[str, ...], file: Path | None, second: str | None, image: Path | None, cut: bool,
    layers: list[int] | None, heads: list[int] | None, segments: SegmentsOption | None,
    ablation: Path | None, html: Path | None, limit: float | None, overwrite: bool,
    generate: bool, port: int, no_browser: bool, verify: bool, opening: dict[str, Any],
) -> None:  # fmt: skip
    """Explore recordings, or a model's attention on a text, in a browser.

    SOURCE is one or more recordings; or one or more models of any architecture (a training run, a
    directory in Hugging Face format, or a hub name), followed by TEXT, an --image, or both. The
    page compares the models. A run trained with --watch needs no TEXT: the page steps through the
    recordings made during training.
    """
    are_recordings = [is_recording(Path(name)) for name in source]
    has_recording, only_recordings = any(are_recordings), all(are_recordings)
    has_text = len(source) > 1 and not has_recording and file is None
    models, text = (source[:-1], source[-1]) if has_text else (source, None)
    if text is not None and os.path.isfile(os.path.join(text, "config.json")):
        raise click.UsageError(f"the text is missing: {text} is a model.")
    if len({*models}) < len(models):
        raise click.UsageError("the same model or recording is given twice; give each once.")
    if not source or has_recording > only_recordings:
        raise click.UsageError(
            "give recordings, without a text, as in `heedful look first.safetensors`; or one or "
            'more models, then a text in quotes: `heedful look runs/first "The import statement"`'
        )
    if html is None:
        refuse("needs --html.", limit=limit, overwrite=overwrite)
    else:
        check_file(html, overwrite)
    inputs: dict[str, Any] = {"file": file, "second": second, "image": image, "cut": cut}
    selection: dict[str, Any] = {"layers": layers, "heads": heads}
    reason = "cannot be combined with --generate."
    if generate:
        unused = {name: inputs[name] for name in ("second", "image", "cut")}
        refuse(reason, html=html, verify=verify, segments=segments, ablation=ablation, **unused)
        if has_recording or len(models) > 1:
            raise click.UsageError("--generate needs one model, and no recording.")
        page = _generation_page(source[0], text, file, selection, opening)
    elif has_recording or (
        text is None and not any(inputs.values()) and was_watched(Path(source[0]))
    ):
        check_usage(segments, True, None, False)
        refuse_with_recording(source[0], **inputs, verify=verify)
        page = _recordings_page(source, selection, segments and segments.ranges)
    else:
        if image is not None or len(models) > 1:
            refuse("needs one model and a text.", segments=segments)
        words = optional_text(image, text, file)
        options = {**selection, "cut": cut, "verify": verify, "values": True}
        opened = dict(zip(_names(models), (_opened(name, opening) for name in models), strict=True))
        recordings, ranges = {}, None
        for name, model in opened.items():
            if image is not None:
                recordings[name] = record_text(model, words, second, image, **options)
            else:
                recordings[name], ranges = record_with_segments(
                    model, words or "", second, segments, **options
                )
        page = _Page(
            _texts(recordings, selection, ranges, words, second),
            models={} if image is not None else opened,  # texts typed in would have no image
        )
    if ablation is not None:
        page.texts.add_ablation(ablation)
    if html is not None:
        _write(html, page, limit)
    else:
        _serve(page, port, no_browser)


class _Page(NamedTuple):
    """The contents of a page: `models` record more texts, `generation` continues a text.

    `title` defaults to the names of the page's texts.
    """

    texts: Catalogue
    models: dict[str, Any] = {}  # noqa: RUF012  # never changed
    generation: Any = None
    title: str | None = None


def _recordings_page(source: tuple[str, ...], selection: dict[str, Any], ranges: Any) -> _Page:
    """Load recordings, named by path if their names repeat, or those of a run with --watch."""
    if not is_recording(Path(source[0])):
        recordings, moments = load_watched(Path(source[0]))
        texts = _texts(recordings, selection, ranges)
        texts.training_steps = moments
        return _Page(texts, title=_name(source[0]))
    from heedful.recording import load

    named = {name: load(Path(path)) for name, path in zip(_names(source), source, strict=True)}
    return _Page(_texts(named, selection, ranges))


def _generation_page(
    source: str,
    text: str | None,
    file: Path | None,
    selection: dict[str, Any],
    opening: dict[str, Any],
) -> _Page:
    """Open a model that continues texts in the page; the prompt may be empty."""
    prompt = "" if text is file is None else read_text(text, file, "prompt")
    opened, texts = _opened(source, opening), _texts({}, selection)
    from heedful.views.explorer.generation import Generation

    return _Page(texts, {_name(source): opened}, Generation(opened, texts, prompt))


def _opened(source: str, opening: dict[str, Any]) -> Any:
    check_model(Path(source), opening)
    from heedful.loaded import open_model

    return open_model(Path(source), **opening)


def _texts(
    recordings: dict[str, Recording],
    selection: dict[str, Any],
    ranges: Any = None,
    *typed: str | None,
) -> Catalogue:
    from heedful.views.explorer.catalogue import Catalogue

    texts = [text for text in typed if text is not None]
    return Catalogue(recordings, selection["layers"], selection["heads"], ranges, texts)


def _names(sources: tuple[str, ...]) -> list[str]:
    """Return the last part of each path, or the path if several have the same last part."""
    names = [_name(source) for source in sources]
    return [
        source if names.count(name) > 1 else name
        for name, source in zip(names, sources, strict=True)
    ]


def _name(source: str) -> str:
    return Path(source).name.removesuffix(".safetensors") or source


def _write(path: Path, page: _Page, limit: float | None) -> None:
    from heedful.views.explorer import one_file
    from heedful.views.progress import progress_bar

    texts = page.texts
    title = f"{page.title or ', '.join(texts.names)} · heedful"
    with progress_bar("writing the page") as report:
        size, contents = one_file.write(path, texts, title, report, limit=limit or one_file.LIMIT)
    click.echo(f"{path}, {size / 1e6:.1f} MB: opens in any browser, with no network")
    click.echo(contents)


def _serve(page: _Page, port: int, no_browser: bool) -> None:
    from heedful.views.explorer.server import NewAddress, serve

    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    expiry = f", within {LIFETIME} seconds; Enter prints a new one" if is_terminal else ""

    def announce(new_address: NewAddress) -> None:
        address = new_address()
        click.echo(f"{address}\nThis address works once{expiry}. Ctrl-C ends the server.")
        if is_terminal:
            _on_enter(lambda: click.echo(new_address()))
        if not no_browser and not _open_browser(new_address):
            number = urlsplit(address).port
            click.echo(
                "No browser was opened: open this address in a browser. From another machine, "
                f"first run ssh -L {number}:127.0.0.1:{number} HOST, or write a file with --html."
            )

    try:
        serve(
            page.texts, announce, port=port, lifetime=LIFETIME if is_terminal else math.inf,
            models=page.models, generation=page.generation,
        )  # fmt: skip
    except KeyboardInterrupt:  # the regular end
        click.echo("\nended", err=True)


def _open_browser(new_address: Callable[..., str]) -> bool:
    """Open a new address in a graphical browser, not one in the terminal; return whether it opened.

    All users see the arguments of a process, so the browser gets a file that redirects to the
    address. The file is in the home directory, because a browser from the snap store reads neither
    /tmp nor hidden files. It is removed after its use, at the latest when this process exits.
    """
    import webbrowser

    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    has_screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, screens))
    if not has_screen or os.environ.get("SSH_CONNECTION"):
        return False
    with suppress(OSError, RuntimeError):  # RuntimeError: no home directory
        descriptor, name = tempfile.mkstemp(".html", "heedful-", Path.home())  # mode 0600
        remove = partial(Path(name).unlink, missing_ok=True)
        atexit.register(remove)
        with open(descriptor, "w") as file:
            file.write(REDIRECT.format(new_address(remove)))
        with suppress(webbrowser.Error):
            if webbrowser.open(Path(name).as_uri()):
                return True
        remove()
    return False


def _on_enter(action: Callable[[], object]) -> None:
    """Call `action` in a thread whenever Enter is pressed in the terminal."""

    def wait() -> None:
        while True:
            with suppress(OSError):  # raised while the process is in the background
                while os.read(0, 4096):  # the lock of sys.stdin would abort the exit of Python
                    action()
                return
            time.sleep(1)

    if sys.platform != "win32":
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # else reading would stop this process
    threading.Thread(target=wait, daemon=True).start()
