"""Floor 4: from a text to a trained model. It writes numbers and files; it draws nothing."""

from heedful.device import choose_device
from heedful.train.checkpoint import Progress, read_metrics
from heedful.train.loop import Ended, Event, Saved, Step, Training, Validation
from heedful.train.masked_words import MaskedWords
from heedful.train.run import (
    Plan,
    Prepared,
    absolute,
    begin,
    has_plan,
    has_run,
    new_plan,
    open_training,
    prepare_run,
    read_plan,
    replace,
)
from heedful.train.settings import (
    PRESETS,
    Recipe,
    TextSettings,
    TrainSettings,
    preset,
    read_toml,
)
from heedful.train.tasks import NextToken, Task, Translating

__all__ = [
    "NextToken",
    "Ended",
    "Event",
    "MaskedWords",
    "PRESETS",
    "Plan",
    "Prepared",
    "Progress",
    "Recipe",
    "Saved",
    "Step",
    "Task",
    "TextSettings",
    "TrainSettings",
    "Training",
    "Translating",
    "Validation",
    "absolute",
    "begin",
    "choose_device",
    "has_plan",
    "has_run",
    "new_plan",
    "open_training",
    "prepare_run",
    "preset",
    "read_metrics",
    "read_plan",
    "read_toml",
    "replace",
]
