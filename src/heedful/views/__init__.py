"""Floor 5: what a person sees. Nothing is imported here: a picture costs only who asks for it."""
