"""Models of architectures that are not ours, opened by the transformers library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from heedful.cli.fitting import check_not_empty, must_cut
from heedful.errors import HeedfulError, RunError
from heedful.files import read_json
from heedful.models.pretrained import ARCHITECTURES
from heedful.text.tokenizer import SIGNS, whole_characters
from heedful.train import choose_device

SPACES = "Ġ▁"  # how byte-level BPE and SentencePiece write the space before a word
LONGEST = 64  # tokens of a target that an encoder–decoder writes
MOST = 160  # letters of the library's own words in an error


class Foreign(NamedTuple):
    """A model of transformers with its tokenizer."""

    model: nn.Module
    tokenizer: Any

    def inputs(
        self, text: str, second: str | None = None, cut: bool = False
    ) -> dict[str, torch.Tensor]:
        """What the model takes for a text, or a pair: its own names to tensors, a batch of one.

        Raises:
            TextError: an empty text, or one that is longer than the model's context without `cut`.
        """
        texts = [whole_characters(part) for part in (text, second) if part is not None]
        found = self.tokenizer(*texts, return_tensors="pt", padding=False, truncation=False)
        length, context_length = found["input_ids"].shape[1], _context(self)
        check_not_empty(length - len(self.tokenizer("")["input_ids"]))
        if must_cut(length, context_length, cut):
            found = self.tokenizer(
                *texts, return_tensors="pt", truncation=True, max_length=context_length
            )
        device = next(self.model.parameters()).device
        inputs = {name: tensor.to(device) for name, tensor in found.items()}
        return inputs | self._target(inputs)

    def pieces(self, ids: list[int]) -> list[str]:
        """One label for each token, as our own tokenizers give them."""
        return [_piece(self.tokenizer, token) for token in ids]

    def _target(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What an encoder–decoder writes for them, greedily, as its decoder reads it."""
        config: Any = self.model.config
        if not config.is_encoder_decoder:
            return {}
        model: Any = self.model
        ids = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=LONGEST)
        end = model.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        last = ids.shape[1] > 1 and int(ids[0, -1]) in ends
        return {"decoder_input_ids": ids[:, :-1] if last else ids}


def is_foreign(directory: Path) -> bool:
    """Whether a directory holds a model in Hugging Face format that is not one of ours.

    Raises:
        RunError: as `foreign_name`.
    """
    return foreign_name(directory) is not None


def foreign_name(directory: Path) -> str | None:
    """The architecture of a model in Hugging Face format that is not one of ours; None of ours.

    Raises:
        RunError: no `config.json`, or one that cannot be read.
    """
    description = read_json(directory / "config.json")
    if not isinstance(description, Mapping):
        return None  # a damaged one, which is refused where it is read
    kind = str(description.get("model_type", "heedful-"))
    known = ARCHITECTURES.get(kind)
    named = (description.get("architectures") or [None])[0]
    ours = known is not None and named in (None, *known.classes)
    return None if ours or kind.startswith("heedful-") else str(named or kind)


def open_foreign(directory: Path, device: str = "auto", *, allow_pickle: bool = False) -> Foreign:
    """The model and tokenizer of a directory, through transformers; its code is never run.

    Raises:
        RunError: no transformers here, or a directory that it cannot open whole.
    """
    where = choose_device(device)
    library = _library(directory)
    dtype = torch.float32 if where.type == "cpu" else "auto"
    try:
        config = library.AutoConfig.from_pretrained(directory)
        tokenizer = library.AutoTokenizer.from_pretrained(directory)
        model, about = _class(library, config).from_pretrained(
            directory,
            dtype=dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
        )
    except Exception as error:  # of many kinds: its own, the hub's, safetensors', json's, torch's
        raise _refused(f"open {directory}", error) from error
    _check_whole(about, directory)
    _as_they_are(tokenizer)
    model.config.get_text_config().use_cache = False
    # without its head a model computes the same attention, and no logits of a whole vocabulary
    bare = model if config.is_encoder_decoder else model.base_model
    return Foreign(bare.to(where).eval(), tokenizer)


def _library(directory: Path) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise RunError(
            f"{directory} holds a model that is none of ours, and transformers is not installed",
            expected="a run, a GPT-2 or a BERT; or the library, which opens the others",
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


@contextmanager
def telling(opened: object) -> Iterator[None]:
    """What goes wrong in a model of the library, as one line; of another, as it is.

    Raises:
        RunError: with what the library said.
    """
    try:
        yield
    except HeedfulError:
        raise
    except Exception as error:
        if not isinstance(opened, Foreign):
            raise
        raise _refused(f"run a {type(opened.model).__name__} on this text", error) from error


def _refused(what: str, error: Exception) -> RunError:
    said = " ".join(str(error).split())
    said = said if len(said) <= MOST else said[:MOST].rsplit(" ", 1)[0] + " …"
    return RunError(
        f"transformers cannot {what}: {type(error).__name__}: {said}",
        expected="a language model with its tokenizer, in safetensors",
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


def _context(opened: Foreign) -> int | None:
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


def _piece(tokenizer: Any, token: int) -> str:
    name, text = str(tokenizer.convert_ids_to_tokens(token)), str(tokenizer.decode([token]))
    spaces = len(name) - len(name.lstrip(SPACES))
    if spaces:  # some decoders leave out the first
        text = " " * spaces + text.lstrip(f" {SPACES}")
    if not text or "\ufffd" in text:  # part of a character, or nothing by itself
        return name
    return "".join(SIGNS.get(char, char) for char in text)
