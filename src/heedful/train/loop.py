"""The training loop: a generator of events, which also writes metrics and checkpoints.

A step depends only on the state (weights, optimizer state, progress), the seed and the step number,
so a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from heedful.device import choose_matmul_dtype
from heedful.errors import HeedfulError
from heedful.models import GPT, Bert, Seq2Seq
from heedful.models.directory import latest_checkpoint
from heedful.processes import Processes
from heedful.train import checkpoint
from heedful.train.batches import BatchIndex, take_turns
from heedful.train.checkpoint import saved_step
from heedful.train.compiled_pass import Loss, compile_loss
from heedful.train.events import Ended, Event, Noticed, Saved, Step, Validation, Watched
from heedful.train.metrics import Line, Metrics, Progress
from heedful.train.optimizers import make_optimizer, rate_factor, set_rates
from heedful.train.parallel import full_tensor, model_runner
from heedful.train.run_files import METRICS
from heedful.train.settings import TrainSettings
from heedful.train.tasks import Task
from heedful.train.watch import remove_recordings_after

if TYPE_CHECKING:
    from heedful.train.watch import Watch

# Largest validation batch, unless a training batch is larger: in logits (32 MB in float32), and on
# a CPU also in tokens, so that hidden states fit into the CPU's caches
VALIDATION_LOGITS, VALIDATION_TOKENS = 1 << 23, 1 << 13


class Training:
    """The training of a model in a run directory; iterate over `events` to train.

    Args:
        directory: the run directory, where `model.safetensors` (the best weights), a checkpoint
            (in `state/`) and `metrics.jsonl` are written.
        model: the model, already on `device`, unless the settings shard it.
        task: the data and the loss.
        settings: the settings of the training.
        processes: the processes that train together, each on its own sequences of a batch; default
            this process alone. All yield the same events. The first writes all files but shards.
        device: the device to train on; default the model's device.

    Set `watch` to score the heads on a text during training. Append functions to `callbacks` to
    receive each line of `metrics.jsonl`, in the process that writes the file.
    """

    def __init__(
        self,
        directory: Path,
        model: GPT | Bert | Seq2Seq,
        task: Task,
        settings: TrainSettings,
        processes: Processes | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.directory, self.model, self.settings = directory, model, settings
        self.task: Any = task
        self.processes = processes or Processes()
        self.device = device or next(model.parameters()).device
        self.matmul_dtype = choose_matmul_dtype(settings.precision, self.device)
        self.runner = model_runner(model, self.processes, self.device, settings.shard)
        self.optimizer = make_optimizer(model, settings, self.processes, self.matmul_dtype)
        self.watch: Watch | None = None
        self.callbacks: list[Callable[[Line], None]] = []
        self.parameters = list(model.parameters())
        self._training_loss = compile_loss(task.loss) if settings.compile else task.loss
        self.progress = Progress()
        self._stop_requested = self._stop_agreed = False

    def restore(self) -> bool:
        """Restore the latest checkpoint; return False if there is none."""
        if latest_checkpoint(self.directory) is None:
            return False
        self.progress = checkpoint.load(self.directory, self.model, self.optimizer, self.processes)
        return True

    def stop(self) -> None:
        """Request that training saves and ends after the current step, in all processes."""
        self._stop_requested = True
        self._stop_agreed = self.processes.is_single

    def events(self) -> Iterator[Event]:
        """Train until the last step, an early stop, or `stop`; yield an event for each action.

        The caller must hold the lock `heedful.train.run_directory.lock_run` while it iterates.
        """
        is_first = self.processes.is_first
        callbacks = self.callbacks if is_first else ()
        path = self.directory / METRICS
        metrics = Metrics(path, self.progress, is_writer=is_first, callbacks=callbacks)
        with closing(metrics):
            yield from self._events(metrics)

    def _events(self, metrics: Metrics) -> Iterator[Event]:
        self.model.train()
        if self.processes.is_first:
            remove_recordings_after(self.directory, self.progress.watched)
        saved_at = self.progress.step
        if metrics.is_truncated:
            lost = f"{METRICS} has lost lines up to step {saved_at:,}"
            yield Noticed(saved_at, f"{lost}; training continues without them.")
        if self.settings.compile:
            yield Noticed(saved_at, "The first step takes long, because it compiles the model.")
        while True:
            yield from self._validate(metrics)
            reason, step = self._end_reason(), self.progress.step
            if reason != "stopped":  # on a stop, scoring waits for the resumed run
                yield from self._watch_heads(metrics, is_last=reason == "early")
            if reason or (step % self.settings.save_every == 0 and step != saved_at):
                yield self._save(metrics)
                saved_at = step
            if reason:
                yield Ended(step, reason)
                return
            yield self._step(metrics)

    def evaluate(self, data: Any) -> float | None:
        """Return the mean loss over a split, in nats per token, or None if a stop was requested.

        Labels are not smoothed, so that runs with different smoothing can be compared. Each process
        evaluates a share of the batches. A process without a batch repeats that of another, because
        collectives need all processes.
        """
        total, count = 0.0, 0
        tokens = VALIDATION_LOGITS // self.model.config.vocabulary
        if self.device.type == "cpu":
            tokens = min(tokens, VALIDATION_TOKENS)
        batch_size = max(self.settings.batch, tokens // self.task.context_length)
        self.model.eval()
        try:
            for batch, is_new in take_turns(self.task.in_order(data, batch_size), self.processes):
                if self._should_stop():
                    return None
                targets = self.task.target_count(batch)
                loss = float(self._loss(self.runner.run_inference, self.task.loss, batch, 0.0))
                total += is_new * loss * targets
                count += is_new * targets
        finally:
            self.model.train()
        all_loss, all_targets = self.processes.all_reduce([total, count], self.device)
        return all_loss / all_targets

    def _should_stop(self) -> bool:
        """Whether a stop was requested in any process."""
        if not (self.processes.is_single or self._stop_agreed):
            self._stop_agreed = self.processes.any(self._stop_requested, self.device)
        return self._stop_agreed

    def _step(self, metrics: Metrics) -> Step:
        settings, step = self.settings, self.progress.step
        start = time.perf_counter()
        set_rates(self.optimizer, step, settings)
        for parameter in self.parameters:
            parameter.grad = None
        parts = [self._backward(part) for part in range(settings.accumulation)]
        loss, tokens = self._sum_over_processes(parts)
        self._check_finite("training loss is", loss)
        if settings.clip:
            nn.utils.clip_grad_norm_(self.parameters, settings.clip)
        self.optimizer.step()
        self.progress.step += 1
        rate = settings.learning_rate * rate_factor(step, settings)
        mean = metrics.write_step(step + 1, loss, rate)
        return Step(step + 1, loss, mean, rate, tokens, time.perf_counter() - start)

    def _sum_over_processes(self, parts: list[tuple[float, int]]) -> tuple[float, int]:
        """Sum losses and numbers of targets over the processes; also exchange requests to stop."""
        loss, targets = (sum(numbers) for numbers in zip(*parts, strict=True))
        if self.processes.is_single:
            return loss, targets
        numbers = [loss, targets, float(self._stop_requested)]
        loss, targets, stopping = self.processes.all_reduce(numbers, self.device)
        self._stop_agreed = self._stop_agreed or stopping > 0
        return loss, int(targets)

    def _check_finite(self, quantity: str, value: float) -> None:
        """Raise a `HeedfulError` if a value is not finite, so that bad weights are never saved."""
        if math.isfinite(value):
            return
        step = saved_step(self.directory)
        raise HeedfulError(
            f"the {quantity} {value} after {self.progress.step:,} steps",
            cause="a learning rate that is too high",
            remedy="train again with --overwrite and a lower --learning-rate"
            if step is None
            else f"the checkpoint of step {step:,} was kept: continue from it with --resume and a "
            "lower --learning-rate",
        )

    def _backward(self, part: int) -> tuple[float, int]:
        """Accumulate a batch's gradient; return this process's part of the loss and of the targets.

        Each process uses its own rows of the batch. torch averages the gradients over the
        processes. Each process first multiplies its loss by (its share of the batch's targets ×
        the number of processes), so the average is the gradient of the mean over all targets.
        """
        settings, processes, task = self.settings, self.processes, self.task
        key = settings.seed, self.progress.step, part
        index = BatchIndex(key, self.progress.read if settings.order == "shuffled" else None)
        rows = processes.share(settings.batch)
        batch = task.draw(settings.batch, index, rows)
        self.progress.read += settings.batch
        dropout = key if processes.is_first else (*key, processes.rank)
        seed = int(np.random.default_rng(dropout).integers(2**63))
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed also seeds every GPU
        else:
            torch.manual_seed(seed)
        with self.runner.accumulate(is_last=part == settings.accumulation - 1):
            run = self.runner.run_training
            loss = self._loss(run, self._training_loss, batch, settings.label_smoothing)
            loss = loss / settings.accumulation
            if not processes.is_single:
                loss = loss * (task.target_share(settings.batch, index, rows) * processes.size)
            loss.backward()
        return loss.item() / processes.size, task.target_count(batch)

    def _loss(self, run: Any, loss: Loss, batch: Any, smoothing: float) -> torch.Tensor:
        batch = type(batch)(*(tensor.to(self.device) for tensor in batch))
        is_bfloat16 = self.matmul_dtype == torch.bfloat16
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_bfloat16):
            return run(loss, batch, smoothing)

    def _validate(self, metrics: Metrics) -> Iterator[Event]:
        progress, settings = self.progress, self.settings
        due = progress.step % settings.evaluate_every == 0 or progress.step == settings.steps
        if not due or progress.evaluated == progress.step or not len(self.task.validation):
            return
        loss = self.evaluate(self.task.validation)
        if loss is None:
            return
        self._check_finite("validation loss is", loss)
        is_best = loss < progress.best
        progress.evaluated = progress.step
        progress.waited = 0 if is_best else progress.waited + 1
        if is_best:
            progress.best, progress.best_step = loss, progress.step
            self._save_weights()
        metrics.write(step=progress.step, validation_loss=loss)
        yield Validation(progress.step, loss, is_best)

    def _watch_heads(self, metrics: Metrics, is_last: bool) -> Iterator[Watched]:
        """Score the heads at the steps of `watch` and if `is_last`, at most once per step."""
        step = self.progress.step
        if self.watch is None or step == self.progress.watched:
            return
        if not (is_last or step in self.watch.steps):
            return
        save = self.processes.is_first
        watched = self.watch.record_step(self.runner, self.directory, step, save=save)
        self.progress.watched = step
        metrics.write(step=step, watched=watched.scores)
        yield watched

    def _end_reason(self) -> str | None:
        if self._stop_agreed:
            return "stopped"
        if self.progress.step >= self.settings.steps:
            return "finished"
        early = self.settings.patience and self.progress.waited >= self.settings.patience
        return "early" if early else None

    def _save(self, metrics: Metrics) -> Saved:
        size = float(full_tensor(nn.utils.get_total_norm([p.detach() for p in self.parameters])))
        self._check_finite("norm of the weights is", size)
        if self.progress.best_step < 0:  # no validation: the last weights are saved as the best
            self._save_weights()
        self.progress.metrics = metrics.checksum
        checkpoint.save(self.directory, self.model, self.optimizer, self.progress, self.processes)
        return Saved(self.progress.step)

    def _save_weights(self) -> None:
        checkpoint.save_weights(self.directory, self.model, self.progress, self.processes)
