"""The processes that `torchrun` started together: which of them this is, and its share of the work.

Without others there is one, which has all the work, and nothing is sent. Before a process group is
there, the first process announces to the others what they need, through the store that torchrun
keeps; then everything goes through a process group of torch: gloo, and NCCL between GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from heedful.errors import ArgumentError, HeedfulError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
JOINING = timedelta(minutes=5)  # in which all processes must have found the store
GRACE = 5.0  # seconds in which all that are left report that they miss another one
POLL = 0.1  # seconds between two looks into the store; Ctrl-C is heard between them
RESUME = "what was saved is kept: go on with --resume"
ANNOUNCED, FAILED = "announced", b"failed"
# Process groups that were left. Gloo's last message may still wait for Python's lock when DDP's
# reducer is freed, and with it the last reference to its group, which waits for that message
ENDED: list[Any] = []


class EndedElsewhereError(HeedfulError):
    """Another process could not go on, and reports why: there is nothing to add."""


class LostError(HeedfulError):
    """Another process ended without an error of its own; torchrun knows what it died of."""


class Processes:
    """This process among those that were started together.

    Args:
        rank: its number, from 0.
        size: how many there are.
        local: its number among those of its machine.
        restarts: how often torchrun has started all of them again.

    >>> a, b = Processes(rank=0, size=3), Processes(rank=1, size=3)
    >>> list(range(8))[a.share(8)], list(range(8))[b.share(8)]
    ([0, 1], [2, 3, 4])
    """

    def __init__(self, rank: int = 0, size: int = 1, local: int = 0, restarts: int = 0) -> None:
        self.rank, self.size, self.local, self.restarts = rank, size, local, restarts

    @property
    def is_first(self) -> bool:
        """Whether this is the one that prints, draws and keeps the run's files."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other."""
        return self.size == 1

    def share(self, number: int) -> slice:
        """Which of `number` things are this process's: each thing is of exactly one process."""
        return slice(number * self.rank // self.size, number * (self.rank + 1) // self.size)

    @cached_property
    def store(self) -> Any:
        """torch's store of these processes; what stood there before a restart is not read."""
        import torch.distributed as dist

        with _reaching():
            store, _, _ = next(dist.rendezvous("env://", timeout=JOINING))
        return dist.PrefixStore(f"attempt {self.restarts}", store)

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """As the first process: an error before `announce` ends the others too."""
        if self.is_alone:
            yield
            return
        try:
            self.store  # noqa: B018 others look for it, where no torchrun keeps it
            yield
        except BaseException:
            with suppress(RuntimeError):
                self.store.set(ANNOUNCED, FAILED)
            raise

    def announce(self, value: Any) -> None:
        """As the first process, before there is a group: send all a value that JSON holds."""
        if not self.is_alone:
            with _reaching():
                self.store.set(ANNOUNCED, json.dumps(value))

    def announced(self) -> Any:
        """What the first process announces, however long that takes.

        Raises:
            EndedElsewhereError: it failed, and reports that itself.
        """
        with _reaching():
            while not self.store.check([ANNOUNCED]):
                time.sleep(POLL)
            value = self.store.get(ANNOUNCED)
        if value == FAILED:
            raise EndedElsewhereError("the first process could not go on")
        return json.loads(value)

    def announced_of(self, do: Callable[[], T]) -> T:
        """What the first process computes and announces, which JSON must hold; as `announced`."""
        if not self.is_first:
            return cast(T, self.announced())
        with self.announcing():
            value = do()
            self.announce(value)
        return value

    @contextmanager
    def together(self, timeout: float, device: torch.device | None = None) -> Iterator[None]:
        """A process group of all of them.

        An error is reported by one process: the one in which it happened, or, where one was killed
        or hangs, one of those that are left.

        Args:
            timeout: seconds that a process waits for another one that does not answer.
            device: of this process, whose tensors are sent; default the CPU.

        Raises:
            HeedfulError: a process is missing: it was killed, hangs, or the network is down.
            EndedElsewhereError: another process reports the error.
        """
        if self.is_alone:
            yield
            return
        import torch.distributed as dist

        backend = _backend(device, self.size)
        try:
            dist.init_process_group(
                backend,
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=timeout),
            )
            yield
        except Exception as error:
            reported = self._reported(error, timeout)
            if reported is error:
                raise
            raise reported from error
        except BaseException:
            _hang_up()
            raise
        ENDED.append(dist.group.WORLD)
        dist.destroy_process_group()

    def _reported(self, error: Exception, timeout: float) -> Exception:
        """What this process reports of an error that ended it.

        The first to come here speaks for all: what the others see is mostly that it has gone.
        """
        is_missing = _is_of_network(error)
        if is_missing:
            with suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which saw one die
        try:
            if is_missing:
                self.store.set(f"left {self.rank}", b"")
            is_told = isinstance(error, EndedElsewhereError)
            speaks = not is_told and self.store.add("errors", 1) == 1
        except RuntimeError:  # the store has gone
            lost = LostError(
                f"no answer from {_address()}, which all processes are connected by",
                cause="that machine, its torchrun or the network has ended",
                remedy=RESUME,
            )
            return lost if is_missing else error
        finally:
            _hang_up()  # so that the others need not wait for an answer
        if not speaks:
            return EndedElsewhereError(str(error))
        return self._lost(error, timeout) if is_missing else error

    def _lost(self, error: Exception, timeout: float) -> HeedfulError:
        """The error of those that are left, with the numbers of those that are not."""
        last = time.monotonic() + GRACE
        while (silent := self._silent()) and time.monotonic() < last:
            time.sleep(POLL)
        if not silent:
            words = " ".join(str(error).split())
            return LostError(
                f"{self.size} processes lost their connection ({words})",
                cause="the network",
                remedy=RESUME,
            )
        who = f"process{'es' * (len(silent) > 1)} {', '.join(map(str, silent))} of {self.size}"
        if "timed out" in str(error).lower() or "timeout" in str(error).lower():
            return HeedfulError(
                f"no answer from {who} in {timeout:g} s",
                cause="it hangs, or is slower than --timeout allows",
                remedy=RESUME,
            )
        return LostError(f"no answer from {who}", cause="it was killed", remedy=RESUME)

    def _silent(self) -> list[int]:
        others = [rank for rank in range(self.size) if rank != self.rank]
        return [rank for rank in others if not self.store.check([f"left {rank}"])]

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.any(False)

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

    def each(self, value: T) -> list[T]:
        """The value of each process, in the order of their numbers."""
        if self.is_alone:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def _backend(device: torch.device | None, size: int) -> str:
    """What carries tensors between the processes; `ArgumentError` where nothing does."""
    import torch

    if device is None or device.type == "cpu":
        return "gloo"
    if device.type != "cuda":
        raise ArgumentError(
            f"{size} processes on {device}",
            expected="CPUs or CUDA devices, between which torch carries tensors",
            remedy="--device cpu, or one process",
        )
    if device.index is not None:
        torch.cuda.set_device(device)  # NCCL and FSDP2 take the current one
    return "cpu:gloo,cuda:nccl"


@contextmanager
def _reaching() -> Iterator[None]:
    """Inside, a store that cannot be reached is an error that says so."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, HeedfulError):
            raise
        raise HeedfulError(
            f"the processes do not find each other at {_address()} ({str(error).splitlines()[0]})",
            cause="one was not started, or has ended; a machine's address, or its firewall",
            remedy="start all of them with torchrun",
        ) from error


def _address() -> str:
    return ":".join(os.environ.get(name, "?") for name in ADDRESS)


def _hang_up() -> None:
    """Leave the process group at once, where one is left that may never answer."""
    import torch.distributed as dist

    with suppress(Exception):
        dist.distributed_c10d._abort_process_group()


def _is_of_network(error: BaseException) -> bool:
    """Whether an error is that of an answer that did not come."""
    import torch.distributed as dist

    if not isinstance(error, RuntimeError) or isinstance(error, HeedfulError):
        return False
    return isinstance(error, dist.DistError) or any(
        word in str(error).lower() for word in ("gloo", "nccl", "connection", "timed out")
    )
