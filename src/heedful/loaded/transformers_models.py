"""Models of other architectures, loaded by the transformers library."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, RunError, valid_unicode
from heedful.files import read_json
from heedful.loaded.loaded_model import LoadedModel, ModelInputs
from heedful.loaded.truncation import check_length, check_not_empty, room_for_text
from heedful.models.huggingface.tensor_files import is_refusal, pickle_error
from heedful.text.library_tokenizer import Span
from heedful.text.loading import check_growth
from heedful.token_names import piece

MAX_TARGET = 64  # maximum number of tokens in a generated target
MAX_MESSAGE = 160  # maximum number of characters of the library's message in an error


@dataclass(frozen=True)
class LoadedTransformers(LoadedModel):
    """A model of transformers with its tokenizer.

    writer: the same model with its head, if it generates text without an encoder; otherwise None.
    """

    writer: nn.Module | None = None
    reads_pairs = True

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> ModelInputs:
        """Return the inputs for a text or a pair; errors as in `LoadedModel.read`."""
        with self.library_errors():
            return self._model_inputs(self._inputs(text, second, cut))

    def contexts(self, text: str, max_tokens: int | None = None) -> list[ModelInputs]:
        """See `LoadedModel.contexts`; the library's tokenizer splits the text."""
        self._check_fast("cut a text into contexts")
        with self.library_errors():
            special = len(self.tokenizer("")["input_ids"])
            encoding = self.tokenizer(
                valid_unicode(text), padding=False, truncation=True,
                max_length=special + room_for_text(special, self.context_length, max_tokens),
                return_overflowing_tokens=True,
            )  # fmt: skip
            names = [name for name in self.tokenizer.model_input_names if name in encoding]
            rows = (
                {name: torch.tensor([encoding[name][i]]) for name in names}
                for i in range(len(encoding["input_ids"]))
            )
            return [
                self._model_inputs(self._on_device(row))
                for row in rows
                if row["input_ids"].shape[1] > special
            ]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """See `LoadedModel.spans`; spans are the offsets that the library's tokenizer returns."""
        self._check_fast("report the positions of its tokens")
        with self.library_errors():
            N = self._inputs(text, second, cut)["input_ids"].shape[1]
            texts = [part for part in (text, second) if part is not None]
            encoding = self.tokenizer(
                *texts, truncation=True, max_length=N, return_offsets_mapping=True
            )
        return [
            None if number is None or start == end else Span(number, start, end)
            for number, (start, end) in zip(
                encoding.sequence_ids(0), encoding["offset_mapping"], strict=True
            )
        ]

    def run(self, model_inputs: ModelInputs) -> Any:
        """Return the model's output; raise a `RunError` if the library raises an error."""
        with self.library_errors():
            return super().run(model_inputs)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a printable label for each id, as heedful's tokenizers do."""
        return [piece(self.tokenizer, token) for token in ids]

    @property
    def context_length(self) -> int | None:
        """The maximum number of tokens that the model reads; None if unlimited."""
        config: Any = self.model.config
        limits = [
            getattr(config.get_text_config(), "max_position_embeddings", None),
            self.tokenizer.model_max_length,  # 10³⁰ if its files do not set it
            *_table_lengths(self.model),
        ]
        return min((limit for limit in limits if limit and limit < 10**9), default=None)

    def library_errors(self) -> AbstractContextManager[None]:
        """See the function `library_errors`."""
        return library_errors(f"run a {type(self.model).__name__}")

    def _check_fast(self, task: str) -> None:
        """Raise a `RunError` unless the tokenizer is a fast one; only such tokenizers do `task`."""
        if not self.tokenizer.is_fast:
            raise RunError(
                f"a {type(self.tokenizer).__name__}, which does not {task}",
                expected="a tokenizer of the tokenizers library",
                remedy="record each text separately, and specify segments by token indices, such "
                "as --segments question=40:60",
            )

    def _inputs(self, text: str, second: str | None, cut: bool) -> dict[str, Tensor]:
        texts = [valid_unicode(part) for part in (text, second) if part is not None]
        encoding = self.tokenizer(*texts, return_tensors="pt", padding=False, truncation=False)
        length, context_length = encoding["input_ids"].shape[1], self.context_length
        check_not_empty(length - len(self.tokenizer("")["input_ids"]))
        if not check_length(length, context_length, cut):
            encoding = self.tokenizer(
                *texts, return_tensors="pt", truncation=True, max_length=context_length
            )
        return self._on_device(encoding)

    def _on_device(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        device = next(self.model.parameters()).device
        return {name: tensor.to(device) for name, tensor in inputs.items()}

    @torch.inference_mode()
    def _model_inputs(self, inputs: dict[str, Tensor]) -> ModelInputs:
        """Add labels of the tokens; for an encoder–decoder, also generate the decoder's inputs."""
        tokens, config = self.pieces(inputs["input_ids"][0].tolist()), cast(Any, self.model.config)
        if not config.is_encoder_decoder:
            return ModelInputs(inputs, tokens)
        target = greedy_output(self.model, inputs)
        inputs = {**inputs, "decoder_input_ids": target}
        return ModelInputs(inputs, tokens, self.pieces(target[0].tolist()))


def _table_lengths(model: nn.Module) -> Iterator[int]:
    """Yield the number of positions in each position table; RoBERTa has extra rows for padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            padding_rows = 0 if module.padding_idx is None else module.padding_idx + 1
            yield module.num_embeddings - padding_rows


def greedy_output(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Generate greedily from a model's inputs, and return ids (1, N) without the end token."""
    ids = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=MAX_TARGET)
    return ids[:, :-1] if ids.shape[1] > 1 and int(ids[0, -1]) in end_ids(model) else ids


