"""`--texts`: the heads of a model over many texts, by one process or by those of torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heedful.cli.input_texts import notices
from heedful.errors import RunError

if TYPE_CHECKING:
    from heedful.loaded import LoadedModel, Survey
    from heedful.processes import Processes

TOLD = 10  # texts that are left out are named one by one up to so many; --json names all

texts_option = click.option(
    "--texts",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Over all texts of a folder, or of a file; may be given several times.",
)
include_option = click.option("--include", help="With --texts, which files of a folder. [*]")
context_option = click.option(
    "--context-length",
    type=click.IntRange(1),
    metavar="N",
    help="With --texts, cut them into contexts of so many tokens. [the model's]",
)


class Chosen(NamedTuple):
    """Which texts, and in contexts of how many tokens."""

    texts: tuple[Path, ...]
    include: str | None
    context_length: int | None

    def check(self) -> None:
        """Refuse what is not there before torch is imported, and tell what is no text.

        Raises:
            TextError: a name is missing, or a folder has no such file.
        """
        from heedful.text import text_files
        from heedful.text.sources import LeftOutWarning

        with notices(LeftOutWarning):
            text_files(self.texts, self.include or "*")

    def over(self, opened: LoadedModel, here: Processes) -> Survey:
        """The heads over all texts, of which each process reads its share; losses are told."""
        from heedful.loaded import survey
        from heedful.recording import HeadTotals
        from heedful.views.progress import share_done

        with share_done("recording", here.is_first) as tell, notices():  # losses are told below
            together = survey(
                opened, self.texts, HeadTotals, include=self.include or "*",
                context_length=self.context_length, processes=here, progress=tell,
            )  # fmt: skip
        if here.is_first:
            _tell_of_losses(together)
        return together


def _tell_of_losses(together: Survey) -> None:
    for name, reason in sorted(together.found.missed.items()):
        click.echo(f"attention of {name} was not recorded: {reason}", err=True)
    for one in together.left_out[:TOLD]:
        click.echo(f"left out: {one}", err=True)
    if len(together.left_out) > TOLD:
        click.echo(f"left out: {len(together.left_out) - TOLD:,} more; --json has all", err=True)


def about(together: Survey) -> str:
    """What the numbers rest on, in a line beneath the table.

    Raises:
        RunError: on nothing, as no text could be read.
    """
    from heedful.views.terminal import many

    if not together.contexts:
        raise RunError(
            "no text could be read",
            expected="one at least",
            remedy="the lines above say of each what is wrong",
        )
    return (
        f"over {many(together.texts, 'text')}, {many(together.tokens, 'token')} in "
        f"{many(together.contexts, 'context')}: each score is the mean over all their queries"
    )


def as_json(together: Survey, heads: list[dict[str, Any]]) -> str:
    """All that is known, for programs."""
    return json.dumps(
        {
            "texts": together.texts,
            "contexts": together.contexts,
            "tokens": together.tokens,
            "left_out": [one._asdict() for one in together.left_out],
            "heads": heads,
        }
    )
