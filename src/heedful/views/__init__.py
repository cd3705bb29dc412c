"""Floor 5: what a user sees. This module imports nothing, so a view loads only what it needs."""
