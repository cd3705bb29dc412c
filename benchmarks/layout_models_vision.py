"""Layouts of vision models."""

LAYOUTS: dict = {}
