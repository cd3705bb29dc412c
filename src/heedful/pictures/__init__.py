"""Pictures of labelled arrays with matplotlib; they do not depend on models.

This module imports nothing, so that matplotlib is loaded only when a picture is drawn.
"""
