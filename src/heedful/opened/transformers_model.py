"""A model of an architecture that is not ours, opened by the transformers library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, RunError
from heedful.opened.cutting import check_not_empty, must_cut, room_beside
from heedful.opened.protocol import Opened, Pass
from heedful.text.library import Span
from heedful.text.tokenizer import whole_characters
from heedful.token_names import piece

LONGEST = 64  # tokens of a target that an encoder–decoder writes
MOST = 160  # letters of the library's own words in an error


@dataclass(frozen=True)
class OpenedTransformers(Opened):
    """A model of transformers with its tokenizer.

    writer: the same model with its head, where that gives the next token of a text.
    """

    writer: nn.Module | None = None
    reads_pairs = True

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """What the model takes for a text, or a pair, by its own names; errors as `Opened.read`.

        Raises:
            RunError: what the library said of a text that it cannot read.
        """
        with self.telling():
            return self._pass(self._inputs(text, second, cut))

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `Opened.contexts`, cut and framed by the library.

        Raises:
            RunError: a text of several contexts, and a tokenizer that does not cut.
        """
        with self.telling():
            frame = len(self.tokenizer("")["input_ids"])
            room = room_beside(frame, self.context_length, most)
            whole = self.tokenizer(whole_characters(text), padding=False, truncation=False)
            length = len(whole["input_ids"])
            if length == frame:
                return []
            if length <= frame + room:
                return [self._pass(self._tensors(whole))]
            if not self.tokenizer.is_fast:
                raise RunError(
                    f"a {type(self.tokenizer).__name__}, which does not cut a text into contexts",
                    expected="a tokenizer of the tokenizers library, or shorter texts",
                )
            cut = self.tokenizer(
                whole_characters(text), padding=False, truncation=True,
                max_length=frame + room, return_overflowing_tokens=True,
            )  # fmt: skip
            names = [name for name in cut if name in whole]
            parts = [{name: cut[name][i] for name in names} for i in range(len(cut["input_ids"]))]
            return [self._pass(self._tensors(part)) for part in parts]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `Opened.spans`, by the library's own offsets."""
        if not self.tokenizer.is_fast:
            raise RunError(
                f"a {type(self.tokenizer).__name__}, which does not tell where its tokens stand",
                expected="a tokenizer of the tokenizers library",
                remedy="tell segments by their tokens, as --segments question=40:60",
            )
        with self.telling():
            N = self._inputs(text, second, cut)["input_ids"].shape[1]
            texts = [part for part in (text, second) if part is not None]
            found = self.tokenizer(
                *texts, truncation=True, max_length=N, return_offsets_mapping=True
            )
        return [
            None if number is None or start == end else Span(number, start, end)
            for number, (start, end) in zip(
                found.sequence_ids(0), found["offset_mapping"], strict=True
            )
        ]

    def target_tokens(self, given: Pass) -> list[str] | None:
        """What an encoder–decoder has written, as its decoder reads it; None of other models."""
        written = given.keywords.get("decoder_input_ids")
        return None if written is None else self.pieces(written[0].tolist())

    def run(self, given: Pass) -> Any:
        """The model's output for what `read` made.

        Raises:
            RunError: what the library said of a pass that failed.
        """
        with self.telling():
            return super().run(given)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One label for each token, as our own tokenizers give them."""
        return [piece(self.tokenizer, token) for token in ids]

    @property
    def context_length(self) -> int | None:
        """The most tokens that the model reads; None where nothing says so."""
        return _context(self)

    def telling(self) -> AbstractContextManager[None]:
        """What goes wrong in the library, as one line."""
        return telling(f"run a {type(self.model).__name__} on this text")

    def _inputs(self, text: str, second: str | None, cut: bool) -> dict[str, Tensor]:
        texts = [whole_characters(part) for part in (text, second) if part is not None]
        found = self.tokenizer(*texts, return_tensors="pt", padding=False, truncation=False)
        length, context_length = found["input_ids"].shape[1], self.context_length
        check_not_empty(length - len(self.tokenizer("")["input_ids"]))
        if must_cut(length, context_length, cut):
            found = self.tokenizer(
                *texts, return_tensors="pt", truncation=True, max_length=context_length
            )
        device = next(self.model.parameters()).device
        return {name: tensor.to(device) for name, tensor in found.items()}

    def _tensors(self, given: Mapping[str, list[int]]) -> dict[str, Tensor]:
        """What the tokenizer makes of one text, as a batch of one."""
        device = next(self.model.parameters()).device
        return {name: torch.tensor([numbers], device=device) for name, numbers in given.items()}

    def _pass(self, inputs: dict[str, Tensor]) -> Pass:
        given = inputs | self._target(inputs)
        return Pass((), given, self.pieces(inputs["input_ids"][0].tolist()))

    @torch.inference_mode()
    def _target(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What an encoder–decoder writes for them, greedily, as its decoder reads it."""
        config: Any = self.model.config
        if not config.is_encoder_decoder:
            return {}
        return {"decoder_input_ids": written(self.model, inputs)}


