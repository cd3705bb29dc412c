"""The ways in which attention is seen while a model runs, each told as `observed` has it."""
