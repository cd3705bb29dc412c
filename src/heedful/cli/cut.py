"""`--cut`: the option, and the line that tells how much of a text is read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

cut_option = click.option(
    "--cut",
    is_flag=True,
    help="Of a text that is longer than the model's context, read the beginning alone.",
)


@contextmanager
def cuts_told() -> Iterator[None]:
    """A text that is cut within is told of at once, in a line on standard error."""
    from heedful.opened import CutWarning

    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: object) -> None:
            if issubclass(category, CutWarning):
                click.echo(message, err=True)
            else:
                others(message, category, *where)  # type: ignore[arg-type]

        warnings.simplefilter("always", CutWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
