"""Hugging Face formats, read and written: configurations, parameter names, checkpoints."""
