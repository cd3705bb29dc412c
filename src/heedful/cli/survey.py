"""`--texts`: head scores over many texts, computed by one process or by several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heedful.cli.input_texts import note, notices
from heedful.cli.options import check_model
from heedful.errors import RunError

if TYPE_CHECKING:
    from heedful.loaded import LoadedModel, Survey
    from heedful.processes import Processes

MOST_LISTED = 10  # maximum number of left-out texts that the terminal lists; --json lists all

texts_option = click.option(
    "--texts", multiple=True, type=click.Path(path_type=Path), metavar="PATH",
    help="Average the scores over a text file, or over all texts of a folder; repeatable.",
)  # fmt: skip
include_option = click.option(
    "--include", metavar="PATTERN",
    help="With --texts: in folders, read only files that match PATTERN [*].",
)  # fmt: skip
context_option = click.option(
    "--context-length", type=click.IntRange(1), metavar="N",
    help="With --texts: split texts into contexts of N tokens [the model's context length].",
)  # fmt: skip


class TextSelection(NamedTuple):
    """Paths of texts, a pattern for file names, and the number of tokens in a context."""

    texts: tuple[Path, ...]
    include: str | None
    context_length: int | None

    def check(self) -> None:
        """Check the paths without importing torch, and print which files are not text.

        Raises:
            TextError: a path does not exist, or a folder has no matching file.
        """
        from heedful.text import text_files
        from heedful.text.sources import SkippedFilesWarning

        with notices(SkippedFilesWarning):
            text_files(self.texts, self.include or "*")

    def survey(
        self, opened: LoadedModel, processes: Processes, keeps_inputs: bool = False
    ) -> Survey:
        """Divide the texts among processes and compute head scores; print which texts failed."""
        from heedful.loaded import survey
        from heedful.recording import HeadTotals
        from heedful.views.progress import progress_bar

        # warnings are hidden, because `_print_left_out` prints the same texts and layers
        with progress_bar("recording", processes.is_first) as report, notices():
            result = survey(
                opened, self.texts, HeadTotals, include=self.include or "*",
                context_length=self.context_length, processes=processes, progress=report,
                keeps_inputs=keeps_inputs,
            )  # fmt: skip
        if processes.is_first:
            _print_left_out(result)
        return result


def open_shared(
    model: Path, opening: dict[str, Any], processes: Processes, check: Callable[[], None]
) -> LoadedModel:
    """Open a model on the device of this process, after the first process has called `check`."""
    if processes.is_first:  # only one process reports missing files
        with processes.publishing():
            check()
            check_model(model, opening)
    from heedful.device import choose_device
    from heedful.loaded import open_model

    device = str(choose_device(opening["device"], processes.local))
    return open_model(model, **opening | {"device": device})


def _print_left_out(result: Survey) -> None:
    for name, reason in sorted(result.found.missed.items()):
        note(f"attention of {name} was not recorded: {reason}")
    for text in result.left_out[:MOST_LISTED]:
        note(f"left out: {text}")
    if len(result.left_out) > MOST_LISTED:
        note(f"left out: {len(result.left_out) - MOST_LISTED:,} more; --json lists all")


def summary_line(result: Survey) -> str:
    """Return the numbers of texts, tokens and contexts, as a line to print below the table.

    Raises:
        RunError: no text could be read.
    """
    from heedful.views.terminal import plural

    if not result.contexts:
        raise RunError(
            "no text could be read",
            expected="at least one text",
            remedy="solve the problems that the lines above name",
        )
    return (
        f"over {plural(result.texts, 'text')}, {plural(result.tokens, 'token')} in "
        f"{plural(result.contexts, 'context')}: each score is the mean over all their queries"
    )


def as_data(result: Survey) -> dict[str, Any]:
    """Return the numbers of the survey and the texts that were left out, for --json."""
    counts = {"texts": result.texts, "contexts": result.contexts, "tokens": result.tokens}
    return counts | {"left_out": [text._asdict() for text in result.left_out]}
