"""Decides whose the axes of a call are (batch, heads, queries, keys), and what is padding."""
