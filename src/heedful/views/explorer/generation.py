"""A text that a model continues while the page looks at it: begin, stop, go on, choose again.

How the page is told of what grows. A call of such a text has four numbers, "r.t.c.T": recording,
text, call, and how many tokens there are. A causal row never changes once it is written, so that
the first T tokens give the same map whatever follows: an answer to a question with T is the same
for good, like all others, may be kept, and may come late. What grows is T alone: `told` says the
newest, the page asks for it again and again, and draws each as a map of its own. Choosing another
token begins another recording, with the rows before it; the old one stays to be looked at.

There is one generation for a server. A second tab that begins one ends that of the first, which
stays as a recording; both are told of the newest. Where nobody has asked for a while, as when the
tab was closed, it stops.

Each beginning, and each choice, draws anew from the seed: what follows is what `heedful generate`
gives for the text so far with the same seed and options.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from heedful.configuration import setting
from heedful.errors import ArgumentError, RunError
from heedful.loaded.loaded_model import LoadedModel
from heedful.models.sampling import Sampling
from heedful.recorder import record
from heedful.recording import Recording
from heedful.recording.checks import is_whole
from heedful.recording.live_generation import Growing
from heedful.views.explorer.catalogue import Texts, short
from heedful.views.explorer.continuation import Continued, GrowingText, continued
from heedful.views.explorer.jobs import caught
from heedful.views.explorer.request import Asked
from heedful.views.explorer.wire import packed

RIVALS = 10  # likely tokens that are told beside the chosen one
UNWATCHED = 20.0  # seconds after which nobody looks any more: a tab in the background asks slowly
DEEDS = ("begin", "on", "stop", "choose")


@dataclasses.dataclass(frozen=True)
class Wishes(Sampling):
    """How a text goes on, as the options of `heedful generate` say it.

    >>> Wishes(tokens=40).temperature
    0.8
    """

    tokens: int = setting(200, "Tokens to add.", low=1, high=1_000_000)
    seed: int | None = setting(None, "For the same choices every time.", low=0, high=2**63 - 1)

    @property
    def sampling(self) -> Sampling:
        """The part that chooses."""
        names = (one.name for one in dataclasses.fields(Sampling))
        return Sampling(**{name: getattr(self, name) for name in names})


class Generation:
    """What the page can do with a model that continues texts.

    Args:
        opened: the model.
        texts: where each text becomes a recording.
        prompt: what is read at first; "" begins from nothing.

    Raises:
        ArgumentError: a model that continues no text.
    """

    def __init__(self, opened: LoadedModel, texts: Texts, prompt: str = "") -> None:
        self._opened, self._texts = opened, texts
        self._sampling = Sampling()
        self._seed: int | None = None
        self._generator: torch.Generator | None = None
        self._left, self._why = 0, ""  # tokens yet to be added, and why there are no more
        self._asked = time.monotonic()
        self._begin(prompt)

    @property
    def number(self) -> int:
        """Of its recording, among the texts."""
        return self._text.number

    @property
    def about(self) -> dict[str, Any]:
        """The model's name, and what can be wished, with the defaults."""
        sentences = {wish.name: wish.metadata["sentence"] for wish in dataclasses.fields(Wishes)}
        first = {name: sentences[name] for name in ("tokens", "temperature")}
        return {
            "model": self._opened.directory.name, "wishes": Wishes().to_dict(),
            "says": first | sentences,
        }  # fmt: skip

    def do(self, deed: str, words: Any) -> bytes:
        """A deed of `DEEDS` with what a page gave, and what is known then.

        Raises:
            ArgumentError: words that do not fit.
            HeedfulError: a prompt that cannot be read.
        """
        if not isinstance(words, dict):
            raise ArgumentError(f"a {type(words).__name__}", expected="an object of words")
        if deed == "begin":
            prompt = words.get("prompt")
            if not isinstance(prompt, str):
                raise ArgumentError(f"prompt {prompt!r}", expected="a text")
            wishes = _wishes(words)
            if not self._text.is_begun_with(prompt):
                self._begin(prompt)
            self._run(wishes)
        elif deed == "choose":
            wishes = _wishes(words)
            self._choose(words.get("at"), words.get("token"))
            self._run(wishes)
        elif deed == "on":
            self._run(_wishes(words))
        else:
            self._left = 0
        return self.told()

    def told(self) -> bytes:
        """How far it is, and with which chances each token was chosen."""
        self._asked = time.monotonic()
        text = self._text
        about = {
            "recording": text.number, "tokens": len(text.ids), "prompt": text.prompt,
            "said": text.said, "runs": self._left > 0, "why": self._why, "full": self._is_full,
            "seed": self._seed,
        }  # fmt: skip
        return packed(about, chances=torch.tensor(text.chances, dtype=torch.float32, device="cpu"))

    def rivals(self, at: Any) -> bytes:
        """The likeliest tokens at a place after the prompt, or after the text.

        Raises:
            ArgumentError: a place where none was chosen.
        """
        ids, chances = self._likely(at)
        chosen = self._text.ids[at] if at < len(self._text.ids) else None
        kept = [n for n, token in enumerate(ids) if token != chosen][:RIVALS]
        pieces = self._opened.pieces([ids[n] for n in kept])
        return packed(
            {"at": at, "ids": [ids[n] for n in kept], "pieces": pieces},
            chances=torch.tensor([chances[n] for n in kept], dtype=torch.float32, device="cpu"),
        )

    def work(self, going_on: Callable[[], bool] = lambda: True) -> bool:
        """Add tokens while there is nothing else to do; whether some were to be added."""
        if not self._left:
            return False
        with caught(lambda error: self._end(str(error))):
            with torch.inference_mode(), record(self._continued.model) as recording:
                while self._left and going_on():
                    if time.monotonic() - self._asked > UNWATCHED:
                        self._end("stopped, because no page looked at it any more")
                    else:
                        self._step(recording)
            self._text.growing.missed |= recording.missed
        return True

    def _begin(self, prompt: str) -> None:
        reading = continued(self._opened, prompt)
        name = short(prompt) or "from nothing"
        text = GrowingText(name, prompt, self._opened, reading, len(reading.ids))
        self._read(text, reading.ids)
        if not text.growing.tokens:
            raise RunError(
                f"no attention in a {type(reading.model).__name__}",
                expected="a model that attends to the tokens before each",
            )
        self._left = 0
        self._open(text, text.name)

    @property
    def _continued(self) -> Continued:
        return self._text.continued

    def _open(self, text: GrowingText, name: str) -> None:
        """Make a text the one that grows, and a recording that can be looked at."""
        text.number = self._texts.grow(name, text)
        self._text, self._why, self._generator = text, "", None

    def _run(self, wishes: Wishes) -> None:
        """Go on; the seed is drawn from anew where something else is wished than before."""
        changed = wishes.sampling != self._sampling
        if self._generator is None or changed or wishes.seed not in (None, self._seed):
            begins = len(self._text.ids) == self._text.prompt
            if wishes.seed is not None:
                self._seed = wishes.seed
            elif begins or self._seed is None:
                self._seed = secrets.randbelow(2**31)
            device = next(self._continued.model.parameters()).device
            self._generator = torch.Generator(device).manual_seed(self._seed)
        self._sampling = wishes.sampling
        self._left, self._why = wishes.tokens, ""
        size = len(self._text.ids)
        self._continued.cut(size, size + wishes.tokens)
        self._asked = time.monotonic()

    def _choose(self, at: Any, token: Any) -> None:
        """Cut the text before a place, and go on from another token there."""
        ids, chances = self._likely(at)
        if not is_whole(token) or token not in ids:
            raise ArgumentError(f"token {token!r}", expected=f"one of the likeliest at {at}")
        text, most = self._text, self._continued.context_length
        if most is not None and at >= most:
            raise ArgumentError(
                f"a token at place {at:,}", expected=f"places below {most:,}, the model's context"
            )
        self._left = 0
        start = at - text.prompt
        [piece] = self._opened.pieces([token])
        new = dataclasses.replace(
            text, growing=Growing(), ids=text.ids[:at], pieces=[],
            likely=text.likely[: start + 1], chances=text.chances[:start],
        )  # fmt: skip
        if self._continued.cut(at, at + 1):
            new.growing = text.growing.until(at)  # else all is read again
        new.chances.append(chances[ids.index(token)])
        self._read(new, [token])
        self._open(new, f"{text.name}, {at}: {piece}")

    def _step(self, recording: Recording) -> None:
        """One token more, or the reason why there is none."""
        if self._is_full:
            self._end(f"the model’s context of {self._continued.context_length:,} tokens is full")
            return
        text = self._text
        before = _row(text.ids).to(text.logits.device)
        token = int(self._sampling.choose(text.logits, before, self._generator))
        if token in self._continued.ends:
            self._end("the model ended the text here")
            return
        chance = float(text.logits.float().softmax(-1)[0, token])
        self._take(text, [token], recording)
        text.chances.append(chance)  # of no token that could not be read
        self._left -= 1

    @property
    def _is_full(self) -> bool:
        most = self._continued.context_length
        return most is not None and len(self._text.ids) >= most

    def _read(self, text: GrowingText, ids: list[int]) -> None:
        """Read tokens, recorded."""
        with torch.inference_mode(), record(text.continued.model) as recording:
            self._take(text, ids, recording)
        text.growing.missed |= recording.missed

    def _take(self, text: GrowingText, ids: list[int], recording: Recording) -> None:
        """Read tokens in an open recording, and know what may follow."""
        reading = text.continued
        device = next(reading.model.parameters()).device
        logits = reading.logits(_row([*text.ids, *ids]).to(device))[:, : reading.size]
        text.growing.take(recording)
        text.ids.extend(ids)
        text.logits = logits
        top = logits[0].float().softmax(-1).topk(min(RIVALS + 1, logits.shape[-1]))
        text.likely.append((top.indices.tolist(), top.values.tolist()))

    def _likely(self, at: Any) -> tuple[list[int], list[float]]:
        first, last = self._text.prompt, len(self._text.ids)
        if not is_whole(at) or not first <= at <= last:
            raise ArgumentError(f"place {at!r}", expected=f"{first} to {last}, after the prompt")
        return self._text.likely[at - first]

    def _end(self, why: str) -> None:
        self._left, self._why = 0, " ".join(why.split())


def file_of(texts: Texts, asked: Asked) -> bytes:
    """The file of a text that grew, with as many tokens as its call was named with.

    Raises:
        ArgumentError: a call of none.
    """
    where = asked.where()
    if len(where) != 4:
        raise ArgumentError("a text that does not grow", expected="recording.text.call.tokens")
    with TemporaryDirectory(prefix="heedful-") as folder:
        return texts.whole(where[0], where[3]).save(Path(folder) / "text").read_bytes()


def _wishes(words: dict[str, Any]) -> Wishes:
    names = {one.name for one in dataclasses.fields(Wishes)}
    return Wishes.from_dict({name: value for name, value in words.items() if name in names})


def _row(ids: Iterable[int]) -> Tensor:
    return torch.tensor([list(ids)], device="cpu")
