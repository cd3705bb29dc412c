"""A process that has made another type or device its default, as people do who have a GPU."""

from contextlib import contextmanager

import torch


@contextmanager
def default_type(kind):
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def default_elsewhere():
    """A device on which nothing can be computed, so that nothing that is put there goes unseen."""
    return torch.device("meta")
