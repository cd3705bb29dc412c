"""The processes of a `torchrun` job: this process's rank, its share of the work, and collectives.

Without torchrun, a single process does all the work. Before the process group exists, the first
process (rank 0) publishes values to the others through torchrun's store. Afterwards values
go through torch's process group: gloo between CPUs, NCCL between GPUs.
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
CONNECT_TIMEOUT = timedelta(minutes=5)  # time limit for connecting to the store
GRACE = 5.0  # seconds in which every running process must notice a lost connection
POLL = 0.1  # seconds between two polls of the store; Ctrl-C is handled between them
RESUME = "checkpoints are kept: continue with --resume"
PUBLISHED, FAILED = "published", b"failed"
# Destroyed process groups, kept alive on purpose. When DDP's reducer is freed, Gloo's last message
# may still wait for the GIL. Freeing the group would wait for this message: a deadlock.
DESTROYED_GROUPS: list[Any] = []


class OtherProcessError(HeedfulError):
    """Another process failed and reports its error; this process reports nothing."""


class LostProcessError(HeedfulError):
    """The connection to another process was lost; if the process has ended, torchrun says how."""


class Processes:
    """This process within its `torchrun` job.

    Args:
        rank: the rank of this process, from 0.
        size: the number of processes.
        local: the rank among the processes of this machine.
        restarts: the number of times torchrun has restarted the job.

    >>> a, b = Processes(rank=0, size=3), Processes(rank=1, size=3)
    >>> list(range(8))[a.share(8)], list(range(8))[b.share(8)]
    ([0, 1], [2, 3, 4])
    """

    def __init__(self, rank: int = 0, size: int = 1, local: int = 0, restarts: int = 0) -> None:
        self.rank, self.size, self.local, self.restarts = rank, size, local, restarts

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints, draws, and writes all unsharded files."""
        return self.rank == 0

    @property
    def is_single(self) -> bool:
        """Whether this is the only process."""
        return self.size == 1

    def share(self, number: int) -> slice:
        """Return this process's slice of `number` items; the slices of all ranks partition them."""
        return slice(number * self.rank // self.size, number * (self.rank + 1) // self.size)

    @cached_property
    def store(self) -> Any:
        """torch's key-value store of the job; a restarted job begins with an empty store."""
        import torch.distributed as dist

        with _store_errors():
            store, _, _ = next(dist.rendezvous("env://", timeout=CONNECT_TIMEOUT))
        return dist.PrefixStore(f"attempt {self.restarts}", store)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """On rank 0: if this context raises, so does `await_published` on the other ranks."""
        if self.is_single:
            yield
            return
        try:
            self.store  # noqa: B018 rank 0 hosts the store if torchrun does not
            yield
        except BaseException:
            with suppress(RuntimeError):
                self.store.set(PUBLISHED, FAILED)
            raise

    def publish(self, value: Any) -> None:
        """On rank 0, before the process group exists: send a JSON value to all ranks."""
        if not self.is_single:
            with _store_errors():
                self.store.set(PUBLISHED, json.dumps(value))

    def await_published(self) -> Any:
        """Wait, without a time limit, for the value that rank 0 publishes, and return it.

        Raises:
            HeedfulError: rank 0 failed (`OtherProcessError`), or the store cannot be reached.
        """
        with _store_errors():
            while not self.store.check([PUBLISHED]):
                time.sleep(POLL)
            value = self.store.get(PUBLISHED)
        if value == FAILED:
            raise OtherProcessError("the first process failed")
        return json.loads(value)

    def compute_on_first(self, compute: Callable[[], T]) -> T:
        """Compute a JSON value on rank 0, return it on all ranks; raises as `await_published`."""
        if not self.is_first:
            return cast(T, self.await_published())
        with self.publishing():
            value = compute()
            self.publish(value)
        return value

    @contextmanager
    def process_group(self, timeout: float, device: torch.device | None = None) -> Iterator[None]:
        """Open torch's process group of all ranks.

        Only one process reports an error: the process that raised it, or, if a process was killed
        or hangs, one of the others.

        Args:
            timeout: seconds to wait for a process that does not answer.
            device: the device of the tensors that this process sends; default the CPU.

        Raises:
            ArgumentError: the device is neither a CPU nor a CUDA device.
            HeedfulError: a process was killed or hangs, or the network is down.
            OtherProcessError: another process reports the error.
        """
        if self.is_single:
            yield
            return
        import torch.distributed as dist

        backend = _backend(device, self.size)
        try:
            dist.init_process_group(
                backend,
                # a later group must not read the addresses of an earlier one
                store=dist.PrefixStore(f"group {len(DESTROYED_GROUPS)}", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=timeout),
            )
            yield
        except Exception as error:
            clearer = self._error_to_report(error, timeout)
            if clearer is error:
                raise
            raise clearer from error
        except BaseException:
            _abort_group()
            raise
        DESTROYED_GROUPS.append(dist.group.WORLD)
        dist.destroy_process_group()

    def _error_to_report(self, error: Exception, timeout: float) -> Exception:
        """Return the error that this process raises: `error` itself, or a clearer one.

        Only the process that fails first reports its error: most later errors are lost connections.
        """
        import torch.distributed as dist

        words = ("gloo", "nccl", "connection", "timed out")
        has_word = any(word in str(error).lower() for word in words)
        is_network = isinstance(error, dist.DistError)
        is_network = is_network or (isinstance(error, RuntimeError) and has_word)
        if is_network:
            with suppress(ValueError):  # raised outside the main thread
                # after a crash torchrun sends SIGTERM to the others; this one must report first
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if is_network:
                self.store.set(f"left {self.rank}", b"")
            is_other = isinstance(error, OtherProcessError)
            is_reporter = not is_other and self.store.add("errors", 1) == 1
        except RuntimeError:  # the store cannot be reached
            lost = LostProcessError(
                f"no answer from {_address()}, which hosts the store of all processes",
                cause="that machine, its torchrun or the network failed",
                remedy=RESUME,
            )
            return lost if is_network else error
        finally:
            _abort_group()  # so that the other processes do not wait for this one
        if not is_reporter:
            return OtherProcessError(str(error))
        return self._lost_error(error, timeout) if is_network else error

    def _lost_error(self, error: Exception, timeout: float) -> HeedfulError:
        """Return the error for a lost connection, with the ranks that do not answer."""
        deadline = time.monotonic() + GRACE
        while (silent := self._silent_ranks()) and time.monotonic() < deadline:
            time.sleep(POLL)
        if not silent:
            reason = " ".join(str(error).split())
            return LostProcessError(
                f"{self.size} processes lost their connection ({reason})",
                cause="the network",
                remedy=RESUME,
            )
        missing = f"process{'es' * (len(silent) > 1)} {', '.join(map(str, silent))} of {self.size}"
        if "timed out" in str(error).lower() or "timeout" in str(error).lower():
            return HeedfulError(
                f"no answer from {missing} in {timeout:g} s",
                cause="it hangs, or is slower than --timeout allows",
                remedy=RESUME,
            )
        return LostProcessError(f"no answer from {missing}", cause="it was killed", remedy=RESUME)

    def _silent_ranks(self) -> list[int]:
        others = [rank for rank in range(self.size) if rank != self.rank]
        return [rank for rank in others if not self.store.check([f"left {rank}"])]

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        self.any(False)

    def all_reduce(self, numbers: Sequence[float], device: Any = "cpu") -> list[float]:
        """Return the sum of each number over all processes, in float64."""
        if self.is_single:
            return list(numbers)
        import torch
        import torch.distributed as dist

        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, condition: bool, device: Any = "cpu") -> bool:
        """Return whether the condition holds in at least one process."""
        return self.all_reduce([float(condition)], device)[0] > 0

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""
        if self.is_single:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def _backend(device: torch.device | None, size: int) -> str:
    """Return torch's backend for this device; raise an `ArgumentError` if there is none."""
    import torch

    if device is None or device.type == "cpu":
        return "gloo"
    if device.type != "cuda":
        raise ArgumentError(
            f"{size} processes on {device}",
            expected="CPUs or CUDA devices, for which torch has collectives",
            remedy="--device cpu, or one process",
        )
    if device.index is not None:
        torch.cuda.set_device(device)  # NCCL and FSDP2 use the current device
    return "cpu:gloo,cuda:nccl"


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn torch's errors about an unreachable store into a `HeedfulError`."""
    try:
        yield
    except RuntimeError as error:
        raise HeedfulError(
            f"the processes cannot reach each other at {_address()} ({str(error).splitlines()[0]})",
            cause="a process did not start or has ended, a wrong address, or a firewall",
            remedy="start all of them with torchrun",
        ) from error


def _address() -> str:
    return ":".join(os.environ.get(name, "?") for name in ADDRESS)


def _abort_group() -> None:
    """Leave the process group at once, without waiting for processes that may never answer."""
    import torch.distributed as dist

    with suppress(Exception):
        dist.distributed_c10d._abort_process_group()
