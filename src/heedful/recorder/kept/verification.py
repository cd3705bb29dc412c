"""Verifies which rows are of which text: each text of a batch runs alone, and is compared.

A text alone has its own queries and keys and no others'. So an order of axes that was guessed
wrongly, or a padding that is none, cannot agree with it; and where a model goes through its texts
in a loop, it tells of which text a call is. What disagrees is refuted where its queries and keys
are found in another text or head, or where the same number of weights is in other sequences. Where
they are found nowhere, the texts of a batch may change each other, as by a mean over the batch, or
the model draws at random. Then each text stands once in the place of another: if only the sequences
of that place change, they are its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError
from heedful.recorder.kept.calls_of_texts import of_each, standing_of
from heedful.recorder.kept.capture import Capture
from heedful.recorder.kept.proof import proof_of
from heedful.recorder.kept.text_agreement import Difference, agree
from heedful.recorder.kept.text_inputs import TextInputs, called, has_list, leaves
from heedful.recorder.sequences.inputs import Inputs

Found: TypeAlias = Capture | Difference  # a call as it stands, or how it differs
Run = Callable[[tuple, dict[str, Any]], list[Capture]]
OTHER = "without it a text alone has other queries and keys"
ITEMS = "each is an item of a list, which is not taken apart"
UNSETTLED = ", which texts alone do not settle: "
ALL_OF_IT = "one text is all of the inputs"
SQUARE = "the inputs have as many rows along their first dimension as along their second"


def verify(captures: list[Capture], model: nn.Module, inputs: Any, run: Run) -> None:
    """Compare every sequence of the first pass with its text alone, and note what came out.

    Args:
        captures: the calls; what is settled is no longer inferred, what differs is refuted.
        model: the model that was recorded.
        inputs: what it was given: a mapping of keywords, a list of arguments, or one tensor.
        run: a function that records a pass of the model.

    Raises:
        ArgumentError: no batch is known of the inputs, or the model does not take them.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}", expected="the module that was recorded"
        )
    arguments, keywords = called(inputs)
    if not any(one.ndim for one in leaves((arguments, keywords))):
        raise ArgumentError(
            f"inputs of type {type(inputs).__name__} with no tensor in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    first = [one for one in captures if one.pass_index == min(one.pass_index for one in captures)]
    told: list[int | None] = [one.texts for one in first if one.texts]
    told = told or [Inputs(model, arguments, keywords).texts]
    # a call of one text may stand beside those of several, as that of their common queries does
    batch = next((texts for texts in told if texts and texts > 1), told[0])
    if batch is None:
        raise ArgumentError(
            f"inputs of type {type(inputs).__name__} with no batch in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    for capture in first:
        capture.against.clear()  # of an earlier time
    with undisturbed(model), torch.no_grad():
        _check_repeated(first, (arguments, keywords), run)
        texts = _settle(first, batch, (arguments, keywords), run)
        _settle_padding(first, texts, run)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode, and put everything back: modes, buffers and random states.

    Where one thing cannot be put back, all others are.
    """
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
            for name, buffer in module._buffers.items():
                before = None if buffer is None else buffer.detach().clone()
                stack.callback(_put_back, module, name, buffer, before)
            for held in vars(module).values():
                if isinstance(held, torch.Generator):
                    stack.callback(held.set_state, held.get_state())
        stack.enter_context(torch.random.fork_rng())
        model.eval()
        yield


@torch.no_grad()
def _put_back(module: nn.Module, name: str, buffer: Tensor | None, before: Tensor | None) -> None:
    module._buffers[name] = buffer  # a pass may have put another one in its place
    if buffer is None or before is None:
        return
    try:
        is_same = torch.equal(buffer, before)
    except NotImplementedError:  # of a sparse or nested one, say
        is_same = False
    if not is_same:
        buffer.copy_(before)


def _ran(run: Run, inputs: Callable[[], Any]) -> list[Capture]:
    """The calls of a pass over inputs that are made for it.

    Raises:
        ArgumentError: inputs that the model does not take.
    """
    try:
        return run(*inputs())
    except (HeedfulError, OSError):  # such as a TimeoutError, which tells nothing of the inputs
        raise
    except Exception as error:
        raise ArgumentError(
            f"inputs with which the model ends in {type(error).__name__}: {error}",
            expected="what it was called with, with one row for each text",
        ) from error


def _check_repeated(captures: list[Capture], given: Any, run: Run) -> None:
    """Refuse inputs with which the model does not do what was recorded.

    Raises:
        ArgumentError: other inputs, or a pass that was not in evaluation mode.
    """
    again = of_each(captures, [_ran(run, lambda: given)])
    for capture, one in zip(captures, again, strict=True):
        if one is None or _changed(capture, one[0].call) != set():
            raise ArgumentError(
                f"inputs with which {capture.name} does something else than was recorded",
                expected="the inputs of the pass that was recorded",
                cause="other inputs, a pass in training mode, whose dropout is not repeated, or a "
                "model that draws at random",
            )


def _settle(captures: list[Capture], batch: int, given: Any, run: Run) -> TextInputs:
    """Compare all calls with those of each text alone; returns the inputs as they were taken apart.

    Texts are along the first dimension of the inputs, or the second where positions come first.
    Where both have as many, and it was not followed which it is, an agreement settles nothing; nor
    does that of one text, which is all of the inputs.
    """
    told = {one.texts_dim for one in captures if one.texts == batch} - {None}
    dims = [dim for dim in (0, 1) if len(told) != 1 or dim in told]
    ways = [TextInputs(given, batch, dim) for dim in dims]
    # all of the inputs are of the one text
    ways = ways[:1] if batch == 1 else [texts for texts in ways if texts.are_found]
    if not ways and any(has_list(one, batch) for one in (*given[0], *given[1].values())):
        _note(captures, [Difference(ITEMS, refutes=False)] * len(captures))
        return TextInputs(given, 1, 0)
    if not ways:
        raise ArgumentError(
            f"inputs in which no tensor has {batch} rows",
            expected=f"the inputs of the pass that was recorded, of {batch} texts",
        )
    tried: list[tuple[TextInputs, list[Found]]] = []
    failed: ArgumentError | None = None
    for texts in ways:
        try:
            tried.append(_alone(captures, texts, run))
        except ArgumentError as error:
            failed = error
    if failed is not None and not tried:
        if len(ways) > 1 or not _settle_in_place(captures, ways[0], run):
            raise failed
        _note(captures, [Difference(str(failed), refutes=False)] * len(captures))
        return ways[0]
    texts, found = min(tried, key=lambda one: _differences(one[1]))
    _note(captures, found, ALL_OF_IT if batch == 1 else SQUARE if len(tried) > 1 else "")
    if len(ways) == 1:
        _settle_in_place(captures, texts, run)
    return texts


def _alone(captures: list[Capture], texts: TextInputs, run: Run) -> tuple[TextInputs, list[Found]]:
    """Of which texts each call is, or how it differs from those that its texts alone make.

    What seems to be of the texts by its size, and by chance is not, agrees better as a whole.
    """
    tried: list[tuple[TextInputs, list[Found]]] = []
    failed: ArgumentError | None = None
    for way in (texts, replace(texts, cuts=False)) if texts.seem_cut else (texts,):
        try:
            tried.append((way, _compared(captures, way, run)))
        except ArgumentError as error:
            failed = error
            continue
        if not _differences(tried[-1][1]):
            break
    if not tried and failed is not None:
        raise failed
    return min(tried, key=lambda one: _differences(one[1]))


def _differences(found: list[Found]) -> int:
    return sum(isinstance(one, Difference) for one in found)


def _compared(captures: list[Capture], texts: TextInputs, run: Run) -> list[Found]:
    calls = [_ran(run, partial(texts.alone, b)) for b in range(texts.batch)]
    pairs = zip(captures, of_each(captures, calls), strict=True)
    return [standing_of(capture, ordered, calls) for capture, ordered in pairs]


def _note(captures: list[Capture], found: Sequence[Found], doubt: str = "") -> None:
    """Note of each call what its texts alone tell: that it is settled, refuted, or neither.

    doubt: why an agreement settles nothing, where it does not.
    """
    for capture, told in zip(captures, found, strict=True):
        if isinstance(told, Capture) and not doubt:
            _stand(capture, told)
        elif isinstance(told, Difference) and told.refutes:
            capture.against.update(dict.fromkeys(capture.sequences, told.why))
        elif "texts" in capture.inferred:
            why = told.why if isinstance(told, Difference) else doubt
            before = capture.inferred["texts"].split(UNSETTLED)[0]
            capture.inferred["texts"] = f"{before}{UNSETTLED}{why}"


def _stand(capture: Capture, told: Capture) -> None:
    """Let a call have the sequences that it turned out to have, of which none is a guess then."""
    if told.first != capture.first or told.layouts is not capture.layouts:
        if proof_of(capture.check, {}).word == "refuted":
            return  # by a check that speaks of its sequences by their numbers until now
        # who took one of its calls before sees it as a guess still, in the place of another text
        capture.inferred = dict(told.inferred)
    capture.first, capture.batch = told.first, told.batch
    capture.layouts, capture.kind = told.layouts, told.kind
    capture.inferred.pop("texts", None)


def _settle_in_place(captures: list[Capture], texts: TextInputs, run: Run) -> bool:
    """Settle calls in which a text in the place of another changes the sequences of that place
    and no others; whether there was any.

    With other texts the batch may be padded otherwise, and then all is other. So one place may stay
    without an answer: its sequences are what is left.
    """
    left = [_Places(one) for one in captures if "texts" in one.inferred and not one.against]
    for b in range(texts.batch):
        for other in ((b + 1) % texts.batch, (b + 2) % texts.batch):
            asked = [one for one in left if one.may_be_settled and b not in one.answered]
            if not asked or texts.are_alike(b, other):  # these two tell nothing
                continue
            try:
                calls = _ran(run, partial(texts.replaced, b, other))
            except ArgumentError:  # of texts that do not fit together in this order
                continue
            # of all calls, as one module may have several, of which some are settled
            again = dict(zip(map(id, captures), of_each(captures, [calls]), strict=True))
            for one in asked:
                found = again[id(one.capture)]
                one.take(b, texts.batch, None if found is None else found[0].call)
        for one in left:
            one.unanswered += b not in one.answered
    settled = [one.capture for one in left if one.may_be_settled and one.answered]
    for capture in settled:
        capture.inferred.pop("texts")
    return bool(settled)


@dataclass
class _Places:
    """Which sequences of a call change with the text at each place.

    answered: the places of which exactly their own sequences changed.
    unanswered: how many places gave no answer; is_wrong: whether one gave another.
    """

    capture: Capture
    answered: set[int] = field(default_factory=set)
    unanswered: int = 0
    is_wrong: bool = False

    @property
    def may_be_settled(self) -> bool:
        """Whether all places have answered so far, but for one at most."""
        return not self.is_wrong and self.unanswered <= 1

    def take(self, b: int, batch: int, again: Capture | None) -> None:
        """Take what a pass with another text in the place b made of the call."""
        changed = None if again is None else _changed(self.capture, again)
        if changed is None:  # the batch is padded otherwise now
            return
        each, more = divmod(len(self.capture.query), batch)
        if more or changed != set(range(b * each, (b + 1) * each)):
            self.is_wrong = True
        else:
            self.answered.add(b)


def _changed(capture: Capture, again: Capture) -> set[int] | None:
    """Which sequences have other queries or keys in another pass; None where all may have."""
    one, other = (each.query.shape[:3] + each.key.shape[1:3] for each in (capture, again))
    if one != other:
        return None
    pairs = enumerate(zip(capture.sequences, again.sequences, strict=True))
    return {at for at, (mine, other) in pairs if not agree(capture, mine, again, other)}


def _settle_padding(captures: list[Capture], texts: TextInputs, run: Run) -> None:
    """Run each text without what was taken for its padding, which is settled if all agree."""
    ran: dict[tuple[int, int, bytes], list[Capture] | None] = {}  # layers have the same padding

    def without(b: int, length: int, keys: Tensor) -> list[Capture] | None:
        this = (b, length, keys.numpy().tobytes())
        if this not in ran:
            given = texts.without_padding(b, length, keys)
            try:
                ran[this] = None if given is None else _ran(run, lambda: given)
            except ArgumentError:  # of a model that wants all of its inputs
                ran[this] = []
        return ran[this]

    numbers: Counter[tuple[str, int]] = Counter()
    for capture in captures:
        own = [(capture.name, b) for b in capture.sequences]
        number = {b: numbers[name, b] for name, b in own}
        numbers.update(own)
        if "padding" not in capture.inferred or "texts" in capture.inferred:
            continue
        answers = (_against(capture, b, number[b], partial(without, b)) for b in capture.sequences)
        against = next(filter(None, answers), "") if capture.batch == texts.batch else OTHER
        if against:
            capture.inferred["padding"] += f"; {against}"
        else:
            capture.inferred.pop("padding")


def _against(
    capture: Capture, b: int, number: int, without: Callable[[int, Tensor], list[Capture] | None]
) -> str:
    """What a text without its padding tells against it, "" where it agrees.

    number: of the call, among those that its module makes of the text.
    """
    calls = without(capture.key.shape[2], capture.layout(b).keys)
    if calls is None:
        return "no input has as many places, so that none could be left out"
    same = [one for one in calls if one.name == capture.name]
    return "" if number < len(same) and agree(capture, b, same[number], 0) else OTHER
