"""A model of an architecture that is not ours, opened by the transformers library."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, RunError
from heedful.loaded.loaded_model import LoadedModel, Pass
from heedful.loaded.truncation import check_length, check_not_empty, room_beside
from heedful.text.library_tokenizer import Span
from heedful.text.tokenizer import whole_characters
from heedful.token_names import piece

LONGEST = 64  # tokens of a target that an encoder–decoder writes
MOST = 160  # letters of the library's own words in an error


@dataclass(frozen=True)
class LoadedTransformers(LoadedModel):
    """A model of transformers with its tokenizer.

    writer: the same model with its head, where that gives the next token of a text.
    """

    writer: nn.Module | None = None
    reads_pairs = True

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """The inputs for a text or a pair; errors as `LoadedModel.read`, and `RunError`."""
        with self.reporting():
            return self._pass(self._inputs(text, second, cut))

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `LoadedModel.contexts`, cut and framed by the library; `RunError` where it cannot."""
        self._check_fast("cut a text into contexts")
        with self.reporting():
            frame = len(self.tokenizer("")["input_ids"])
            found = self.tokenizer(
                whole_characters(text), padding=False, truncation=True,
                max_length=frame + room_beside(frame, self.context_length, most),
                return_overflowing_tokens=True,
            )  # fmt: skip
            names = [name for name in self.tokenizer.model_input_names if name in found]
            rows = (
                {name: torch.tensor([found[name][i]]) for name in names}
                for i in range(len(found["input_ids"]))
            )
            return [
                self._pass(self._on_device(row))
                for row in rows
                if row["input_ids"].shape[1] > frame
            ]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `LoadedModel.spans`, by the library's own offsets."""
        self._check_fast("report where its tokens stand")
        with self.reporting():
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

    def run(self, given: Pass) -> Any:
        """The model's output for what `read` made; `RunError` where the library fails."""
        with self.reporting():
            return super().run(given)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One label for each token, as our own tokenizers give them."""
        return [piece(self.tokenizer, token) for token in ids]

    @property
    def context_length(self) -> int | None:
        """The most tokens that the model reads; None where nothing limits it."""
        config: Any = self.model.config
        limits = [
            getattr(config.get_text_config(), "max_position_embeddings", None),
            self.tokenizer.model_max_length,  # 10³⁰ where its files leave it out
            *_table_lengths(self.model),
        ]
        return min((limit for limit in limits if limit and limit < 10**9), default=None)

    def reporting(self) -> AbstractContextManager[None]:
        """What goes wrong in the library, as one line."""
        return reporting(f"run a {type(self.model).__name__}")

    def _check_fast(self, what: str) -> None:
        """Refuse a tokenizer that is written in Python."""
        if not self.tokenizer.is_fast:
            raise RunError(
                f"a {type(self.tokenizer).__name__}, which does not {what}",
                expected="a tokenizer of the tokenizers library",
                remedy="record each text alone, and name segments by their tokens, as "
                "--segments question=40:60",
            )

    def _inputs(self, text: str, second: str | None, cut: bool) -> dict[str, Tensor]:
        texts = [whole_characters(part) for part in (text, second) if part is not None]
        found = self.tokenizer(*texts, return_tensors="pt", padding=False, truncation=False)
        length, context_length = found["input_ids"].shape[1], self.context_length
        check_not_empty(length - len(self.tokenizer("")["input_ids"]))
        if not check_length(length, context_length, cut):
            found = self.tokenizer(
                *texts, return_tensors="pt", truncation=True, max_length=context_length
            )
        return self._on_device(found)

    def _on_device(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        device = next(self.model.parameters()).device
        return {name: tensor.to(device) for name, tensor in inputs.items()}

    @torch.inference_mode()
    def _pass(self, inputs: dict[str, Tensor]) -> Pass:
        """With what an encoder–decoder writes for them, greedily, as its decoder reads it."""
        tokens, config = self.pieces(inputs["input_ids"][0].tolist()), cast(Any, self.model.config)
        if not config.is_encoder_decoder:
            return Pass(inputs, tokens)
        target = written(self.model, inputs)
        inputs = {**inputs, "decoder_input_ids": target}
        return Pass(inputs, tokens, self.pieces(target[0].tolist()))


def _table_lengths(model: nn.Module) -> Iterator[int]:
    """Rows of tables of positions, less those before the first, as RoBERTa's has for padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            yield module.num_embeddings - first


def written(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a model writes for its inputs, greedily, (1, N), without the end."""
    ids = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=LONGEST)
    end = model.generation_config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    return ids[:, :-1] if ids.shape[1] > 1 and int(ids[0, -1]) in ends else ids


def open_transformers(
    directory: Path, device: torch.device, *, allow_pickle: bool = False
) -> LoadedTransformers:
    """The model and tokenizer of a directory; `RunError` where it does not open whole."""
    library = library_for(directory)
    with reporting(f"open {directory}"):
        tokenizer = read_tokenizer(library, directory)
        config = from_files(library.AutoConfig, directory)
        family = class_named(library, config)
        if config.is_encoder_decoder:  # with its head, to write the target
            family = library.AutoModelForSeq2SeqLM
        model = read_model(family, directory, device, allow_pickle)
    # without its head a model computes the same attention, and no logits of a whole vocabulary
    bare = model if config.is_encoder_decoder else model.base_model
    continues = bare is not model and model.can_generate()
    return LoadedTransformers(bare, tokenizer, directory, model if continues else None)


def from_files(family: Any, directory: Path, **options: Any) -> Any:
    """What a class of the library makes of a directory, whose own Python code is never run.

    Unless it is told so, the library asks on standard input whether it may run it.
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
    """The tokenizer of a directory, which gives all tokens of a text and no padding.

    Its files may ask for both, for the batches that its model was trained on.
    """
    tokenizer = from_files(library.AutoTokenizer, directory)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_padding()
        backend.no_truncation()
    tokenizer.truncation_side = "right"
    return tokenizer


def read_model(family: Any, directory: Path, device: torch.device, allow_pickle: bool) -> Any:
    """A model of a class of the library, in evaluation mode; `RunError` where weights lack."""
    model, about = from_files(
        family,
        directory,
        dtype=torch.float32 if device.type == "cpu" else "auto",
        use_safetensors=None if allow_pickle else True,
        output_loading_info=True,
    )
    missing = sorted(about["missing_keys"])  # which the library would draw at random
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise RunError(
            f"{directory} has no weights for {missing[0]}{more}",
            expected="every weight of the model that config.json describes",
            cause="a damaged checkpoint, or one of another class",
        )
    model.config.get_text_config().use_cache = False
    return model.to(device).eval()


@contextmanager
def reporting(what: str) -> Iterator[None]:
    """What goes wrong in the library, as one line: it cannot do `what`."""
    try:
        yield
    except (HeedfulError, Warning):  # a warning, where Python makes errors of them
        raise
    except Exception as error:  # of many kinds: its own, the hub's, safetensors', json's, torch's
        words = textwrap.shorten(str(error), MOST, placeholder=" …")
        raise RunError(
            f"transformers cannot {what}: {type(error).__name__}: {words}",
            expected="a model with its tokenizer or image processor, in safetensors",
            remedy="open it in Python, and put heedful.record(model) around it",
        ) from error


def library_for(directory: Path) -> Any:
    """The library that opens what is in a directory; `RunError` where it is not installed."""
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


def class_named(library: Any, config: Any) -> Any:
    """The class that wrote the weights, so that none is missing."""
    return getattr(library, str((config.architectures or [None])[0]), library.AutoModel)
