"""Walks: the steps of an explanation in a terminal, as JSON, as pictures and as an HTML page."""
