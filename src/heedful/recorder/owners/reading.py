"""Knows what a model that runs was called with, also one of transformers inside another.

The inputs of a pass tell how many texts there are, which tokens are padding, and the ids of all. A
model of known arguments that another one holds was told padding and ids itself, whatever had been
done to those of the pass before.
"""

from __future__ import annotations

from typing import NamedTuple

from heedful.recorder.observed import Observed, Real
from heedful.recorder.running import Frame, Given, Running
from heedful.recorder.owners import token_ids
from heedful.recorder.owners.inputs import Inputs, are_ids


class Padding(NamedTuple):
    """What inputs tell of padding.

    real: which tokens are none.
    is_full: whether a cache is known to have no room behind its tokens.
    is_told: whether these inputs are those of a model whose arguments have known meanings.
    """

    real: Real
    is_full: bool
    is_told: bool


class Reading:
    """What the pass that runs was called with, and a model of known arguments in it.

    image: height and width of the images that the model was given; None where it was given none.
    """

    def __init__(self, running: Running) -> None:
        self.running = running
        self.image: tuple[int, int] | None = None
        self._given = running.given
        self._inputs: Inputs | None = None  # read once somebody asks
        self._inner: tuple[int, Inputs] | None = None  # by the number of that model's call
        running.ended = self.forget

    def let_go(self) -> None:
        """Hold nothing of the model's any more."""
        self._given = Given(self.running.model, (), {})
        self._inputs, self.running.ended = None, None
        self.forget()

    def forget(self) -> None:
        """Forget what a model inside was called with, as its call has ended."""
        self._inner = None

    @property
    def inputs(self) -> Inputs:
        """The inputs of the pass that runs."""
        if self._inputs is None or self._given is not self.running.given:
            self._given = self.running.given
            self._inputs = Inputs(*self._given)
            self.image = self.image or self._inputs.image
        return self._inputs

    def padding(self, seen: Observed) -> Padding:
        """What is told of a call's padding: by a model inside that runs, or by the pass."""
        running, inner = self.running, self._reader()
        told = None
        if inner is not None and (read := self._read_by(inner)).tell:
            real = read.real(seen, running.writes_in(inner))
            told = Padding(real, read.fills(seen), True)
            # an encoder inside may be given a mask of queries × keys, which the pass has made
            if real.keys is not None or not read.tells_padding:
                return told
        inputs = self.inputs
        # the arguments of a known model tell of padding by their names
        keys = None if running.is_known else seen.followed.keys
        real = inputs.real(seen, running.writes, keys)
        if told is not None and (real.keys is None or self._has_moved(seen)):
            return told
        return Padding(real, inputs.fills(seen), running.is_known or running.is_in_known)

    def tokens(self, seen: Observed, kind: str) -> token_ids.Given | None:
        """What is told of a call's tokens; None where the pass was given none, or has moved them.

        A model inside tells of the ids that it was called with: where these are not an input of the
        pass, what had been done to that input before is no matter.
        """
        running, inner = self.running, self._reader()
        if inner is not None:
            read, writes = self._read_by(inner), running.writes_in(inner)
            is_moved = self._has_moved(seen) and self.inputs.has(read, writes)
            if read.ids(writes) is not None and not is_moved:
                given = token_ids.told_by_names(read, None, writes, running.calls_of_known)
                # what was read may be changed before it is asked
                return given._replace(reads_before=seen.followed.keys is not None)
        if self._has_moved(seen):
            return None
        now = running.writes, running.pass_index
        if running.is_as_made:
            table = running.embedded if running.is_ours else None
            is_table = table is not None and are_ids(table)
            return token_ids.told_by_names(self.inputs, table if is_table else None, *now)
        return token_ids.told_by_axes(self.inputs, seen, kind, *now)

    def _has_moved(self, seen: Observed) -> bool:
        """Whether tokens or texts of a call are known to stand elsewhere than in the inputs."""
        is_moved = seen.followed.are_reordered or bool(seen.moved)
        return is_moved or self.inputs.has_ids_across(seen.batch)

    def _reader(self) -> Frame | None:
        return None if self.running.is_known else self.running.reader

    def _read_by(self, inner: Frame) -> Inputs:
        """What a model inside this one was called with."""
        number = self.running.calls_of_known
        if self._inner is None or self._inner[0] != number:
            given = inner.module, inner.arguments, inner.keywords, self.running.cached_of_known
            self._inner = number, Inputs(*given)
        return self._inner[1]
