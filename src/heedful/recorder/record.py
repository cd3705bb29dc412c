"""`heedful.record`: a context around an unmodified model, and what its doors see while it runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.ops import dispatch
from heedful.recording import own_work
from heedful.recorder.blocks import Blocks
from heedful.recorder.doors import (
    as_made,
    heedful_attention,
    holders,
    multihead_attention,
    torch_operations,
    transformers_interface,
    unsupported,
)
from heedful.recorder.doors.begun import Begun
from heedful.recorder.doors.methods import name_of_method
from heedful.recorder.doors.uncompiled import uncompiled
from heedful.recorder.following.strides import Axes
from heedful.recording.capture import Capture, captured
from heedful.recording.patches import patches_of
from heedful.recording.recording import Recording
from heedful.recorder.observed import Observed
from heedful.recorder.options import Options
from heedful.recording.own_work import computing, is_computing
from heedful.recorder.running import Given, Running
from heedful.recorder.owners.kind import crosses, kind_of
from heedful.recorder.owners.mask_structure import Masks, are_equal
from heedful.recorder.owners.padding_across_passes import Before, so_far
from heedful.recorder.owners.reading import Reading
from heedful.recorder.owners.text_order import beside_told
from heedful.recorder.owners.texts_of_calls import Rows, TextDims, follow, tokens_of
from heedful.recorder.owners.token_ids import Ids, TokenIds
from heedful.recorder.owners.told_axes import axes_told_for, check_names, contradicted
from heedful.recorder.owners.told_or_followed import Owning
from heedful.recorder.owners.padding import Layout, distinct, layouts_of, may_have_room
from heedful.recorder.tracing import TRACED, is_traced
from heedful.recorder.uninterrupted import uninterrupted

NOTHING = (
    "no scaled_dot_product_attention, no nn.MultiheadAttention, no softmax and product after it; "
    "linear and graph attention and state spaces have no map of queries × keys"
)

TELLING = (heedful_attention.DOOR, "transformers")  # doors that know the axes of what they see
PUT_IN = (
    "modules, hooks or functions that were put in while it was recorded, which may attend, or move "
    "texts and tokens; put them in before"
)
IN_A_METHOD = "attention in a method that is no call of the module"
_AS_IT_IS = nullcontext()
PADDING = "what is padding, by the name of an argument, or as no query sees it"


@contextmanager
def record(
    model: nn.Module,
    *,
    tokenizer: Any = None,
    axes: Mapping[str, str] | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    values: bool = False,
    dtype: torch.dtype | None = None,
    every: int = 1,
    budget: int | None = None,
) -> Iterator[Recording]:
    """Record the attention of any PyTorch model while it runs, at the speed that it has.

    What is kept are the causes of each map (query, key, mask, scale); any part of the map is
    computed from them when somebody asks. The model's outputs and gradients are what they were,
    and nothing of it stays changed, also when an exception ends the block.

    Args:
        model: any module; nothing of it is modified.
        tokenizer: names the tokens, so that calls have their `tokens`: one of heedful or of
            transformers (or a processor that has one), or a function from a list of ids to a list
            of strings. The model is given their ids, a table of whole numbers (texts, tokens).
        axes: what the axes of the queries are, by names of modules with the letters of einops:
            `{"encoder.*.attn": "(h b) n d"}` has b texts, h heads, n queries of width d; g are
            groups of heads that share a key, other letters parts of a text. Default: it is
            followed, or guessed, which `call.proof` says.
        layers: numbers of the layers to record, as the modules' names have them; default all.
        heads: the heads to record, with the keys that they share; default all.
        values: keep the values too, for `value_norm`.
        dtype: in which queries and keys are kept; default their own.
        every: record each n-th forward pass only, the first one included.
        budget: bytes that the record may take in memory; calls past it go to files in the
            system's directory for temporary ones, which go with the recording. Default no limit.

    Yields:
        a `Recording`, which fills as the model runs.

    Raises:
        ArgumentError: no module, or a model whose attention cannot be recorded truthfully.
        SaveError: past the budget, a full disk.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> with record(model) as recording:
    ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
    >>> [call.name for call in recording], recording[0].weights(head=0, queries=[0])
    (['blocks.0.attend', 'blocks.1.attend'], tensor([[1., 0., 0., 0.]]))
    """
    options = Options.of(axes, layers, heads, values, dtype, every, budget, tokenizer)
    modules = unsupported.modules_of(model)
    check_names(options.axes, model)
    recording = Recording(budget=options.budget, naming=options.naming)
    recording.recorder = functools.partial(
        record, axes=axes, layers=layers, heads=heads, dtype=dtype
    )
    running, stack = Running(model, modules), ExitStack()
    recorder = _Recorder(recording, running, options)
    try:
        with uninterrupted():
            _begin(recorder, stack)
        yield recording
    finally:
        with uninterrupted():
            stack.close()
    recorder.end(model)
    recording.random_states = running.random_states
    options.check_layers(recorder.names)
    recording.name_tokens()
    recording.know_patches(patches_of(model, modules), recorder.reading.image)


def _begin(recorder: _Recorder, stack: ExitStack) -> None:
    """Enter the doors; leaving the stack leaves them."""
    running = recorder.running
    made = as_made.judged(running.model) if running.is_known else as_made.Judged(False, False)
    running.is_as_made, running.tells_all = made
    stack.enter_context(running)
    stack.callback(recorder.let_go)
    stack.enter_context(uncompiled(running.modules))
    stack.enter_context(heedful_attention.watch(recorder.see))
    if transformers_interface.is_loaded():
        stack.enter_context(transformers_interface.watch(recorder.see, recorder.claim))
    if not made.tells_all:
        stack.callback(_tell_of_other_thread, recorder.recording, threading.get_ident())
        watched = torch_operations.watch(running.modules, recorder.see, recorder.passing())
        recorder.axes_of = stack.enter_context(watched)
        recorder.is_watched = True


def _tell_of_other_thread(recording: Recording, began: int) -> None:
    """Warn where a recording ends in another thread than it began in: there its mode stays."""
    if threading.get_ident() != began:
        recording.warn(
            "a recording ended in another thread than it began in, where torch goes on passing "
            "each operation through it, which takes time; begin and end it in one thread"
        )


def _without_gradients() -> AbstractContextManager[Any]:
    """`torch.no_grad`, which takes as long as a small product, where gradients are followed."""
    return torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS


class _Recorder:
    """Gives each call that the doors see its name, layer and pass, and keeps those wanted."""

    def __init__(self, recording: Recording, running: Running, options: Options) -> None:
        self.recording, self.running, self.options = recording, running, options
        self.names: dict[str, int | None] = {}  # the modules that told a call, with their layers
        self._blocks = Blocks(running.modules)
        self.claimed = False
        self.is_watched = False  # whether torch's operations are
        self.reading = Reading(running)
        self._calls = 0
        self.begun = Begun(lambda: running.name, self._may_be_wanted)
        # of each module's last call: its number of keys with its pass, and what it told of padding
        self._lengths: dict[str, tuple[int, int]] = {}
        self._before: dict[str, Before | None] = {}
        self._token_ids = TokenIds()
        self.axes_of: Callable[[Tensor], Axes] | None = None  # where operations are followed
        self._forget()

    def let_go(self) -> None:
        """Hold nothing of the model's any more, neither its inputs nor its masks."""
        self.reading.let_go()
        self.begun.let_go()
        self.axes_of = None
        self._forget()

    def _forget(self) -> None:
        """Forget what the layers of the last pass shared: it is held while that runs, no longer."""
        self._pass = self.running.pass_index
        self._masks = Masks()
        self._known: list[tuple] = []
        self._ids_known: dict[tuple, tuple[Ids, list[Layout]]] = {}
        self._dims = TextDims()
        self._copied: list[Tensor] = []

    def passing(self) -> torch_operations.Pass:
        """What the door to torch's operations asks about the pass that runs, and tells."""
        return torch_operations.Pass(
            self._followed,
            lambda: self.running.name,
            lambda: self.reading.inputs.with_aside,
            self.owning,
            self.begun,
            self.miss,
            self._idles,
            self._method,
            lambda name: self.recording.miss(name, LookupError(IN_A_METHOD)),
            functools.partial(setattr, self.running, "layers"),
        )

    def _followed(self) -> Given | None:
        """What the pass was called with whose operations run now, if it is to be followed.

        None where they are not the model's own, or of a call that another door sees.
        """
        # asked of each operation, so without the frames of `_is_elsewhere` and `is_computing`
        running = self.running
        if self.claimed or own_work.thread.is_on or dispatch.is_running():
            return None
        if not running.runs:
            return None
        return running.given

    def _idles(self) -> bool:
        """Whether no module is being called: a method of one may run, or the user's own code."""
        is_ours = self._is_elsewhere() or is_computing()
        return not is_ours and self.running.is_idle and not is_traced()

    def _method(self) -> str | None:
        """The name of the module whose method runs, while none is being called."""
        is_wanted = max(0, self.running.pass_index) % self.options.every == 0
        return name_of_method(self.running.modules) if is_wanted else None

    def _is_elsewhere(self) -> bool:
        """Whether another door already sees the call that runs."""
        return self.claimed or dispatch.is_running()

    def owning(self) -> Owning:
        """What decides whose the axes of the running call are."""
        inputs, frame, axes = self.reading.inputs, self.running.innermost, self.options.axes
        told = axes_told_for(axes, self.running.name, inputs.batch().texts) if axes else None
        if told is None and multihead_attention.is_one(frame.module):
            return Owning(inputs.batch, lambda axes: multihead_attention.told(frame, axes))
        return Owning(inputs.batch, lambda axes: told)

    def miss(self, reason: str) -> None:
        """Note that the running module has something like attention, but no map."""
        if self.is_wanted():
            self.recording.miss(self.running.name, LookupError(reason))

    def end(self, model: nn.Module) -> None:
        """Note which modules ran and were not recorded."""
        running, holding = self.running, holders.Holders(self.running.modules)
        for name, why in self.begun.missed(self.names, holding.names):
            self.recording.miss(name, LookupError(why))
        missed = self.recording.missed
        told = {*self.names, *missed, *self.begun.met}
        for name, why in holding.silent(running.ran, told, self.begun.inside):
            self.recording.miss(name, LookupError(why))
        if self.running.ran_elsewhere:
            self.recording.miss(type(model).__name__, LookupError("it ran in another thread"))
        if running.pass_index >= 0 and running.is_as_made:
            self._doubt_what_was_put_in(model)
        if self.running.was_traced:
            self.recording.miss(type(model).__name__, LookupError(TRACED))
        if self.running.pass_index >= 0 and not (self.names or missed):
            self.recording.miss(type(model).__name__, LookupError(NOTHING))

    def _doubt_what_was_put_in(self, model: nn.Module) -> None:
        """Note what was put into a model since its recording began, as it may do anything."""
        now = as_made.judged(model)
        if not now.is_as_made:
            self.recording.doubt("put in", PUT_IN)
        if not (now.is_as_made and (self.is_watched or now.tells_all)):
            self.recording.miss(type(model).__name__, LookupError(PUT_IN))

    def is_wanted(self) -> bool:
        """Whether a call that runs now is to be recorded, and no other door sees it already."""
        wanted = self.running.here and self.running.pass_index % self.options.every == 0
        return wanted and not self._is_elsewhere()

    def _may_be_wanted(self) -> bool:
        """A cheap form of `is_wanted`, which may still be True after Ctrl-C has ended the model."""
        wanted = self.running.runs and self.running.pass_index % self.options.every == 0
        return wanted and not self._is_elsewhere()

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Keep other doors from what runs inside, which is one call; gives whether it is wanted."""
        if not self.running.here:  # the claim of another thread would hide calls of this one
            yield False
            return
        wanted = self.is_wanted()
        before, self.claimed = self.claimed, True
        try:
            yield wanted
        finally:
            self.claimed = before

    def see(self, build: Callable[..., Observed], *told: Any, **named: Any) -> None:
        """Keep the call that `build` makes of what a door tells.

        A call that the recorder does not understand must not end the model's own forward pass: it
        is missing in the recording, which says so.
        """
        if not self.is_wanted():
            return
        if is_traced():  # a part of the model alone, inside its pass
            self.miss(TRACED)
            return
        with computing(), _without_gradients():
            capture = self._seen(self.running.name, build, *told, **named)
        if capture is not None:
            self.recording.add(capture)

    def _seen(self, name: str, build: Callable[..., Observed], *told: Any, **named: Any) -> Any:
        """The call in the form that is kept; None where it is not wanted, or not understood."""
        if self.running.pass_index != self._pass:
            self._forget()
        try:
            seen = self._split(build(*told, **named), name)
        except Exception as error:
            self.recording.miss(name, error)
            return None
        name = self.running.name_of(seen.part) if seen.part else name
        if name not in self.names:
            self.names[name] = self._blocks.layer_of(name)
        layer = self.names[name]
        index, self._calls = self._calls, self._calls + 1
        if self.options.layers is not None and layer not in self.options.layers:
            return None
        self._check_heads(seen, name)
        try:
            return self._kept(seen, name, layer, index)
        except Exception as error:
            self.recording.miss(name, error)
            return None

    def _split(self, seen: Observed, name: str) -> Observed:
        """The call with its mask split from its bias, and with what its module knows of it."""
        if seen.query.is_nested:
            raise TypeError("nested tensors, whose sequences have no common shape")
        if torch._C._functorch.maybe_get_level(seen.query) > 0:
            raise TypeError("a call inside torch.func, whose tensors are of its own")
        frame = self.running.innermost
        if multihead_attention.is_one(frame.module):
            seen = multihead_attention.named(seen, frame)
        if self.running.is_known and seen.door == heedful_attention.DOOR:
            seen.inferred = {}  # our own layers have the texts first, which is no guess
        if seen.door.startswith(TELLING):
            seen.inferred |= contradicted(self.options.axes, name)
        if seen.batch is None or seen.door == multihead_attention.DOOR:
            is_known = self.running.is_as_made
            if self.axes_of and seen.batch is None and not is_known:
                self._follow(seen, self.axes_of)
            seen.batch = seen.batch or self.reading.inputs.batch()
            told = beside_told(len(seen.query), seen.batch, is_known, seen.follows, seen.moved)
            seen.inferred = {**seen.inferred, **told}
        if not self.running.is_as_made:
            self._dims.doubt(seen)
        before = seen.bias
        seen = self._masks.split(seen)
        if seen.bias is before:  # else it was made of a mask, for this call
            seen.bias = self._own(before)
        seen.cross = self._crosses(seen, name)
        return seen

    def _follow(self, seen: Observed, axes_of: Callable[[Tensor], Axes]) -> None:
        """Note where texts and tokens of a call come from, whose axes are known to its door."""
        if seen.of_tokens is not None:
            rows = Rows(*seen.of_tokens)
            follow(seen, self.reading.inputs, rows, rows)
            return
        of_query, of_key = (Rows(axes[0], axes[2]) for axes in map(axes_of, (seen.query, seen.key)))
        if seen.door.startswith(TELLING):
            follow(seen, self.reading.inputs, of_query, of_key)
        else:  # flex attention: its first axis may be of texts or not, which stays a guess
            seen.followed = tokens_of(seen, of_query, of_key)

    def _crosses(self, seen: Observed, name: str) -> bool:
        """Whether the keys are of another text: as is told, or as both were followed to ids."""
        asking, answering, _ = seen.followed
        if seen.cross is None and not self.running.is_known and asking and answering:
            texts = [self.reading.inputs.ids_of(tokens) for tokens in (asking, answering)]
            if asking.number != answering.number and all(one is not None for one in texts):
                return True
        return crosses(seen, name)

    def _kept(self, seen: Observed, name: str, layer: int | None, index: int) -> Capture:
        running, (layouts, is_told) = self.running, self._layouts(seen, name)
        M = seen.shape[-1]
        is_cut = any(one.keys.numel() < M for one in distinct(layouts))
        if is_cut and seen.real is None and not is_told:
            seen.inferred = {**seen.inferred, "padding": PADDING}
        kind = self._kind(seen, name, layouts)
        return captured(
            seen,
            name=name,
            layer=layer,
            index=index,
            pass_index=running.pass_index,
            layouts=layouts,
            ids=self._ids(seen, layouts, kind),
            kind=kind,
            heads=self.options.heads,
            values=self.options.values,
            dtype=self.options.dtype,
        )

    def _ids(self, seen: Observed, layouts: list[Layout], kind: str) -> Ids:
        """The ids of the tokens at queries and keys, where these are tokens that the model reads.

        That is known of our own models and transformers', also inside others. Elsewhere it is shown
        where a tokenizer was given, of axes that were followed to the ids.
        """
        running = self.running
        if not (running.is_known or self.options.naming) or not running.reads_text:
            return Ids()
        # layers of one side that share a mask have the same tokens; their layouts are held
        key = kind, *seen.shape, running.writes, id(layouts), seen.cross, seen.followed, seen.moved
        if not running.is_as_made or key not in self._ids_known:
            given = self.reading.tokens(seen, kind)
            ids = self._token_ids.of(seen, given, layouts, kind) if given else Ids()
            self._ids_known[key] = ids, layouts
        return self._ids_known[key][0]

    def _kind(self, seen: Observed, name: str, layouts: list[Layout]) -> str:
        """The kind of a call; keys that grew by its queries since the last call are a cache's."""
        N = seen.shape[2]
        # a cache may have room for more
        M = max((one.keys.numel() for one in distinct(layouts)), default=0)
        pass_index, kind = self.running.pass_index, kind_of(seen, name, layouts)
        before, last = self._lengths.get(name, (M, pass_index))
        self._lengths[name] = M, pass_index
        # inside one pass several queries may be others, such as means that ask what they are of
        may_grow = N == 1 or pass_index > last
        has_grown = may_grow and 0 < M - before == N * max(1, pass_index - last)
        return "causal" if kind == "cross" and not seen.cross and has_grown else kind

    def _check_heads(self, seen: Observed, name: str) -> None:
        H = seen.shape[1]
        wrong = [head for head in self.options.heads or () if head >= H]
        if wrong:
            raise ArgumentError(f"head {wrong[0]} of {name}", expected=f"heads from 0 to {H - 1}")

    def _layouts(self, seen: Observed, name: str) -> tuple[list[Layout], bool]:
        """The layouts of a call, and whether what is padding was told by a name of known meaning.

        They are worked out once for layers of a pass that share a mask.
        """
        running, before = self.running, self._before.get(name)
        real, is_full, is_told = self.reading.padding(seen)
        # known by their ids, as == of tensors compares entries; held, so that these stay theirs
        held = (seen.mask, seen.bias, real.keys, real.queries)
        key = (*map(id, held), *seen.shape, seen.cross, may_have_room(seen) and not is_full)
        kept = next((one for known, _, one in self._known if known == key), None)
        if kept is None:
            real, now = so_far(seen, real, before, running.pass_index)
            kept = layouts_of(seen, real, is_full), now
            self._known = [*self._known[-7:], (key, held, kept)]
        layouts, self._before[name] = kept
        return layouts, is_told

    def _own(self, bias: Tensor | None) -> Tensor | None:
        """A copy of a bias, which nothing can change later; layers that share a bias share it."""
        if bias is None:
            return None
        # by its numbers: it may be another name for a tensor of the model's, which counts nothing
        known = next((one for one in reversed(self._copied) if are_equal(one, bias)), None)
        if known is None:
            known = bias.detach().clone()
            self._copied = [*self._copied[-3:], known]
        return known
