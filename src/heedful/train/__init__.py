"""Training of heedful's models: settings, data, optimizers, the training loop, checkpoints."""

from typing import TYPE_CHECKING

from heedful.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from heedful.train.events import Ended, Event, Saved, Step, Validation
    from heedful.train.loop import Training
    from heedful.train.metrics import read_metrics
    from heedful.train.plan import Plan, has_plan, has_run, new_plan, read_plan
    from heedful.train.presets import PRESETS, preset
    from heedful.train.run import Prepared, begin, open_training, prepare_run, replace
    from heedful.train.settings import Recipe, TextSettings, TrainSettings, read_toml
    from heedful.train.tasks import MaskedWords, NextToken, Task, Translating

__all__ = [
    "Ended", "Event", "MaskedWords", "NextToken", "PRESETS", "Plan", "Prepared", "Recipe",
    "Saved", "Step", "Task", "TextSettings", "TrainSettings", "Training", "Translating",
    "Validation", "begin", "has_plan", "has_run", "new_plan", "open_training", "prepare_run",
    "preset", "read_metrics", "read_plan", "read_toml", "replace",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
