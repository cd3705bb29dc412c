"""The scores of a call as a test compares them."""

from heedful.recorder.kept.head_types import evidence


def means(call):
    """(H,) for each score, and for entropy and distance."""
    return {name: found.mean for name, found in evidence(call).items()}
