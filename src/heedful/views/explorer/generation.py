"""Generation in the page: a model continues a text, token by token, while the page shows its maps.

A call of a live text has four indices, "r.t.c.T": recording, text, call and number of tokens. A
causal row never changes, so the map of the first T tokens is the same whatever follows: a response
for a given T can be cached, and may arrive late. The page polls `status` for the number of tokens.
Choosing another token starts a new recording with the rows before it; the old recording remains.

A server has one generation. If a second tab starts one, the first ends and remains as a recording;
both tabs get the status of the new one. Without requests, as when the tab is closed, it stops.

Each start and each choice resets the random generator to the seed: the text continues as in
`heedful generate` with the same text so far, seed and options.
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
from heedful.recording.checks import is_integer
from heedful.recording.live_generation import LiveGeneration
from heedful.views.explorer.catalogue import Catalogue, title_of
from heedful.views.explorer.continuation import Continuation, LiveText, continuation
from heedful.views.explorer.jobs import errors_to
from heedful.views.explorer.request import Request
from heedful.views.explorer.wire import packed

ALTERNATIVES = 10  # likely tokens that are listed beside the chosen one
UNWATCHED = 20.0  # seconds without a request, then generation stops; a hidden tab polls slowly
ACTIONS = ("begin", "on", "stop", "choose")


@dataclasses.dataclass(frozen=True)
class GenerationOptions(Sampling):
    """The options of a generation, those of `heedful generate`.

    >>> GenerationOptions(tokens=40).temperature
    0.8
    """

    tokens: int = setting(200, "Tokens to add.", low=1, high=1_000_000)
    seed: int | None = setting(None, "The same seed gives the same text.", low=0, high=2**63 - 1)

    @property
    def sampling(self) -> Sampling:
        """The options that choose a token."""
        names = (option.name for option in dataclasses.fields(Sampling))
        return Sampling(**{name: getattr(self, name) for name in names})


class Generation:
    """The generation of a server: the live text and the actions of the page.

    Args:
        opened: the model.
        catalogue: where each new text is added as a recording.
        prompt: the first prompt, which may be empty.

    Raises:
        ArgumentError: a model that continues no text.
    """

    def __init__(self, opened: LoadedModel, catalogue: Catalogue, prompt: str = "") -> None:
        self._opened, self._catalogue = opened, catalogue
        self._sampling = Sampling()
        self._seed: int | None = None
        self._generator: torch.Generator | None = None
        self._remaining, self._why = 0, ""  # tokens to add, and why the last generation stopped
        self._last_request = time.monotonic()
        self._begin(prompt)

    @property
    def number(self) -> int:
        """The index of the live recording in the catalogue."""
        return self._text.number

    @property
    def about(self) -> dict[str, Any]:
        """The name of the model, and the options with their defaults and help texts."""
        fields = dataclasses.fields(GenerationOptions)
        sentences = {field.name: field.metadata["sentence"] for field in fields}
        first = {name: sentences[name] for name in ("tokens", "temperature")}
        return {
            "model": self._opened.directory.name, "wishes": GenerationOptions().to_dict(),
            "says": first | sentences,
        }  # fmt: skip

    def do(self, action: str, words: Any) -> bytes:
        """Run one of `ACTIONS` with the fields of a request; return the status.

        Raises:
            ArgumentError: a missing or malformed field.
            HeedfulError: a prompt that cannot be read.
        """
        if not isinstance(words, dict):
            raise ArgumentError(f"a {type(words).__name__}", expected="a JSON object")
        if action == "begin":
            prompt = words.get("prompt")
            if not isinstance(prompt, str):
                raise ArgumentError(f"prompt {prompt!r}", expected="a text")
            options = _options(words)
            if not self._text.is_prompt(prompt):
                self._begin(prompt)
            self._run(options)
        elif action == "choose":
            options = _options(words)
            self._choose(words.get("at"), words.get("token"))
            self._run(options)
        elif action == "on":
            self._run(_options(words))
        else:
            self._remaining = 0
        return self.status()

    def status(self) -> bytes:
        """Return the state of the live text, and the probability of each generated token."""
        self._last_request = time.monotonic()
        text = self._text
        about = {
            "recording": text.number, "tokens": len(text.ids), "prompt": text.prompt,
            "said": text.prompt_text, "runs": self._remaining > 0, "why": self._why,
            "full": self._is_full, "seed": self._seed,
        }  # fmt: skip
        return packed(about, chances=torch.tensor(text.chances, dtype=torch.float32, device="cpu"))

    def alternatives(self, position: Any) -> bytes:
        """Return the likeliest other tokens at a position, from the end of the prompt to the next.

        Raises:
            ArgumentError: a position outside this range.
        """
        ids, chances = self._likely(position)
        chosen = self._text.ids[position] if position < len(self._text.ids) else None
        others = [n for n, token in enumerate(ids) if token != chosen][:ALTERNATIVES]
        pieces = self._opened.pieces([ids[n] for n in others])
        return packed(
            {"at": position, "ids": [ids[n] for n in others], "pieces": pieces},
            chances=torch.tensor([chances[n] for n in others], dtype=torch.float32, device="cpu"),
        )

    def work(self, may_continue: Callable[[], bool] = lambda: True) -> bool:
        """Add tokens while `may_continue()` is true; return whether any were to be added."""
        if not self._remaining:
            return False
        with errors_to(lambda error: self._end(str(error))):
            with torch.inference_mode(), record(self._continuation.model) as recording:
                while self._remaining and may_continue():
                    if time.monotonic() - self._last_request > UNWATCHED:
                        self._end(f"stopped, because no page was open for {UNWATCHED:g} seconds")
                    else:
                        self._step(recording)
            self._text.growing.missed |= recording.missed
        return True

    def _begin(self, prompt: str) -> None:
        model = continuation(self._opened, prompt)
        name = title_of(prompt) or "empty prompt"
        text = LiveText(name, prompt, self._opened, model, len(model.ids))
        self._read(text, model.ids)
        if not text.growing.tokens:
            raise RunError(
                f"no attention was recorded in a {type(model.model).__name__}",
                expected="a model with causal attention",
            )
        self._remaining = 0
        self._add(text, text.name)

    @property
    def _continuation(self) -> Continuation:
        return self._text.continuation

    def _add(self, text: LiveText, name: str) -> None:
        """Make a text the live one, and add it to the catalogue."""
        text.number = self._catalogue.add_live(name, text)
        self._text, self._why, self._generator = text, "", None

    def _run(self, options: GenerationOptions) -> None:
        """Start or resume; changed options reset the random generator to the seed."""
        changed = options.sampling != self._sampling
        if self._generator is None or changed or options.seed not in (None, self._seed):
            begins = len(self._text.ids) == self._text.prompt
            if options.seed is not None:
                self._seed = options.seed
            elif begins or self._seed is None:
                self._seed = secrets.randbelow(2**31)
            device = next(self._continuation.model.parameters()).device
            self._generator = torch.Generator(device).manual_seed(self._seed)
        self._sampling = options.sampling
        self._remaining, self._why = options.tokens, ""
        size = len(self._text.ids)
        self._continuation.cut(size, size + options.tokens)
        self._last_request = time.monotonic()

    def _choose(self, position: Any, token: Any) -> None:
        """Truncate the text before a position, and append another token."""
        ids, chances = self._likely(position)
        if not is_integer(token) or token not in ids:
            expected = f"one of the likeliest tokens at position {position}"
            raise ArgumentError(f"token {token!r}", expected=expected)
        text, most = self._text, self._continuation.context_length
        if most is not None and position >= most:
            expected = f"a position below {most:,}, the model's context length"
            raise ArgumentError(f"a token at position {position:,}", expected=expected)
        self._remaining = 0
        start = position - text.prompt
        [piece] = self._opened.pieces([token])
        new = dataclasses.replace(
            text, growing=LiveGeneration(), ids=text.ids[:position], pieces=[],
            likely=text.likely[: start + 1], chances=text.chances[:start],
        )  # fmt: skip
        if self._continuation.cut(position, position + 1):
            new.growing = text.growing.until(position)  # else the model reads the text again
        new.chances.append(chances[ids.index(token)])
        self._read(new, [token])
        self._add(new, f"{text.name}, {position}: {piece}")

    def _step(self, recording: Recording) -> None:
        """Add a token, or set the reason why there is none."""
        if self._is_full:
            length = self._continuation.context_length
            self._end(f"the model’s context of {length:,} tokens is full")
            return
        text = self._text
        before = _row(text.ids).to(text.logits.device)
        token = int(self._sampling.choose(text.logits, before, self._generator))
        if token in self._continuation.ends:
            self._end("the model ended the text here")
            return
        chance = float(text.logits.float().softmax(-1)[0, token])
        self._append(text, [token], recording)
        text.chances.append(chance)  # not if the model failed to read the token
        self._remaining -= 1

    @property
    def _is_full(self) -> bool:
        most = self._continuation.context_length
        return most is not None and len(self._text.ids) >= most

    def _read(self, text: LiveText, ids: list[int]) -> None:
        """Append tokens in a new recording."""
        with torch.inference_mode(), record(text.continuation.model) as recording:
            self._append(text, ids, recording)
        text.growing.missed |= recording.missed

    def _append(self, text: LiveText, ids: list[int], recording: Recording) -> None:
        """Run the model on new tokens, and store their rows and the logits of the next token."""
        model, growing = text.continuation, text.growing
        device = next(model.model.parameters()).device
        logits = model.logits(_row([*text.ids, *ids]).to(device))[:, : model.size]
        growing.append(recording)
        text.ids.extend(ids)
        text.logits = logits
        top = logits[0].float().softmax(-1).topk(min(ALTERNATIVES + 1, logits.shape[-1]))
        text.likely.append((top.indices.tolist(), top.values.tolist()))

    def _likely(self, position: Any) -> tuple[list[int], list[float]]:
        first, last = self._text.prompt, len(self._text.ids)
        if not is_integer(position) or not first <= position <= last:
            expected = f"{first} to {last}, after the prompt"
            raise ArgumentError(f"position {position!r}", expected=expected)
        return self._text.likely[position - first]

    def _end(self, why: str) -> None:
        self._remaining, self._why = 0, " ".join(why.split())


def recording_file(catalogue: Catalogue, request: Request) -> bytes:
    """Return the recording file of a live text; its fourth index is the number of tokens.

    Raises:
        ArgumentError: a call without a number of tokens.
    """
    indices = request.indices()
    if len(indices) != 4:
        raise ArgumentError("three indices", expected="four, recording.text.call.tokens")
    with TemporaryDirectory(prefix="heedful-") as folder:
        return catalogue.recording(indices[0], indices[3]).save(Path(folder) / "text").read_bytes()


def _options(words: dict[str, Any]) -> GenerationOptions:
    names = {option.name for option in dataclasses.fields(GenerationOptions)}
    return GenerationOptions.from_dict({name: words[name] for name in words if name in names})


def _row(ids: Iterable[int]) -> Tensor:
    return torch.tensor([list(ids)], device="cpu")
