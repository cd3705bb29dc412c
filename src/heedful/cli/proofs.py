"""What proves a recording, as commands tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from heedful.views.terminal import many

if TYPE_CHECKING:
    from rich.console import Console

    from heedful.recording import Recording


class Proven(Protocol):
    """What says how much of it is certain."""

    @property
    def proof(self) -> str:
        """One word."""

    @property
    def why(self) -> str:
        """What is missing."""


class Certified(Protocol):
    """A recording, or what was gathered over many."""

    def certificate(self) -> Sequence[tuple[str, Proven]]:
        """Each call by its name."""


def told(recording: Certified) -> str:
    """How many calls are proved, assumed and so on, in one line.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> told(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))
    'unproved'
    """
    words = Counter(check.proof for _, check in recording.certificate())
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{many(number, 'call')} {word}" for word, number in words.items())


def reasons(recording: Certified) -> list[str]:
    """What is missing to a proof, each reason once, with how many calls it is missing in."""
    calls = recording.certificate()
    whys = Counter((check.proof, check.why) for _, check in calls if check.why)
    return [
        f"{word}: {why}" + ("" if number == len(calls) else f" ({many(number, 'call')})")
        for (word, why), number in whys.items()
    ]


def show(recording: Certified, screen: Console) -> None:
    """Print beneath a table what proves it, and what is missing."""
    screen.print(f"\nproof: {told(recording)}", style="dim", highlight=False)
    for reason in reasons(recording):
        screen.print(reason, style="dim", highlight=False)


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
            "why": check.why,
            "worst": None if check.worst != check.worst else check.worst,
            "tolerance": check.tolerance,
        }
        for i, (call, (_, check)) in enumerate(zip(recording, recording.certificate(), strict=True))
    ]
