"""Proofs and axis layouts of recorded calls, as the commands print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heedful.cli.input_texts import note

if TYPE_CHECKING:
    from rich.console import Console

    from heedful.recording import HeadTotals, Recording
    from heedful.recording.proof import Provable


def certificates(recording: Recording | HeadTotals) -> Sequence[Provable]:
    """Return, for each call in order, the worst certificate among the sequences of its batch.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> [call.proof for call in certificates(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))]
    ['unproved']
    """
    return [call for _, call in recording.certificate()]


def print_proof(recording: Recording | HeadTotals, screen: Console) -> None:
    """Print the proofs and layouts of all calls beneath a table, then reasons and warnings."""
    from heedful.recording.proof import proof_summary

    screen.print(f"\n{proof_summary(certificates(recording))}", style="dim", highlight=False)
    print_reasons(recording, screen)


def print_reasons(recording: Recording | HeadTotals, screen: Console) -> None:
    """Print why calls are unproved, and a warning about guessed layouts."""
    from heedful.recording.proof import layout_warnings, proof_gaps

    calls = certificates(recording)
    for line in proof_gaps(calls):
        screen.print(line, style="dim", highlight=False)
    for line in layout_warnings(calls):
        screen.print(line, style="yellow", highlight=False)


def print_missed(recording: Recording, is_verified: bool) -> None:
    """Print to standard error which attention was not recorded and, after --verify, the layouts."""
    from heedful.recording.proof import counted

    for name, reason in recording.missed.items():
        note(f"attention of {name} was not recorded: {reason}")
    if is_verified:
        layouts = [call.layout for call in certificates(recording)]
        note(f"layout of {len(layouts):,} calls: {counted(layouts)}")


def as_data(recording: Recording) -> list[dict[str, Any]]:
    """Return the name, layer, kind, shape and proof of each call as JSON data."""
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
