"""Where pictures are written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from heedful.errors import ArgumentError
from heedful.files import check_free

SUFFIXES = ("png", "svg", "pdf")  # those of `pictures.saving`, which would bring matplotlib
OTHERS = ("jpg", "jpeg", "gif", "webp", "tif", "tiff", "bmp", "eps", "ps")  # no folder is meant
EXPECTED = "the name of a picture, which ends in .png, .svg or .pdf"


def check_picture(out: Path, overwrite: bool) -> None:
    """Refuse, before anything is opened, a name that is no picture's, and a file that is there.

    Raises:
        ArgumentError: another suffix, or a folder.
        SaveError: a file that is there.
    """
    if out.suffix[1:].lower() not in SUFFIXES or out.is_dir():
        raise ArgumentError(f"{out}{', a folder' if out.is_dir() else ''}", expected=EXPECTED)
    check_free(out, overwrite)


class Places(NamedTuple):
    """Where pictures go: a folder and a suffix, or one file."""

    folder: Path
    suffix: str
    file: Path | None = None

    def of(self, kind: str) -> Path:
        """The path of a picture."""
        return self.file or self.folder / f"{kind}.{self.suffix}"


def places_for(
    source: Path, kinds: tuple[str, ...], suffix: str | None, out: Path | None, overwrite: bool
) -> Places:
    """Where the pictures of `heedful plot` go; nothing that is there is lost.

    Raises:
        ArgumentError: a file where a folder was meant.
        SaveError: a picture that is there.
    """
    ending = out.suffix[1:].lower() if out is not None and not out.is_dir() else ""
    if ending in OTHERS:
        raise click.UsageError(f"--out {out}: pictures are written as {', '.join(SUFFIXES)}.")
    if out is not None and ending in SUFFIXES:
        if suffix not in (None, ending) or len(kinds) > 1:
            raise click.UsageError(
                f"--out {out} is one {ending} file: name a folder for other formats, or for "
                "several pictures."
            )
        places = Places(out.parent, ending, out)
    elif out is not None and out.is_file():
        raise ArgumentError(f"--out {out}, a file", expected=f"a folder, or {EXPECTED}")
    else:
        places = Places(out or _own_folder(source), suffix or "png")
    for kind in kinds:
        check_free(places.of(kind), overwrite)
    return places


def _own_folder(source: Path) -> Path:
    """That of a run for its pictures; one beside any other model, which is left as it is."""
    from heedful.files.belonging import is_described_by_us, read_config
    from heedful.train.paths import PICTURES

    if not (source / "config.json").is_file() or not is_described_by_us(read_config(source)):
        return Path(PICTURES)
    return source / PICTURES
