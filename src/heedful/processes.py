"""The processes that train together: which of them this is, its share, and what they tell.

Without others there is one, which has all the work, and nothing here does anything. `torchrun`
starts them (`torchrun.py`), and keeps a store of short messages, which outlives them. Numbers and
tensors go through a process group of torch: gloo, and NCCL between GPUs.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

from heedful.errors import ArgumentError, HeedfulError
from heedful.missing_processes import (
    AskedToEnd,
    EndedElsewhereError,
    LostError,
    hang_up,
    is_of_network,
    no_answer,
    reaching,
    where,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
JOINING = timedelta(minutes=5)  # in which all processes must have found the store
BEAT = 1.0  # seconds between two words that a process goes on
GRACE = 5.0  # seconds in which all that are left say so, once one is missed
LISTENING = 0.1  # seconds between two looks into the store; Ctrl-C is heard between them
TOLD, ENDED, FAILED = "told", "ended", b"failed"


class Processes:
    """This process among those that were started together.

    Args:
        rank: its number, from 0.
        size: how many there are.
        local: its number among those of its machine.
        restarts: how often torchrun has started all of them again.

    >>> one, two = Processes(rank=0, size=3), Processes(rank=1, size=3)
    >>> list(range(8))[one.share(8)], list(range(8))[two.share(8)]
    ([0, 1], [2, 3, 4])
    """

    def __init__(self, rank: int = 0, size: int = 1, local: int = 0, restarts: int = 0) -> None:
        self.rank, self.size, self.local, self.restarts = rank, size, local, restarts
        self._meetings, self._beat = count(), 0.0
        self.asked_to_end = AskedToEnd()

    @property
    def is_first(self) -> bool:
        """Whether this is the one that prints, draws and keeps the run's files."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other."""
        return self.size == 1

    def share(self, number: int) -> slice:
        """Which of so many things are this process's: none is another's too, none is left out."""
        return slice(number * self.rank // self.size, number * (self.rank + 1) // self.size)

    @cached_property
    def _kept(self) -> Any:
        """The store that all processes have, also those that torchrun starts again."""
        import torch.distributed as dist

        with reaching():
            store, _, _ = next(dist.rendezvous("env://", timeout=JOINING))
        while isinstance(store, dist.PrefixStore):  # of one attempt, in some versions of torch
            store = store.underlying_store
        return store

    @cached_property
    def _store(self) -> Any:
        """What these processes alone write there: what was said before a restart is not heard."""
        import torch.distributed as dist

        return dist.PrefixStore(f"attempt {self.restarts}", self._kept)

    @cached_property
    def launch(self) -> str | None:
        """What is the same in all processes that one torchrun starts, and only there.

        None without torchrun. Only the first process may ask.
        """
        if RESTARTS not in os.environ:
            return None
        with reaching():
            return self._kept.compare_set("heedful", "", uuid.uuid4().hex).decode()

    @contextmanager
    def telling(self) -> Iterator[None]:
        """As the first process: what goes wrong before it tells them ends the others too."""
        if self.is_alone:
            yield
            return
        try:
            with reaching():
                self._store  # noqa: B018 others look for it, where no torchrun keeps it
            yield
        except BaseException:
            with suppress(RuntimeError):
                self._store.set(TOLD, FAILED)
            raise

    def tell(self, value: Any) -> None:
        """Tell the others something that JSON holds, as the first process; they `hear` it."""
        if not self.is_alone:
            with reaching():
                self._store.set(TOLD, json.dumps(value))

    def hear(self) -> Any:
        """What the first process tells, once it does: it may take as long as it likes.

        Raises:
            EndedElsewhereError: it failed, and says so itself.
        """
        with reaching():
            while not self._store.check([TOLD]):
                time.sleep(LISTENING)
            said = self._store.get(TOLD)
        if said == FAILED:
            raise EndedElsewhereError("the first process could not go on")
        return json.loads(said)

    def told(self, do: Callable[[], T]) -> T:
        """What the first process does before all are together, for as long as it takes; to all.

        That is something that JSON holds. Raises as `hear`.
        """
        if not self.is_first:
            return self.hear()
        with self.telling():
            value = do()
            self.tell(value)
        return value

    def end(self, do: Callable[[], object]) -> None:
        """Let the first process do what comes last; the others wait for it, if not for long.

        Where one ends with a status other than 0, torchrun ends the others at once.
        """
        if self.is_first:
            do()
        if self.is_alone:
            return
        with suppress(RuntimeError):  # the store may have gone with the first process
            if self.is_first:
                self._store.set(ENDED, b"")
            else:
                self._wait_for(lambda: self._store.check([ENDED]))

    @staticmethod
    def _wait_for(is_so: Callable[[], bool], seconds: float = GRACE) -> bool:
        last = time.monotonic() + seconds
        while not (so := is_so()) and time.monotonic() < last:
            time.sleep(LISTENING)
        return so

    def first(self, do: Callable[[], T]) -> T:
        """Let the first process do something; all have what it returns.

        Raises:
            EndedElsewhereError: it failed, and says so itself.
        """
        value, error = cast(T, None), None
        if self.is_first:
            try:
                value = do()
            except Exception as found:
                error = found
        value, failed = self.each((value, error is not None))[0]
        if error is not None:
            raise error
        if failed:
            raise EndedElsewhereError("the first process could not go on")
        return value

    def goes_on(self) -> None:
        """Say that this process is at work, for those who wait for it in `meet`; often is cheap."""
        if not self.is_alone and time.monotonic() >= self._beat + BEAT:
            self._beat = time.monotonic()
            self._store.add(f"at work {self.rank}", 1)

    def meet(self, timeout: float) -> None:
        """Wait until all are here, for as long as those who are not say that they go on.

        Raises:
            HeedfulError: one that has said nothing for `timeout` seconds.
        """
        if self.is_alone:
            return
        place = f"here {next(self._meetings)}"
        others = range(1, self.size) if self.is_first else range(1)
        if not self.is_first:
            self._store.set(f"{place} {self.rank}", b"")
        heard = dict.fromkeys(others, (-1, time.monotonic()))
        while away := [rank for rank in heard if not self._store.check([f"{place} {rank}"])]:
            heard = {rank: self._heard(rank, *heard[rank], timeout) for rank in away}
            self.goes_on()
            time.sleep(min(0.05 * len(away), BEAT))
        if self.is_first:
            self._store.set(f"{place} 0", b"")

    def _heard(self, rank: int, said: int, at: float, timeout: float) -> tuple[int, float]:
        """How often another one has said that it goes on, and when that was new."""
        now = self._store.add(f"at work {rank}", 0)
        if now == said and time.monotonic() > at + timeout:
            raise HeedfulError(
                f"no word from process {rank} of {self.size} for {timeout:g} s",
                cause="its own error stands above or in its machine's output; where it says none, "
                "it was killed or hangs",
            )
        return (said, at) if now == said else (now, time.monotonic())

    @contextmanager
    def together(self, timeout: float, device: torch.device | None = None) -> Iterator[None]:
        """A process group of all of them; who does not answer in `timeout` seconds ends the others.

        What goes wrong is said by one process: by the one where it does, or, of one that ended or
        hangs, by the first of those that are left.

        Args:
            device: that of this process, whose tensors are told; the CPU by default.

        Raises:
            HeedfulError: a process is missing: it ended, hangs, or the network does.
            EndedElsewhereError: another process says what is wrong.
        """
        if self.is_alone:
            yield
            return
        import torch
        import torch.distributed as dist

        if not hasattr(dist, "all_gather_single"):
            raise HeedfulError(
                f"torch {torch.__version__} with several processes",
                expected="2.13 or newer",
                remedy="pip install --upgrade torch, or train in one process",
            )
        backend = "gloo"
        if device is not None and device.type not in ("cpu", "cuda"):
            raise ArgumentError(
                f"{self.size} processes on {device}",
                expected="CPUs or CUDA devices, between which torch carries tensors",
                remedy="--device cpu, or one process",
            )
        if device is not None and device.type == "cuda":
            backend = "cpu:gloo,cuda:nccl"
            if device.index is not None:
                torch.cuda.set_device(device)  # NCCL and FSDP2 take the current one
        try:
            dist.init_process_group(
                backend,
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=timeout),
            )
            yield
        except EndedElsewhereError:
            hang_up()
            raise
        except BaseException as error:
            hang_up()  # so that the others, which wait for an answer, need not
            if not is_of_network(error):
                self._say_once(error)
                raise
            raise self._missing(error, timeout) from error
        dist.destroy_process_group()

    def _say_once(self, error: BaseException) -> None:
        """Note that this process says its error; not where one before it says the same."""
        said = str(error)
        with suppress(RuntimeError):
            self._store.set(f"failed {self.rank}", said)
            before = [f"failed {rank}" for rank in range(self.rank)]
            if before and self._wait_for(lambda: self._any_said(before, said), 1.0):
                raise EndedElsewhereError(said) from error

    def _any_said(self, keys: list[str], said: str) -> bool:
        there = [key for key in keys if self._store.check([key])]
        return any(self._store.get(key).decode() == said for key in there)

    def _missing(self, error: BaseException, timeout: float) -> HeedfulError:
        """The error of a process that is missing, which is known by who else misses somebody."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            missed = time.monotonic()
            self.asked_to_end.listen()
            self._store.set(f"left {self.rank}", b"")
            self._wait_for(
                lambda: bool(
                    self._which("failed", others)
                    or not self._silent(others)
                    or self.asked_to_end.hurries(missed)
                )
            )
            failed, silent = self._which("failed", others), self._silent(others)
        except RuntimeError:
            return LostError(
                f"no answer from {where()}, which all processes are connected by",
                cause="that machine, its torchrun or the network has ended",
                remedy="what was saved is kept: go on with --resume",
            )
        if failed or any(rank not in silent for rank in range(self.rank)):
            return EndedElsewhereError(f"said by another of {self.size} processes")
        return no_answer(silent, self.size, error, timeout)

    def _which(self, what: str, ranks: list[int]) -> list[int]:
        return [rank for rank in ranks if self._store.check([f"{what} {rank}"])]

    def _silent(self, others: list[int]) -> list[int]:
        left = self._which("left", others)
        return [rank for rank in others if rank not in left]

    def sums(self, numbers: Sequence[float], device: Any = "cpu") -> list[float]:
        """The sum over all processes of each number, in float64."""
        if self.is_alone:
            return list(numbers)
        import torch
        import torch.distributed as dist

        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, here: bool, device: Any = "cpu") -> bool:
        """Whether it is so in any of the processes."""
        return self.sums([float(here)], device)[0] > 0

    def largest(self, values: Tensor) -> Tensor:
        """The largest of each value among the processes."""
        if not self.is_alone:
            import torch.distributed as dist

            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def each(self, value: T) -> list[T]:
        """What each process gives, in the order of their numbers."""
        if self.is_alone:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found
