"""Floor 5: what a user sees. Imports nothing, so that each view loads only what it needs."""
