"""How much of a recording is certain, as commands tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from heedful.recording import HeadTotals, Recording
    from heedful.recording.known import Known


def calls_of(recording: Recording | HeadTotals) -> Sequence[Known]:
    """What is known of each call, in their order, the worst of all texts.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> [call.proof for call in calls_of(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))]
    ['unproved']
    """
    return [call for _, call in recording.certificate()]


def show(recording: Recording | HeadTotals, screen: Console) -> None:
    """Print beneath a table what proves it, how its axes are known, and what is missing."""
    from heedful.recording.proof import in_words

    screen.print(f"\n{in_words(calls_of(recording))}", style="dim", highlight=False)
    show_reasons(recording, screen)


def show_reasons(recording: Recording | HeadTotals, screen: Console) -> None:
    """Print what is missing to a proof, and warnings of layouts that are guessed."""
    from heedful.recording.proof import guesses, unproved

    calls = calls_of(recording)
    for line in unproved(calls):
        screen.print(line, style="dim", highlight=False)
    for line in guesses(calls):
        screen.print(line, style="yellow", highlight=False)


def show_missed(recording: Recording, is_verified: bool) -> None:
    """Print beside the output what was not recorded and, after --verify, the layouts."""
    from heedful.recording.proof import counted

    for name, reason in recording.missed.items():
        click.echo(f"attention of {name} was not recorded: {reason}", err=True)
    if is_verified:
        layouts = [call.layout for call in calls_of(recording)]
        click.echo(f"layout of {len(layouts):,} calls: {counted(layouts)}", err=True)


def as_data(recording: Recording) -> list[dict[str, Any]]:
    """A call each: its name, layer, kind and shape, and what proves it; None where unknown."""
    return [
        {
            "call": i,
            "name": call.name,
            "layer": call.layer,
            "pass_index": call.pass_index,
            "attention": call.kind,
            "shape": list(call.shape),
            "door": call.door,
            "proof": check.proof,
            "layout": check.layout,
            "why": check.why,
            "worst": None if check.worst != check.worst else check.worst,
            "tolerance": check.tolerance,
        }
        for i, (call, (_, check)) in enumerate(zip(recording, recording.certificate(), strict=True))
    ]