def end_ids(model: Any) -> frozenset[int]:
    """Return the ids of the tokens that end a text."""
    end = model.generation_config.eos_token_id
    return frozenset(() if end is None else end if isinstance(end, Sequence) else (end,))


def open_transformers(
    directory: Path, device: torch.device, *, allow_pickle: bool = False
) -> LoadedTransformers:
    """Load the model and tokenizer in a directory; raise a `RunError` if a part is missing."""
    library = import_transformers(directory)
    with library_errors(f"open {directory}", directory):
        tokenizer = read_tokenizer(library, directory)
        config = from_pretrained(library.AutoConfig, directory)
        family = model_class(library, config)
        if config.is_encoder_decoder:  # the model needs its head to generate the target
            family = library.AutoModelForSeq2SeqLM
        model = read_model(family, directory, device, allow_pickle)
    # without its head, a model computes the same attention, but saves the time for logits
    base = model if config.is_encoder_decoder else model.base_model
    generates = base is not model and model.can_generate()
    return LoadedTransformers(base, tokenizer, directory, model if generates else None)


def from_pretrained(family: Any, directory: Path, **options: Any) -> Any:
    """Call `family.from_pretrained` on a directory; never run Python code in the directory.

    Without `trust_remote_code=False`, the library asks on standard input whether to run the code.
    """
    try:
        return family.from_pretrained(directory, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise RunError(
            f"{directory} comes with Python code, which heedful does not run",
            expected="a model, a tokenizer and an image processor that transformers includes",
            remedy="read the code; if you trust it, load the model in Python with "
            "trust_remote_code=True, and run the model inside heedful.record(model)",
        ) from error


def read_tokenizer(library: Any, directory: Path) -> Any:
    """Load the tokenizer in a directory, and turn off truncation and padding.

    The files may turn them on, for the batches on which the model was trained.
    """
    tokenizer = from_pretrained(library.AutoTokenizer, directory)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_padding()
        backend.no_truncation()
    tokenizer.truncation_side = "right"
    return tokenizer


def read_model(family: Any, directory: Path, device: torch.device, allow_pickle: bool) -> Any:
    """Load a model in evaluation mode; raise a `RunError` if weights are missing."""
    model, loading_info = from_pretrained(
        family,
        directory,
        dtype=torch.float32 if device.type == "cpu" else "auto",
        use_safetensors=None if allow_pickle else True,
        output_loading_info=True,
    )
    missing = sorted(loading_info["missing_keys"])  # the library initialises these at random
    if missing:
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise RunError(
            f"{directory} has no weights for {missing[0]}{others}",
            expected="every weight of the model that config.json describes",
            cause="a damaged checkpoint, or a checkpoint of another class",
        )
    model.config.get_text_config().use_cache = False
    return model.to(device).eval()


@contextmanager
def library_errors(task: str, directory: Path | None = None) -> Iterator[None]:
    """Turn the library's errors into one-line `RunError`s ("transformers cannot {task}: …")."""
    try:
        yield
    # warnings may be set to raise errors
    except (HeedfulError, Warning, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # also errors of safetensors and torch, and panics of Rust
        if directory is not None and is_refusal(error):
            raise pickle_error(directory) from error
        message = textwrap.shorten(str(error), MAX_MESSAGE, placeholder=" …")
        raise RunError(
            f"transformers cannot {task}: {type(error).__name__}: {message}",
            expected="a model with its tokenizer or image processor, in safetensors",
            remedy="load the model in Python, and run it inside heedful.record(model)",
        ) from error


def import_transformers(directory: Path) -> Any:
    """Import transformers for the model in a directory; raise a `RunError` if not installed."""
    try:
        import transformers
    except ImportError as error:
        raise RunError(
            f"the model in {directory} needs transformers, which is not installed",
            expected="a run, a GPT-2, a BERT or a Llama; transformers loads any other model",
            remedy="pip install 'transformers>=5.0'",
        ) from error
    path = directory / "tokenizer.json"
    if path.exists():
        check_growth(read_json(path), path)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def model_class(library: Any, config: Any) -> Any:
    """Return the class that `config.json` names (others may need more weights), else AutoModel."""
    return getattr(library, str((config.architectures or [None])[0]), library.AutoModel)
