"""What a command reads: a text, a pair, an image, or a recording that has read one already."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.options import refuse
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.loaded import LoadedModel
    from heedful.recording import Recording


def _not_empty(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise ArgumentError("an empty second text", expected="at least one character")
    return text


def _there(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A path to a file; one to nothing is refused before torch is imported."""
    if path is not None and not path.is_file():
        raise ArgumentError(f"no image {path}", remedy="check the path")
    return path


file_option = click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="Read the text from a file; - is standard input.",
)
second_option = click.option(
    "--second",
    metavar="TEXT",
    callback=_not_empty,
    help="A second text: a BERT reads the two as a pair.",
)
image_option = click.option(
    "--image",
    type=click.Path(path_type=Path),
    callback=_there,
    help="An image, for a model that looks at one; TEXT may be left out then.",
)
cut_option = click.option(
    "--cut",
    is_flag=True,
    help="Of a text that is longer than the model's context, read the beginning alone.",
)
verify_option = click.option(
    "--verify",
    is_flag=True,
    help="Settle what the axes of each call are by probing, in some more passes.",
)


def read_text(text: str | None, file: Path | None, what: str = "text") -> str:
    """A text given as an argument, or with --file (`-` is standard input)."""
    from heedful.text import FileSource

    if (text is None) == (file is None):
        raise click.UsageError(f"give the {what} as an argument or with --file, one of the two")
    if file is not None and file.is_dir():
        raise ArgumentError(f"the folder {file}", expected="a file, or - for standard input")
    if file is not None:
        return "".join(FileSource((str(file),)).pieces())
    if not text:
        raise ArgumentError(f"an empty {what}", expected="at least one character")
    return text


def text_beside(image: Path | None, text: str | None, file: Path | None) -> str | None:
    """The text that a model reads; beside an image there may be none."""
    return None if image is not None and text is file is None else read_text(text, file)


def is_recording(path: Path) -> bool:
    """Whether a recording is meant: by any file, and by a name that ends so where there is none."""
    is_file = os.path.isfile(path)  # which a text that is too long for a name is not
    return is_file or (path.suffix == ".safetensors" and not os.path.isdir(path))


def refuse_with_recording(source: Path | str, **given: Any) -> None:
    """Refuse what a model reads beside a recording; `UsageError`."""
    refuse(f"is for a model; {source} is read as a recording, which has its text already.", **given)


@contextmanager
def notices(*kinds: type[Warning]) -> Iterator[None]:
    """Print warnings of these kinds as lines on standard error, and no other of the library's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, *_, **__: click.echo(message, err=True)
        yield


def recorded(
    opened: LoadedModel,
    text: str | None,
    second: str | None = None,
    image: Path | None = None,
    *,
    verify: bool = False,
    **options: Any,
) -> Recording:
    """As `opened.record`, with a bar; what is cut, not shown and missed is printed.

    Raises:
        ArgumentError: an image for a model that reads none.
    """
    from heedful.cli.certainty import show_missed
    from heedful.loaded import ImageWarning, TruncationWarning
    from heedful.views.progress import share_done

    if image is not None and not opened.reads_images:
        raise ArgumentError(
            f"--image for a model of the kind {type(opened.model).__name__}",
            expected="a model with an image processor (preprocessor_config.json)",
        )
    reads: Any = (text, second)
    if image is not None:
        options["image"] = image
    with share_done("recording") as tell, notices(TruncationWarning, ImageWarning):
        recording = opened.record(*reads, verify=verify, progress=tell, **options)
    show_missed(recording, verify)
    return recording
