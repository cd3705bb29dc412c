"""Watching heads form: at chosen steps, what every head does on one text, and a recording of it.

The scores are those of `heedful heads`, and the largest logit. The model reads the text as it would
anywhere else: in evaluation mode, without gradients, so that training goes on as if nobody looked.
It is seen with the weights that are trained, not with their running mean.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from heedful.files import make_directory
from heedful.models import GPT, Bert
from heedful.ops import statistics as of
from heedful.recorder import record
from heedful.recording import Call, Recording
from heedful.recording.head_types import BY_TOKENS, STATISTICS
from heedful.text import Tokenizer
from heedful.train.passes import Passes
from heedful.train.settings import TrainSettings
from heedful.train.watched import LOGIT, MOST, SCORES, Watched, moments, recording_path
from heedful.train.watched_text import watched_text

SHARE = 0.02  # of the time of training, at most
# What a moment and a step cost, about, in seconds on two cores; only their ratio matters
FIXED, OF_LAYER, STEP_OF_LAYER, PER_SECOND, PER_SECOND_ELSEWHERE = 0.010, 0.003, 0.001, 1e11, 5e13


class Watch:
    """What looks at a model while it is trained.

    Args:
        tokenizer: the model's.
        settings: `watch` is the text, `watch_every` the steps between two looks.

    Raises:
        ArgumentError: a text of fewer than two tokens.
    """

    def __init__(self, model: GPT | Bert, tokenizer: Tokenizer, settings: TrainSettings) -> None:
        self.model, self.tokenizer = model, tokenizer
        ids, segments, self.left_out = watched_text(model.config, tokenizer, settings.watch or "")
        device = next(model.parameters()).device
        self.ids = torch.tensor([ids], device=device)
        self.given = {"segments": torch.tensor([segments], device=device)} if segments else {}
        most = affordable(model, settings, self.tokens)
        self.moments = moments(settings.steps, most, settings.watch_every)

    @property
    def tokens(self) -> int:
        """How many tokens of the text are read."""
        return self.ids.shape[1]

    def look(self, passes: Passes, directory: Path, step: int, *, keeps: bool = True) -> Watched:
        """Record the text, write the recording into the run, and score every head.

        Args:
            passes: how the model is run.
            keeps: whether this process writes the recording; of several one does.

        Raises:
            SaveError: the recording cannot be written.
        """
        recording = self._recorded(passes)
        if keeps:
            path = recording_path(directory, step)
            make_directory(path.parent)
            recording.save(path)
        return Watched(step, scores_of(recording))

    def _recorded(self, passes: Passes) -> Recording:
        was_training = self.model.training
        self.model.eval()
        try:
            with record(self.model, tokenizer=self.tokenizer) as recording:
                passes.looking(lambda model: model(self.ids, **self.given))
        finally:
            self.model.train(was_training)
        recording.tokens = [self.tokenizer.pieces(self.ids[0].tolist())]
        return recording


def scores_of(recording: Recording) -> dict[str, list[list[float | None]]]:
    """Each score of each call's heads, as a line of `metrics.jsonl` has it: four digits.

    Returns:
        for each of `SCORES`, and for the largest logit, a list for each call, a number a head.
    """
    calls = [_scores(call) for call in recording]
    return {name: [call[name] for call in calls] for name in (*SCORES, LOGIT)}


def _scores(call: Call) -> dict[str, list[float | None]]:
    names = [name for name in SCORES if call.ids is not None or name not in BY_TOKENS]
    statistics = [*(STATISTICS[name](call) for name in names), of.LargestScore()]
    *rows, highest = call.gathered(*statistics)
    found = {name: _rounded(of.mean(each)) for name, each in zip(names, rows, strict=True)}
    found[LOGIT] = _rounded(highest.nan_to_num(nan=-math.inf).amax(dim=-1))
    nothing: list[float | None] = [None] * call.shape[0]
    return {name: found.get(name, nothing) for name in (*SCORES, LOGIT)}


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in values.tolist()]


def affordable(model: GPT | Bert, settings: TrainSettings, tokens: int) -> int:
    """How many moments take at most a fiftieth of training, by the shapes alone.

    It measures nothing, so that a run that goes on looks when it would have looked. At most `MOST`,
    and two at the least.
    """
    config = model.config
    matrices = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    on_cpu = next(model.parameters()).device.type == "cpu"
    speed = PER_SECOND if on_cpu else PER_SECOND_ELSEWHERE
    read_in_step = settings.batch * settings.accumulation * config.context_length
    step = 6 * matrices * read_in_step / speed + STEP_OF_LAYER * config.layers
    moment = 2 * matrices * tokens / speed + FIXED + OF_LAYER * config.layers
    return max(2, min(MOST, int(SHARE * settings.steps * step / moment)))
