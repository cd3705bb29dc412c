"""Generation in the page: a model adds tokens to a text while the page shows the text's maps.

A call of a live text has four indices, "r.t.c.T": recording, text, call and number of tokens. The
rows of a causal map never change, so the map of the first T tokens does not depend on later tokens.
A response for T tokens can thus be cached, and may arrive late. The page polls `status` for the
number of tokens. If the user chooses another token, a new recording starts with the rows before
that token. The old recording remains.

A server has one generation at a time. If a second tab starts a generation, the first one ends, and
its text remains as a recording. Both tabs get the status of the new generation. A generation stops
`UNWATCHED` seconds after the last request for its status.

Each start and each choice of a token resets the random generator to the seed, so the text continues
as `heedful generate` would continue it, with the same seed and options.
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
from heedful.models.checks import check_logits
from heedful.models.sampling import Sampling
from heedful.recorder import record
from heedful.recording import Recording
from heedful.recording.checks import is_integer
from heedful.recording.live_generation import LiveGeneration
from heedful.views.explorer.catalogue import Catalogue, title_of
from heedful.views.explorer.continuation import LiveText, continuation
from heedful.views.explorer.jobs import errors_to
from heedful.views.explorer.request import Request
from heedful.views.explorer.wire import packed

ALTERNATIVES = 10  # likely tokens that are listed besides the chosen one
UNWATCHED = 20.0  # seconds without a request for the status; a hidden tab polls slowly
ACTIONS = ("begin", "on", "stop", "choose")


@dataclasses.dataclass(frozen=True)
class GenerationOptions(Sampling):
    """The options of a generation, as in `heedful generate`.

    >>> GenerationOptions(tokens=40).temperature
    0.8
    """

    tokens: int = setting(200, "Tokens to add.", low=1, high=1_000_000)
    seed: int | None = setting(None, "The same seed gives the same text.", low=0, high=2**63 - 1)


class Generation:
    """The generation of a server: the live text and the actions of the page.

    Args:
        loaded: the model.
        catalogue: each new text is added to it as a recording.
        prompt: the first prompt, which may be empty.

    Raises:
        ArgumentError: a model that continues no text.
        TextError: a prompt that is longer than the context.
        RunError: a model without attention that can be recorded as the text grows.
    """

    def __init__(self, loaded: LoadedModel, catalogue: Catalogue, prompt: str = "") -> None:
        self._loaded, self._catalogue = loaded, catalogue
        self._sampling = GenerationOptions()
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
        options = dataclasses.fields(GenerationOptions)
        sentences = {option.name: option.metadata["sentence"] for option in options}
        first = {name: sentences[name] for name in ("tokens", "temperature")}
        return {
            "model": self._loaded.directory.name, "wishes": GenerationOptions().to_dict(),
            "says": first | sentences,
        }  # fmt: skip

    def do(self, action: str, fields: Any) -> bytes:
        """Run one of `ACTIONS` with the fields of a request; return the status.

        Raises:
            ArgumentError: a missing or malformed field.
            HeedfulError: a prompt that the model cannot read.
        """
        if not isinstance(fields, dict):
            raise ArgumentError(f"a {type(fields).__name__}", expected="a JSON object")
        if action == "stop":
            self._remaining = 0
            return self.status()
        prompt: Any = fields.get("prompt")
        if action == "begin" and not isinstance(prompt, str):
            raise ArgumentError(f"prompt {prompt!r}", expected="a text")
        options = _options(fields)
        is_new = self._text.prompt_text != prompt or len(self._text.ids) > self._text.prompt
        if action == "begin" and is_new:
            self._begin(prompt)
        elif action == "choose":
            self._choose(fields.get("at"), fields.get("token"))
        self._run(options)
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
        """Return the likeliest alternatives to the token at a position, and their probabilities.

        Raises:
            ArgumentError: a position in the prompt, or a position beyond the next token.
        """
        ids, chances = self._likely(position)
        chosen = self._text.ids[position] if position < len(self._text.ids) else None
        others = [n for n, token in enumerate(ids) if token != chosen][:ALTERNATIVES]
        pieces = self._loaded.pieces([ids[n] for n in others])
        return packed(
            {"at": position, "ids": [ids[n] for n in others], "pieces": pieces},
            chances=torch.tensor([chances[n] for n in others], dtype=torch.float32, device="cpu"),
        )

    def work(self, may_continue: Callable[[], bool] = lambda: True) -> bool:
        """Add tokens while `may_continue()` is true; return False if there were none to add."""
        if not self._remaining:
            return False
        with errors_to(lambda error: self._end(str(error))):
            with torch.inference_mode(), record(self._text.continuation.model) as recording:
                while self._remaining and may_continue():
                    if time.monotonic() - self._last_request > UNWATCHED:
                        self._end(f"stopped, because no page was open for {UNWATCHED:g} seconds")
                    else:
                        self._step(recording)
            self._text.growing.missed |= recording.missed
        return True

    def _begin(self, prompt: str) -> None:
        model = continuation(self._loaded, prompt)
        name = title_of([prompt]) or "empty prompt"
        text = LiveText(name, prompt, self._loaded, model, len(model.ids))
        self._read(text, model.ids)
        if not text.growing.tokens:
            raise RunError(
                f"no attention was recorded in a {type(model.model).__name__}",
                expected="a model with causal attention",
            )
        self._remaining = 0
        self._add(text, text.name)

    def _add(self, text: LiveText, name: str) -> None:
        """Make `text` the live text, and add it to the catalogue."""
        text.number = self._catalogue.add_live(name, text)
        self._text, self._why, self._generator = text, "", None

    def _run(self, options: GenerationOptions) -> None:
        """Start or resume generating; a new seed or sampling option resets the random generator."""
        sampling = dataclasses.replace(options, tokens=1, seed=None)  # only how to choose
        changed = sampling != self._sampling
        if self._generator is None or changed or options.seed not in (None, self._seed):
            begins = len(self._text.ids) == self._text.prompt
            if options.seed is not None:
                self._seed = options.seed
            elif begins or self._seed is None:
                self._seed = secrets.randbelow(2**31)
            device = next(self._text.continuation.model.parameters()).device
            self._generator = torch.Generator(device).manual_seed(self._seed)
        self._sampling = sampling
        self._remaining, self._why = options.tokens, ""
        size = len(self._text.ids)
        self._text.continuation.cut(size, size + options.tokens)
        self._last_request = time.monotonic()

    def _choose(self, position: Any, token: Any) -> None:
        """Start a new text: the tokens before a position, then another token."""
        ids, chances = self._likely(position)
        if not is_integer(token) or token not in ids:
            expected = f"one of the likeliest tokens at position {position}"
            raise ArgumentError(f"token {token!r}", expected=expected)
        text, limit = self._text, self._text.continuation.context_length
        if limit is not None and position >= limit:
            expected = f"a position below {limit:,}, the model's context length"
            raise ArgumentError(f"a token at position {position:,}", expected=expected)
        self._remaining = 0
        start = position - text.prompt
        [piece] = self._loaded.pieces([token])
        new = dataclasses.replace(
            text, growing=LiveGeneration(), ids=text.ids[:position], pieces=[],
            likely=text.likely[: start + 1], chances=text.chances[:start],
        )  # fmt: skip
        if self._text.continuation.cut(position, position + 1):
            new.growing = text.growing.until(position)  # else the model must read the text again
        new.chances.append(chances[ids.index(token)])
        self._read(new, [token])
        self._add(new, f"{text.name}, {position}: {piece}")

    def _step(self, recording: Recording) -> None:
        """Add a token, or end the generation with a reason."""
        if self._is_full:
            length = self._text.continuation.context_length
            self._end(f"the model’s context of {length:,} tokens is full")
            return
        text = self._text
        previous = _row(text.ids).to(text.logits.device)
        token = int(self._sampling.choose(text.logits, previous, self._generator))
        if token in self._text.continuation.ends:
            self._end("the model ended the text here")
            return
        chance = float(text.logits.softmax(-1)[0, token])
        self._append(text, [token], recording)
        text.chances.append(chance)  # after `_append`, which may raise
        self._remaining -= 1

    @property
    def _is_full(self) -> bool:
        limit = self._text.continuation.context_length
        return limit is not None and len(self._text.ids) >= limit

    def _read(self, text: LiveText, ids: list[int]) -> None:
        """Append tokens as `_append` does, within a new recording."""
        with torch.inference_mode(), record(text.continuation.model) as recording:
            self._append(text, ids, recording)
        text.growing.missed |= recording.missed

    def _append(self, text: LiveText, ids: list[int], recording: Recording) -> None:
        """Append tokens: run the model on them, store their rows and the next token's logits."""
        model, growing = text.continuation, text.growing
        device = next(model.model.parameters()).device
        logits = check_logits(model.logits(_row([*text.ids, *ids]).to(device))[:, : model.size])
        growing.append(recording)
        text.ids.extend(ids)
        text.logits = logits
        top = logits[0].softmax(-1).topk(min(ALTERNATIVES + 1, logits.shape[-1]))
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
    """Return a live text as a recording file; the fourth index is the number of tokens.

    Raises:
        ArgumentError: indices without a number of tokens, out of range, or of a complete recording.
    """
    indices = request.indices()
    if len(indices) != 4:
        raise ArgumentError("three indices", expected="four, recording.text.call.tokens")
    with TemporaryDirectory(prefix="heedful-") as folder:
        return catalogue.recording(indices[0], indices[3]).save(Path(folder) / "text").read_bytes()


def _options(fields: dict[str, Any]) -> GenerationOptions:
    names = {option.name for option in dataclasses.fields(GenerationOptions)}
    return GenerationOptions.from_dict({name: fields[name] for name in fields if name in names})


def _row(ids: Iterable[int]) -> Tensor:
    return torch.tensor([list(ids)], device="cpu")
