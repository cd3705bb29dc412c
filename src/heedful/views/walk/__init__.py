"""Walks: the steps of an explanation, in a terminal, as JSON, as pictures or as an HTML page."""
