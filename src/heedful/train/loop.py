"""The training loop: a generator of events, each step a function of the state, seed and step.

It writes numbers and checkpoints; who iterates over it draws them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from heedful.errors import HeedfulError
from heedful.files import alone, save_tensors
from heedful.models import GPT, Bert, Seq2Seq, parameters_of
from heedful.models.configurations import CHECKPOINTS
from heedful.train import checkpoint
from heedful.train.chance import BETTER, chance
from heedful.train.checkpoint import Metrics, Progress, saved_step
from heedful.train.freed_memory import keep_freed_memory
from heedful.train.optimizers import learning_rate, make_optimizer, set_rates, slower
from heedful.train.settings import TrainSettings
from heedful.train.tasks import Task

# In one pass of validation, where a training batch has fewer: logits (32 MB), and on a CPU tokens,
# whose states then stay in its caches
VALIDATION_LOGITS, VALIDATION_TOKENS = 1 << 23, 1 << 13


@dataclasses.dataclass(frozen=True)
class Step:
    """A step was taken: its training loss in nats per token, its targets, and how long it took.

    `loss` is that of its own batch, `mean` goes over the latest tenth of the steps, at most 50.
    """

    step: int
    loss: float
    mean: float
    rate: float
    tokens: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Validation:
    """The whole validation split was read; `best` where the loss was the lowest so far."""

    step: int
    loss: float
    best: bool


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    step: int


@dataclasses.dataclass(frozen=True)
class Noticed:
    """Something was found that the user should know: a sentence."""

    step: int
    words: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """Training is over: "finished", "early" (no lower validation loss) or "stopped" (asked to)."""

    step: int
    why: str


Event: TypeAlias = Step | Validation | Saved | Noticed | Ended


class Training:
    """A run in a directory; `events` trains it and says what happens.

    Args:
        directory: where `model.safetensors` (the best), `state/last.safetensors` and
            `metrics.jsonl` go.
        model: the model, on its device.
        task: what it is trained on.
        settings: how to train.
    """

    def __init__(
        self, directory: Path, model: GPT | Bert | Seq2Seq, task: Task, settings: TrainSettings
    ) -> None:
        self.directory, self.model, self.task, self.settings = directory, model, task, settings
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, settings)
        self.parameters = list(model.parameters())
        self.progress = Progress()
        self._stopping = False

    def restore(self) -> bool:
        """Go back to the last checkpoint; False where nothing was saved yet."""
        path = self.directory / CHECKPOINTS["last"]
        if not path.is_file():
            return False
        self.progress = checkpoint.restore(path, self.model, self.optimizer)
        return True

    def stop(self) -> None:
        """Save and end after the step that is under way."""
        self._stopping = True

    def events(self) -> Iterator[Event]:
        """Train until the last step, an early stop, or `stop`; yield what happens."""
        with alone(self.directory / "state"):
            yield from self.owned_events()

    def owned_events(self) -> Iterator[Event]:
        """As `events`, in a directory that nobody else writes in: its `alone` is the caller's."""
        keep_freed_memory()
        metrics = Metrics(self.directory / "metrics.jsonl", self.progress.step)
        try:
            yield from self._events(metrics)
        finally:
            metrics.close()

    def _events(self, metrics: Metrics) -> Iterator[Event]:
        self.model.train()
        saved, due = self.progress.step, False
        if metrics.lost:
            yield Noticed(saved, metrics.lost)
        while True:
            yield from self._validate(metrics)
            why = self._why_end()
            step = self.progress.step
            due = due or (step % self.settings.save_every == 0 and step != saved)
            if (why or due) and self._may_be_saved(metrics, last=bool(why)):
                yield self._save(metrics)
                saved, due = step, False
            if why:
                yield Ended(step, why)
                return
            yield self._step(metrics)

    def _may_be_saved(self, metrics: Metrics, last: bool) -> bool:
        """Whether a checkpoint is worth more than the one before; a spike of the loss waits.

        Raises:
            HeedfulError: what was learned is lost: the loss is no better than chance, which it was.
        """
        was_better = metrics.lowest < BETTER * self.chance
        if not was_better or metrics.latest < self.chance:
            return True
        if last or metrics.mean >= self.chance:
            raise self._spoiled(
                f"the training loss is {metrics.mean:.3f} after {self.progress.step:,} steps, no "
                f"better than chance ({self.chance:.3f}), and was {metrics.lowest:.3f}",
                metrics,
            )
        return False

    @functools.cached_property
    def chance(self) -> float:
        """The loss of guessing by frequency alone, in nats per token."""
        return chance(self.task)

    def evaluate(self, data: Any) -> float | None:
        """Mean loss over all of a split, in nats per token; None where asked to stop.

        Labels are not smoothed, so that runs can be compared.
        """
        self.model.eval()
        try:
            return self._mean_loss(data)
        finally:
            self.model.train()

    @torch.inference_mode()
    def _mean_loss(self, data: Any) -> float | None:
        total, count = 0.0, 0
        tokens = VALIDATION_LOGITS // self.model.config.vocabulary
        if self.device.type == "cpu":
            tokens = min(tokens, VALIDATION_TOKENS)
        most = max(self.settings.batch, tokens // self.task.context_length)
        for batch in self.task.every(data, most):
            if self._stopping:
                return None
            targets = self.task.targets(batch)
            total += float(self._loss(batch, smoothing=0.0)) * targets
            count += targets
        return total / count

    def _step(self, metrics: Metrics) -> Step:
        settings, step = self.settings, self.progress.step
        began = time.perf_counter()
        set_rates(self.optimizer, step, settings)
        for parameter in self.parameters:
            parameter.grad = None
        parts = [self._backward(step, part) for part in range(settings.accumulation)]
        loss = sum(loss for loss, _ in parts)
        self._check_finite("training loss is", loss, metrics)
        if settings.clip:
            nn.utils.clip_grad_norm_(self.parameters, settings.clip)
        self.optimizer.step()
        self.progress.step += 1
        rate = learning_rate(step, settings)
        mean = metrics.write_step(step + 1, loss, rate)
        tokens = sum(targets for _, targets in parts)
        return Step(step + 1, loss, mean, rate, tokens, time.perf_counter() - began)

    def _check_finite(self, what: str, value: float, metrics: Metrics) -> None:
        """Refuse what would spoil the weights, before it does and before they are saved."""
        if not math.isfinite(value):
            raise self._spoiled(f"the {what} {value} after {self.progress.step:,} steps", metrics)

    def _spoiled(self, what: str, metrics: Metrics) -> HeedfulError:
        """The error of a run that came to nothing, with where it can go on from."""
        kept = saved_step(self.directory)
        rate = slower(self.settings)
        is_good = kept is not None and metrics.lowest < BETTER * self.chance
        return HeedfulError(
            what,
            cause="a learning rate that is too high",
            remedy=f"the checkpoint of step {kept:,}, which is better, was kept: continue from it "
            f"with --resume {rate}"
            if is_good
            else f"no checkpoint is better than chance: train again with --overwrite {rate}",
        )

    def _backward(self, step: int, part: int) -> tuple[float, int]:
        """Add the gradient of one batch; its part of the step's loss, and its targets."""
        settings, key = self.settings, (self.settings.seed, step, part)
        _seed_dropout(int(np.random.default_rng(key).integers(2**63)), self.device)
        batch = self.task.draw(settings.batch, key)
        loss = self._loss(batch, settings.label_smoothing) / settings.accumulation
        loss.backward()
        return loss.item(), self.task.targets(batch)

    def _loss(self, batch: Any, smoothing: float) -> torch.Tensor:
        reduced = self.settings.precision == "bfloat16"
        batch = type(batch)(*(tensor.to(self.device) for tensor in batch))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=reduced):
            return self.task.loss(self.model, batch, smoothing)

    def _validate(self, metrics: Metrics) -> Iterator[Event]:
        progress, settings = self.progress, self.settings
        due = progress.step % settings.evaluate_every == 0 or progress.step == settings.steps
        if not due or progress.evaluated == progress.step or not len(self.task.validation):
            return
        loss = self.evaluate(self.task.validation)
        if loss is None:
            return
        self._check_finite("validation loss is", loss, metrics)
        best = loss < progress.best
        progress.evaluated = progress.step
        progress.waited = 0 if best else progress.waited + 1
        if best:
            progress.best, progress.best_step = loss, progress.step
            self._save_weights()
        metrics.write(step=progress.step, validation_loss=loss)
        yield Validation(progress.step, loss, best)

    def _why_end(self) -> str | None:
        if self._stopping:
            return "stopped"
        if self.progress.step >= self.settings.steps:
            return "finished"
        early = self.settings.patience and self.progress.waited >= self.settings.patience
        return "early" if early else None

    def _save(self, metrics: Metrics) -> Saved:
        size = float(nn.utils.get_total_norm([p.detach() for p in self.parameters]))
        self._check_finite("norm of the weights is", size, metrics)
        checkpoint.save(
            self.directory / CHECKPOINTS["last"], self.model, self.optimizer, self.progress
        )
        if self.progress.best_step < 0:  # nothing was validated, so the last is the best known
            self._save_weights()
        return Saved(self.progress.step)

    def _save_weights(self) -> None:
        about = {"step": self.progress.step, "validation_loss": self.progress.best}
        save_tensors(self.directory / CHECKPOINTS["best"], parameters_of(self.model), about)


def _seed_dropout(seed: int, device: torch.device) -> None:
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also prepares every GPU
    else:
        torch.manual_seed(seed)
