"""Floor 1: pictures of numbers with names. They know no model, so a recording can draw itself.

Nothing is imported here: a picture costs only who asks for it.
"""
