"""Other default types and devices of torch, which some users set for a whole process."""

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
    """Return the device "meta", which computes nothing, so that any use of it is noticed."""
    return torch.device("meta")
