"""The inputs of a command: a text, a pair of texts, an image, or a recording."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.options import refuse
from heedful.errors import ArgumentError, TextError, printable

if TYPE_CHECKING:
    from heedful.loaded import LoadedModel
    from heedful.recording import Recording

MAX_TEXT = 5_000_000  # characters; tokenizing needs up to 100 times the memory of a text


def _not_empty(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise ArgumentError("an empty second text", expected="at least one character")
    return text


file_option = click.option(
    "--file", type=click.Path(path_type=Path),
    help="Read the text from a file; - is standard input.",
)  # fmt: skip
second_option = click.option(
    "--second", metavar="TEXT", callback=_not_empty,
    help="Second text of a pair, for models that read pairs, such as a BERT.",
)  # fmt: skip
image_option = click.option(
    "--image", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Image for a model that reads images; many such models need no TEXT.",
)  # fmt: skip
cut_option = click.option(
    "--cut", is_flag=True,
    help="Read only the beginning of a text that is longer than the model's context.",
)  # fmt: skip
verify_option = click.option(
    "--verify", is_flag=True,
    help="Verify which axes are heads, queries and keys, with about 16 more forward passes.",
)  # fmt: skip


def text_options(command: Callable) -> Callable:
    """Add --file, --second and --cut to a command."""
    return file_option(second_option(cut_option(command)))


def read_text(text: str | None, file: Path | None, name: str = "text") -> str:
    """Return the text of the argument or of --file, exactly one of which must be passed."""
    from heedful.text import FileSource

    if (text is None) == (file is None):
        raise click.UsageError(f"give the {name} either as an argument or with --file")
    if file is not None and file.is_dir():
        raise ArgumentError(f"the folder {file}", expected="a file, or - for standard input")
    if file is not None:
        text = ""
        for piece in FileSource((str(file),)).pieces():
            text += piece
            if len(text) > MAX_TEXT:
                raise TextError(
                    f"{file} has more than {MAX_TEXT:,} characters",
                    expected="a text of a few contexts; only `heedful train` reads longer ones",
                    remedy="pass a part of it",
                )
    if not text:
        raise ArgumentError(f"an empty {name}", expected="at least one character")
    return text


def optional_text(image: Path | None, text: str | None, file: Path | None) -> str | None:
    """Return the text as `read_text` does; None if there is an image and no text."""
    return None if image is not None and text is file is None else read_text(text, file)


def is_recording(path: Path) -> bool:
    """Return whether a path means a recording: a file, or a missing path ending in .safetensors."""
    is_file = os.path.isfile(path)  # Path.is_file raises if a text is too long for a file name
    return is_file or (path.suffix == ".safetensors" and not os.path.isdir(path))


def refuse_with_recording(source: Path | str, **options: Any) -> None:
    """Raise `UsageError` for the first option that was passed, because it needs a model."""
    refuse(f"needs a model; {source} is a recording, whose text is fixed.", **options)


def note(line: object) -> None:
    """Print a line on standard error; control characters become visible signs."""
    click.echo(printable(str(line)), err=True)


@contextmanager
def notices(*kinds: type[Warning]) -> Iterator[None]:
    """Print warnings of these kinds on standard error; hide all other `UserWarning`s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, *_, **__: note(message)
        yield


def record_text(
    opened: LoadedModel,
    text: str | None,
    second: str | None = None,
    image: Path | None = None,
    *,
    verify: bool = False,
    **options: Any,
) -> Recording:
    """Call `opened.record` with a progress bar; report truncated texts and unrecorded layers.

    Raises:
        ArgumentError: an image for a model that cannot read images.
    """
    from heedful.cli.proofs import print_missed
    from heedful.loaded import ImageWarning, TruncationWarning
    from heedful.views.progress import progress_bar

    if image is not None and not opened.reads_images:
        raise ArgumentError(
            f"--image for a model of the kind {type(opened.model).__name__}",
            expected="a model with an image processor (preprocessor_config.json)",
        )
    texts: Any = (text, second)
    if image is not None:
        options["image"] = image
    with progress_bar("recording") as report, notices(TruncationWarning, ImageWarning):
        recording = opened.record(*texts, verify=verify, progress=report, **options)
    print_missed(recording, verify)
    return recording
