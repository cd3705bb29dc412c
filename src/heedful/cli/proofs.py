"""How much of a recording is certain, as commands tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

if TYPE_CHECKING:
    from rich.console import Console

    from heedful.recording import HeadTotals, Recording

    Certified: TypeAlias = Recording | HeadTotals


class Certain(NamedTuple):
    """What is known of a call, the worst of all texts: its `proof`, `layout` and `why`."""

    proof: str
    layout: str
    why: str


def certain(recording: Certified) -> list[Certain]:
    """What is known of each call, in their order.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> [call.proof for call in certain(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))]
    ['unproved']
    """
    from heedful.recording import HeadTotals

    found = recording.certificate()
    if isinstance(recording, HeadTotals):
        return [Certain(call.proof, call.layout, call.why) for _, call in found]
    calls = {call.index: call for text in recording.sequences for call in text}
    layouts = [calls[index].layout_of_axes for index in sorted(calls)]
    return [
        Certain(check.proof, word, "; ".join(filter(None, (check.why, why))))
        for (_, check), (word, why) in zip(found, layouts, strict=True)
    ]


def show(recording: Certified, screen: Console) -> None:
    """Print beneath a table what proves it, how its axes are known, and what is missing."""
    from heedful.recording.proof import in_words

    calls = certain(recording)
    screen.print(f"\n{in_words(calls)}", style="dim", highlight=False)
    show_reasons(calls, screen)


def show_reasons(calls: list[Certain], screen: Console) -> None:
    """Print what is missing to a proof, and warnings of layouts that are guessed."""
    from heedful.recording.proof import guesses, unproved

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
        found = counted(call.layout for call in certain(recording))
        click.echo(f"layout of {len(recording):,} calls: {found}", err=True)


def as_data(recording: Recording) -> list[dict[str, Any]]:
    """A call each: its name, layer, kind and shape, and what proves it; None where unknown."""
    known = zip(recording, certain(recording), recording.certificate(), strict=True)
    return [
        {
            "call": i,
            "name": call.name,
            "layer": call.layer,
            "pass_index": call.pass_index,
            "attention": call.kind,
            "shape": list(call.shape),
            "door": call.door,
            **of._asdict(),
            "worst": None if check.worst != check.worst else check.worst,
            "tolerance": check.tolerance,
        }
        for i, (call, of, (_, check)) in enumerate(known)
    ]
