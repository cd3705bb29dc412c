"""Finds what the axes of calls are of by probing (under construction)."""

from __future__ import annotations

from typing import Any


def verify(*given: Any) -> None:
    """Under construction."""
    raise NotImplementedError
