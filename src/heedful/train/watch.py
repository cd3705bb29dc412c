"""Scores of all heads on a text, the watched text, at certain steps of training.

DIR/metrics.jsonl                       a line for each scored step: the scores of every head
DIR/watched/step-00000512.safetensors   a recording of the attention on the text after 512 steps

The scores are four scores of `heedful heads` and the largest logit. The model reads the text in
evaluation mode without gradients, so training is not affected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import ArgumentError
from heedful.files import make_directory, save_errors
from heedful.models import BertConfig, GPTConfig
from heedful.text import Tokenizer
from heedful.train.events import Watched
from heedful.train.run_files import WATCHED

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.models import GPT, Bert
    from heedful.recording import Call, Recording
    from heedful.train.parallel import ModelRunner
    from heedful.train.settings import TrainSettings

SCORES = ("entropy", "previous", "induction", "sink")
LOGIT = "largest_logit"
SCORINGS = 20  # about the number of scored steps after step 0, unless `watch_every` is set


class Watch:
    """Scores the heads of a GPT or a BERT on the text `settings.watch` during training.

    Raises:
        ArgumentError, TextError: as in `watched_text`.
    """

    def __init__(self, model: GPT | Bert, tokenizer: Tokenizer, settings: TrainSettings) -> None:
        import torch

        self.model, self.tokenizer = model, tokenizer
        ids, segments, self.left_out = watched_text(model.config, tokenizer, settings.watch or "")
        device = next(model.parameters()).device
        self.ids = torch.tensor([ids], device=device)
        self.inputs = {"segments": torch.tensor([segments], device=device)} if segments else {}
        self.steps = watch_steps(settings.steps, settings.watch_every)

    def record_step(
        self, runner: ModelRunner, directory: Path, step: int, *, save: bool = True
    ) -> Watched:
        """Record the text after a step and score every head; with `save`, write the recording."""
        from heedful.recorder import record  # takes 0.2 s, and only watched runs need it

        was_training = self.model.training
        self.model.eval()
        try:
            with record(self.model, tokenizer=self.tokenizer) as recording:
                runner.run_inference(lambda model: model(self.ids, **self.inputs))
        finally:
            self.model.train(was_training)
        recording.tokens = [self.tokenizer.pieces(self.ids[0].tolist())]
        if save:
            path = directory / WATCHED / f"step-{step:08}.safetensors"
            make_directory(path.parent)
            recording.save(path)
        return Watched(step, scores_of(recording))


def scores_of(recording: Recording) -> dict[str, list[list[float | None]]]:
    """Return `scores[name][call][head]`, to four significant digits, as in `metrics.jsonl`."""
    calls = [_scores(call) for call in recording]
    return {name: [call[name] for call in calls] for name in (*SCORES, LOGIT)}


def _scores(call: Call) -> dict[str, list[float | None]]:
    from heedful.ops import statistics
    from heedful.recording.head_scores import STATISTICS

    requests = [STATISTICS[name](call) for name in SCORES]
    *rows, highest = call.gather(*requests, statistics.LargestScore())
    scores = {name: _rounded(statistics.mean(row)) for name, row in zip(SCORES, rows, strict=True)}
    return scores | {LOGIT: _rounded(highest.nan_to_num(nan=-math.inf).amax(dim=-1))}


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in values.tolist()]


def watch_steps(steps: int, every: int = 0) -> list[int]:
    """Return the steps after which the heads are scored: every `every` steps.

    If `every` is 0, each step is about a constant multiple of the previous step. Step 0 and the
    last step are always included.

    >>> watch_steps(800)
    [0, 1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 55, 77, 108, 150, 210, 294, 410, 573, 800]
    >>> watch_steps(800, every=300)
    [0, 300, 600, 800]
    """
    powers = (round(steps ** (n / SCORINGS)) for n in range(SCORINGS))
    return sorted({0, steps, *(range(0, steps, every) if every else powers)})


def recordings_of(directory: Path) -> dict[int, Path]:
    """Return the paths of the recordings in a run directory, {step: path}, in order of steps."""
    paths = (directory / WATCHED).glob("step-[0-9]*.safetensors")
    steps = ((path.stem.removeprefix("step-"), path) for path in paths)
    return dict(sorted((int(step), path) for step, path in steps if step.isdecimal()))


def remove_recordings_after(directory: Path, step: int) -> None:
    """Remove the recordings of later steps, because a resumed run repeats them."""
    for recorded_step, path in recordings_of(directory).items():
        if recorded_step > step:
            with save_errors(path):
                path.unlink()


def scores_over_steps(
    metrics: Iterable[Mapping[str, Any]],
) -> tuple[list[int], dict[str, list[list[list[float | None]]]]]:
    """Return the scored steps and `scores[name][scoring][call][head]` from lines of the metrics."""
    lines = [line for line in metrics if WATCHED in line]
    scores = {name: [line[WATCHED][name] for line in lines] for name in (*SCORES, LOGIT)}
    return [line["step"] for line in lines], scores


def watched_text(
    config: GPTConfig | BertConfig, tokenizer: Tokenizer, text: str
) -> tuple[list[int], list[int] | None, int]:
    """Tokenize a text, truncated to the model's context.

    Return its ids, segments (BERT only), and the number of tokens cut off.

    Raises:
        ArgumentError: the text has fewer than two tokens.
        TextError: a character is not in the tokenizer's vocabulary.
    """
    if isinstance(config, BertConfig):
        bert: Any = tokenizer
        ids, segments = bert.inputs(text, max_tokens=config.context_length)[:2]
        length = len(bert.inputs(text).ids)
    else:
        all_ids = [*tokenizer.prefix_ids, *tokenizer.encode(text)]
        ids, segments, length = all_ids[: config.context_length], None, len(all_ids)
    if length < 2:
        raise ArgumentError(
            "a watched text of fewer than two tokens",
            expected="at least two tokens",
            remedy="pass a longer text to --watch",
        )
    return ids, segments, length - len(ids)
