"""Watching heads form: at chosen steps every head is scored on one text, and the text is recorded.

DIR/metrics.jsonl                       a line for each of these steps: the scores of every head
DIR/watched/step-00000512.safetensors   the attention on the text after 512 steps

The scores are those of `heedful heads`, and the largest logit. The model reads the text in
evaluation mode and without gradients, so training goes on as if nobody looked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.errors import ArgumentError
from heedful.files import make_directory, saving
from heedful.models import BertConfig, GPTConfig
from heedful.text import Tokenizer
from heedful.train.events import Watched
from heedful.train.run_files import WATCHED

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.models import GPT, Bert
    from heedful.recording import Call, Recording
    from heedful.train.parallel import Passes
    from heedful.train.settings import TrainSettings

SCORES = ("entropy", "previous", "induction", "sink")
LOGIT = "largest_logit"
LOOKS = 20  # after the first one, where the user did not choose their distance


class Watch:
    """Looks at a GPT or a BERT while it is trained, by the settings `watch` and `watch_every`.

    Raises:
        ArgumentError: a text of fewer than two tokens.
    """

    def __init__(self, model: GPT | Bert, tokenizer: Tokenizer, settings: TrainSettings) -> None:
        import torch

        self.model, self.tokenizer = model, tokenizer
        ids, segments, self.left_out = watched_text(model.config, tokenizer, settings.watch or "")
        device = next(model.parameters()).device
        self.ids = torch.tensor([ids], device=device)
        self.inputs = {"segments": torch.tensor([segments], device=device)} if segments else {}
        self.moments = moments(settings.steps, settings.watch_every)

    @property
    def tokens(self) -> int:
        """How many tokens of the text are read."""
        return self.ids.shape[1]

    def look(self, passes: Passes, directory: Path, step: int, *, keeps: bool = True) -> Watched:
        """Record the text after a step, write the recording if it `keeps` it, score every head."""
        recording = self._recorded(passes)
        if keeps:
            path = recording_path(directory, step)
            make_directory(path.parent)
            recording.save(path)
        return Watched(step, scores_of(recording))

    def _recorded(self, passes: Passes) -> Recording:
        from heedful.recorder import record  # 0.2 s, which a run that is not watched needs not

        was_training = self.model.training
        self.model.eval()
        try:
            with record(self.model, tokenizer=self.tokenizer) as recording:
                passes.looking(lambda model: model(self.ids, **self.inputs))
        finally:
            self.model.train(was_training)
        recording.tokens = [self.tokenizer.pieces(self.ids[0].tolist())]
        return recording


def scores_of(recording: Recording) -> dict[str, list[list[float | None]]]:
    """Each score: a list for each call, a number of four digits a head, as in `metrics.jsonl`."""
    calls = [_scores(call) for call in recording]
    return {name: [call[name] for call in calls] for name in (*SCORES, LOGIT)}


def _scores(call: Call) -> dict[str, list[float | None]]:
    from heedful.ops import statistics
    from heedful.recording.head_scores import STATISTICS

    wanted = [STATISTICS[name](call) for name in SCORES]
    *rows, highest = call.gathered(*wanted, statistics.LargestScore())
    scores = {name: _rounded(statistics.mean(row)) for name, row in zip(SCORES, rows, strict=True)}
    return scores | {LOGIT: _rounded(highest.nan_to_num(nan=-math.inf).amax(dim=-1))}


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in values.tolist()]


def moments(steps: int, every: int = 0) -> list[int]:
    """The steps after which the heads are looked at: in equal ratios, so dense at first.

    The first and the last step are always there. With `every`, each so many steps.

    >>> moments(800)
    [0, 1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 55, 77, 108, 150, 210, 294, 410, 573, 800]
    >>> moments(800, every=300)
    [0, 300, 600, 800]
    """
    ratios = (round(steps ** (n / LOOKS)) for n in range(LOOKS))
    return sorted({0, steps, *(range(0, steps, every) if every else ratios)})


def recordings_of(directory: Path) -> dict[int, Path]:
    """The recordings of a run that was watched, by their steps, in order."""
    paths = (directory / WATCHED).glob("step-[0-9]*.safetensors")
    steps = ((path.stem.removeprefix("step-"), path) for path in paths)
    return dict(sorted((int(step), path) for step, path in steps if step.isdecimal()))


def recording_path(directory: Path, step: int) -> Path:
    """The path of the recording of a step."""
    return directory / WATCHED / f"step-{step:08}.safetensors"


def forget_after(directory: Path, step: int) -> None:
    """Remove the recordings of later steps, as a run that goes back does with their metrics."""
    for at, path in recordings_of(directory).items():
        if at > step:
            with saving(path):
                path.unlink()


def scores_over_steps(
    metrics: Iterable[Mapping[str, Any]],
) -> tuple[list[int], dict[str, list[list[list[float | None]]]]]:
    """The steps at which a run was watched, and each score at each of them, from its metrics."""
    lines = [line for line in metrics if WATCHED in line]
    scores = {name: [line[WATCHED][name] for line in lines] for name in (*SCORES, LOGIT)}
    return [line["step"] for line in lines], scores


class WatchedText(NamedTuple):
    """The ids of a text, for a BERT the segments too, and how many tokens are left out."""

    ids: list[int]
    segments: list[int] | None
    left_out: int


def watched_text(config: GPTConfig | BertConfig, tokenizer: Tokenizer, text: str) -> WatchedText:
    """What a model of a configuration reads of a text: as much as its context holds.

    Raises:
        ArgumentError: a text of fewer than two tokens.
        TextError: a character that the tokenizer does not know.
    """
    if isinstance(config, BertConfig):
        bert: Any = tokenizer
        ids, segments = bert.inputs(text, most=config.context_length)[:2]
        length = len(bert.inputs(text).ids)
    else:
        every = [*tokenizer.first, *tokenizer.encode(text)]
        ids, segments, length = every[: config.context_length], None, len(every)
    if length < 2:
        raise ArgumentError(
            "a text to watch of a single token",
            expected="at least two",
            remedy="give a longer one to --watch",
        )
    return WatchedText(ids, segments, length - len(ids))
