"""Floor 1: pictures of arrays with labels; they do not depend on models.

This package imports nothing, so that matplotlib is loaded only when a picture is drawn.
"""
