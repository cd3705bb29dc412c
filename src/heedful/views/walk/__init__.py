"""A walk through the steps of an explanation: in a terminal, as JSON, in pictures, as a page."""
