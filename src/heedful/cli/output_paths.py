"""Checks of output paths, before a model is opened; --overwrite allows existing files."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryFile

import click

from heedful.errors import ArgumentError, SaveError
from heedful.files import check_free, save_errors

SUFFIXES = ("png", "svg", "pdf")  # as in `pictures.saving`, which imports matplotlib


def check_folder(path: Path) -> None:
    """Raise `SaveError` if the file's folder does not exist or is not writable."""
    with save_errors(path), TemporaryFile(dir=path.parent):
        return


def check_file(path: Path, overwrite: bool) -> None:
    """Raise `SaveError` if no file can be written to the path."""
    if path.is_dir():
        raise SaveError(f"{path} is a folder", expected="the name of a file")
    check_free(path, overwrite)
    check_folder(path)


def check_picture(out: Path, overwrite: bool) -> None:
    """Check that a picture can be written to the path.

    Raises:
        ArgumentError: the path is a folder, or its suffix is not in `SUFFIXES`.
        SaveError: the file exists, and `overwrite` is False.
    """
    if out.suffix[1:].lower() not in SUFFIXES or out.is_dir():
        raise ArgumentError(
            f"{out}{', a folder' if out.is_dir() else ''}",
            expected="the name of a picture file, which ends in .png, .svg or .pdf",
        )
    check_free(out, overwrite)


def picture_paths(
    source: Path, kinds: tuple[str, ...], out: Path | None, overwrite: bool
) -> dict[str, Path]:
    """Return the path of each picture of `heedful plot`, by kind: one file, or files in a folder.

    In a folder, pictures of a kind are numbered: heads.png, heads-2.png, … With `overwrite`, the
    first is replaced.

    Raises:
        UsageError: `out` is a file, but there are several kinds.
        ArgumentError, SaveError: as in `check_picture`.
    """
    if out is not None and (out.is_file() or (out.suffix[1:].isalpha() and not out.is_dir())):
        if len(kinds) > 1:
            raise click.UsageError(f"--out {out} is a file; several pictures need a folder.")
        check_picture(out, overwrite)
        return {kinds[0]: out}
    folder = out or _default_folder(source)
    for number in itertools.count(1):
        suffix = f"-{number}" if number > 1 else ""
        paths = {kind: folder / f"{kind}{suffix}.png" for kind in kinds}
        if overwrite or not any(path.exists() for path in paths.values()):
            break
    return paths


def _default_folder(source: Path) -> Path:
    """Return `pictures` in the directory of a run; for other models, in the current directory."""
    from heedful.files import check_no_links
    from heedful.files.run_identity import is_heedful_config, read_config
    from heedful.train.run_files import PICTURES

    if not (source / "config.json").is_file() or not is_heedful_config(read_config(source)):
        return Path(PICTURES)
    check_no_links([source / PICTURES])
    return source / PICTURES
