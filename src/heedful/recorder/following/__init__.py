"""Follows tensors below Python: which axes each has, and which part it plays in attention.

`operations.py` sees every operation of torch. `storages.py` holds what is known of each storage:
the axes that stand in it (read by `strides.py`, derived by `axis_rules.py`, for recurrent layers by
`recurrent.py`) and its role, from scores to weights (`roles.py`, `scores.py`, `score_changes.py`).
When weights meet values, a `Meeting` goes to the doors, which put its tensors in order with
`alignment.py`.
"""
