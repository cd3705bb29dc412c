"""The ways in which attention is seen while a model runs; each makes an `Observed` of a call."""
