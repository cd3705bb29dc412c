"""What is hardly attention."""

LAYOUTS: dict = {}