def written(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a model writes for its inputs, greedily, (1, N), without the end."""
    ids = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=LONGEST)
    end = model.generation_config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    return ids[:, :-1] if ids.shape[1] > 1 and int(ids[0, -1]) in ends else ids


def open_transformers(
    directory: Path, device: torch.device, *, allow_pickle: bool = False
) -> OpenedTransformers:
    """The model and tokenizer of a directory, through transformers; its code is never run.

    Raises:
        RunError: no transformers here, or a directory that it cannot open whole.
    """
    library = library_for(directory)
    with telling(f"open {directory}"):
        tokenizer = read_tokenizer(library, directory)
        config = from_files(library.AutoConfig, directory)
        model = read_model(_class(library, config), directory, device, allow_pickle)
    # without its head a model computes the same attention, and no logits of a whole vocabulary
    bare = model if config.is_encoder_decoder else model.base_model
    writes = bare is not model and model.can_generate()
    return OpenedTransformers(bare, tokenizer, directory, model if writes else None)


def from_files(family: Any, directory: Path, **options: Any) -> Any:
    """What a class of the library makes of a directory; the only call that opens one.

    The library asks on standard input whether it may run the Python files of a directory, unless
    it is told that it may not.

    Raises:
        RunError: a directory that does not open without its own code.
    """
    try:
        return family.from_pretrained(directory, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise RunError(
            f"{directory} needs code of its own, which heedful does not run",
            expected="a model, a tokenizer and an image processor that transformers has",
            remedy="read that code; where you trust it, open the model in Python with "
            "trust_remote_code=True, and put heedful.record(model) around it",
        ) from error


def read_tokenizer(library: Any, directory: Path) -> Any:
    """The tokenizer of a directory, which gives all tokens of a text."""
    tokenizer = from_files(library.AutoTokenizer, directory)
    _as_they_are(tokenizer)
    return tokenizer


def read_model(family: Any, directory: Path, device: torch.device, allow_pickle: bool) -> Any:
    """A model of a class of the library, on a device, in evaluation mode.

    Raises:
        RunError: weights that the directory lacks.
    """
    model, about = from_files(
        family,
        directory,
        dtype=torch.float32 if device.type == "cpu" else "auto",
        use_safetensors=None if allow_pickle else True,
        output_loading_info=True,
    )
    _check_whole(about, directory)
    model.config.get_text_config().use_cache = False
    return model.to(device).eval()


@contextmanager
def telling(what: str) -> Iterator[None]:
    """What goes wrong in the library, as one line: it cannot do `what`."""
    try:
        yield
    except (HeedfulError, Warning):  # a warning, where Python makes errors of them
        raise
    except Exception as error:  # of many kinds: its own, the hub's, safetensors', json's, torch's
        raise _refused(what, error) from error


def library_for(directory: Path) -> Any:
    """The library that opens what is in a directory.

    Raises:
        RunError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise RunError(
            f"{directory} holds a model that is none of ours, and transformers is not installed",
            expected="a run, a GPT-2, a BERT or a Llama; or the library, which opens the others",
            remedy="pip install 'transformers>=5.0'",
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _class(library: Any, config: Any) -> Any:
    """The class that wrote the weights, so that none is missing; one that writes, to translate."""
    if config.is_encoder_decoder:
        return library.AutoModelForSeq2SeqLM
    return getattr(library, str((config.architectures or [None])[0]), library.AutoModel)


def _refused(what: str, error: Exception) -> RunError:
    said = " ".join(str(error).split())
    said = said if len(said) <= MOST else said[:MOST].rsplit(" ", 1)[0] + " …"
    return RunError(
        f"transformers cannot {what}: {type(error).__name__}: {said}",
        expected="a model with its tokenizer or image processor, in safetensors",
        remedy="open it in Python, and put heedful.record(model) around it",
    )


def _check_whole(about: Mapping[str, Any], directory: Path) -> None:
    """Refuse weights that the library made up where the files have none."""
    missing = sorted(about["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise RunError(
            f"{directory} has no weights for {missing[0]}{more}",
            expected="every weight of the model that config.json describes",
            cause="a damaged checkpoint, or one of another class",
        )


def _as_they_are(tokenizer: Any) -> None:
    """Let a tokenizer give a text's own tokens, all of them, and cut no beginning.

    Its files may ask for padding and a length, for the batches that its model was trained on.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_padding()
        backend.no_truncation()
    tokenizer.truncation_side = "right"


def _context(opened: OpenedTransformers) -> int | None:
    """The most tokens that the model reads; None where nothing says so."""
    config: Any = opened.model.config
    limits = (
        getattr(config.get_text_config(), "max_position_embeddings", None),
        opened.tokenizer.model_max_length,  # 10³⁰ where its files do not say
        *_positions(opened.model),
    )
    known = [limit for limit in limits if limit and limit < 10**9]
    return min(known, default=None)


def _positions(model: nn.Module) -> Iterator[int]:
    """The places of tables that begin after that of padding, as RoBERTa's do."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            yield module.num_embeddings - first
