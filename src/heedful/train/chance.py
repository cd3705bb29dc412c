"""What guessing costs that knows nothing but how often each token comes."""

from __future__ import annotations

import numpy as np

from heedful.train.batches import Which
from heedful.train.tasks import Task

COUNTED = 1 << 18  # tokens, about
BETTER = 0.9  # of chance: what has had a lower mean loss has learned more than frequencies


def chance(task: Task) -> float:
    """The entropy of a task's targets, in nats per token, over some 260,000 of them.

    It is the loss of a model that gives each token its share of the text, whatever stands before
    it. What is better once and no better later has lost what it had learned.
    """
    batch = task.draw(max(1, COUNTED // task.context_length), Which((0,)))
    counts = np.bincount(task.asked(batch).numpy(), minlength=1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
