"""Whose the axes of a call are, and what stands along them: texts, heads, padding, ids."""
