"""`--image`: what a model that looks at images is given."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.options import read_text
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.opened import Opened
    from heedful.recording import Recording


def _there(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A path to a file; one to nothing is refused before torch is imported."""
    if path is not None and not path.is_file():
        raise ArgumentError(f"no image {path}", remedy="check the path")
    return path


image_option = click.option(
    "--image",
    type=click.Path(path_type=Path),
    callback=_there,
    help="An image, for a model that looks at one; TEXT may be left out then.",
)


def text_beside(
    image: Path | None, text: str | None, file: Path | None, second: str | None = None
) -> str | None:
    """The text that a model reads; beside an image there may be none.

    Raises:
        UsageError: no text and no image, two of one, or a second text beside an image.
    """
    if image is None:
        return read_text(text, file)
    if second is not None:
        raise click.UsageError("--second does not go with --image.")
    return None if text is None and file is None else read_text(text, file)


def record_image(
    opened: Opened, image: Path, text: str | None, cut: bool, **options: Any
) -> Recording:
    """As `opened.record` of an image, told in a terminal: why no picture is shown, what is missed.

    Raises:
        ArgumentError: a model that looks at no images.
    """
    from heedful.cli.proofs import show_missed
    from heedful.opened import PictureWarning
    from heedful.views.progress import share_done

    if not opened.reads_images:
        raise ArgumentError(
            f"--image for a model of the kind {type(opened.model).__name__}",
            expected="a model with an image processor (preprocessor_config.json)",
        )
    with share_done("recording") as tell, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        recording = opened.record(text, image=image, cut=cut, progress=tell, **options)  # type: ignore[arg-type]
    for one in told:
        if issubclass(one.category, PictureWarning):
            click.echo(str(one.message), err=True)
    show_missed(recording, options.get("verify", False))
    return recording
