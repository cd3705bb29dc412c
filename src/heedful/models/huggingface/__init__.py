"""What the hub's formats hold, read and written: configurations, parameters, checkpoints."""
