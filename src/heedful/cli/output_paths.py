"""Where files are written: refused before anything is opened, and nothing that is there is lost."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import click

from heedful.errors import ArgumentError, SaveError
from heedful.files import check_free, saving

SUFFIXES = ("png", "svg", "pdf")  # those of `pictures.saving`, which would bring matplotlib


def check_folder(path: Path) -> None:
    """Refuse a file in a folder that is not there or cannot be written; `SaveError`."""
    with saving(path), TemporaryFile(dir=path.parent):
        return


def check_page(path: Path, overwrite: bool) -> None:
    """Refuse a place where no page can be written; `SaveError`."""
    if path.is_dir():
        raise SaveError(f"{path} is a folder", expected="the name of a file, such as page.html")
    check_free(path, overwrite)
    check_folder(path)


def check_picture(out: Path, overwrite: bool) -> None:
    """Refuse a name that is no picture's, and a file that is there.

    Raises:
        ArgumentError: another suffix, or a folder.
        SaveError: a file that is there.
    """
    if out.suffix[1:].lower() not in SUFFIXES or out.is_dir():
        raise ArgumentError(
            f"{out}{', a folder' if out.is_dir() else ''}",
            expected="the name of a picture, which ends in .png, .svg or .pdf",
        )
    check_free(out, overwrite)


def picture_paths(
    source: Path, kinds: tuple[str, ...], out: Path | None, overwrite: bool
) -> dict[str, Path]:
    """Where the pictures of `heedful plot` go, by their kinds: into one file, or into a folder.

    Raises:
        ArgumentError: a file that is no picture's.
        SaveError: a picture that is there.
    """
    if out is not None and (out.is_file() or (out.suffix[1:].isalpha() and not out.is_dir())):
        if len(kinds) > 1:
            raise click.UsageError(f"--out {out} is one file; several pictures need a folder.")
        check_picture(out, overwrite)
        return {kinds[0]: out}
    folder = out or _own_folder(source)
    paths = {kind: folder / f"{kind}.png" for kind in kinds}
    for path in paths.values():
        check_free(path, overwrite)
    return paths


def _own_folder(source: Path) -> Path:
    """That of a run for its pictures; one beside any other model, which is left as it is."""
    from heedful.files import check_no_links
    from heedful.files.run_identity import is_described_by_us, read_config
    from heedful.train.run_files import PICTURES

    if not (source / "config.json").is_file() or not is_described_by_us(read_config(source)):
        return Path(PICTURES)
    check_no_links([source / PICTURES])
    return source / PICTURES
