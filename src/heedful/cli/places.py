"""Where `heedful plot` writes pictures."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

SUFFIXES = ("png", "svg", "pdf")
OTHERS = ("jpg", "jpeg", "gif", "webp", "tif", "tiff", "bmp", "eps", "ps")  # no folder is meant


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
    """Where the pictures go; nothing that is there is lost.

    Raises:
        ArgumentError: a file where a folder was meant.
        SaveError: a picture that is there.
    """
    from heedful.errors import ArgumentError
    from heedful.files import check_free, check_no_links
    from heedful.train.paths import PICTURES

    own = out.suffix[1:].lower() if out is not None and not out.is_dir() else ""
    if own in OTHERS:
        raise click.UsageError(f"--out {out}: pictures are written as {', '.join(SUFFIXES)}.")
    if out is not None and own in SUFFIXES:
        if suffix not in (None, own):
            raise click.UsageError(f"--out {out} and --format {suffix} are two formats.")
        if len(kinds) > 1:
            raise click.UsageError(
                f"--out {out} is one file, for {len(kinds)} pictures: name a folder."
            )
        places = Places(out.parent, own, out)
    else:
        if out is not None and out.is_file():
            raise ArgumentError(
                f"--out {out}, a file",
                expected="a folder, or a name that ends in .png, .svg or .pdf",
                remedy="choose another --out, or leave it out",
            )
        if out is None and _is_run(source):
            out = source / PICTURES
            check_no_links([out])
        places = Places(out or Path(PICTURES), suffix or "png")
    for kind in kinds:
        check_free(places.of(kind), overwrite)
    return places


def _is_run(source: Path) -> bool:
    """Whether it is a directory of `heedful train`, whose pictures are in it.

    A checkpoint in Hugging Face format is left as it is.
    """
    from heedful.files.belonging import is_described_by_us, read_config

    return (source / "config.json").is_file() and is_described_by_us(read_config(source))
