"""Tensors followed below Python: their axes, and the part that each plays in attention."""
