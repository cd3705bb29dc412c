"""heedful: attention from first principles."""

__version__ = "0.1.0"
