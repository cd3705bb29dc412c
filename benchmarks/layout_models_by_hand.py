"""Layouts written by hand."""

LAYOUTS: dict = {}
