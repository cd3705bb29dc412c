"""A model that looks at images, opened by the transformers library with its image processor.

What is recorded is one pass over an image as the processor makes it: resized and cut to what the
model takes, which is also what is shown. Beside the image there may be a text. A model that writes
about images writes one itself where none is given, and is given one where there is.
"""

from __future__ import annotations

import inspect
import json
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.opened.protocol import Pass
from heedful.opened.transformers_model import (
    OpenedTransformers,
    from_files,
    library_for,
    read_model,
    read_tokenizer,
    telling,
    written,
)
from heedful.recorder import record
from heedful.recording import Recording
from heedful.recording.pixels import pixels_of
from heedful.recording.progress import Tell

SETTINGS = ("preprocessor_config.json", "processor_config.json")  # of a processor, in a directory


class PictureWarning(UserWarning):
    """A model cuts images in a way that is not known, and its recording has no picture."""


@dataclass(frozen=True)
class OpenedVision(OpenedTransformers):
    """A model of transformers that looks at images, with its image processor.

    processor: of transformers, which makes tensors of an image. The tokenizer is None where the
    model reads no text.
    """

    processor: Any = None
    reads_pairs = False
    reads_images = True

    def record(
        self,
        text: str | None = None,
        second: str | None = None,
        *,
        image: Any = None,
        cut: bool = False,
        verify: bool = False,
        progress: Tell = lambda share: None,
        **options: Any,
    ) -> Recording:
        """One pass over an image, and a text where one is given, recorded with the image.

        Args:
            text: what the model reads, or is made to write, beside the image.
            second: none: a model that looks at images reads one text.
            image: a path, a PIL image, an array (h, w, 3).
            cut, verify, progress: as `Opened.record`.
            options: those of `heedful.record`.

        Returns:
            the finished recording with its `images`; where the way in which the model cuts them is
            not known, a `PictureWarning` says so, and there is none.

        Raises:
            ArgumentError: no image, or what is none; a text for a model that reads none; a second;
                `verify` of a model of which only the side that looks runs.
            RunError: what the library said of a pass that failed, or no attention that is seen.
        """
        if image is None:
            raise ArgumentError(
                f"no image for a {type(self.model).__name__}",
                expected="one: it looks at images",
                remedy="--image photo.jpg, in Python image=…",
            )
        if second is not None:
            raise ArgumentError("a second text", expected="one text at most, beside the image")
        if text is not None and self.tokenizer is None:
            raise ArgumentError(
                f"a text for a {type(self.model).__name__}", expected="an image alone"
            )
        if self.tokenizer is not None:
            options.setdefault("tokenizer", self)
        pixels = pixels_of(image).data
        with torch.inference_mode(), self.telling():
            seen = self._seen(pixels)
            called, inputs = self._given(seen, text, cut)
            if verify and called is not self.model:
                raise ArgumentError(
                    f"verify of a {type(self.model).__name__} on an image alone",
                    expected="a model that runs whole",
                    remedy="leave it out, or record its vision model in Python",
                )
            with record(self.model, **options) as recording:
                called(**inputs)
        if verify:
            recording.verify(self.model, inputs, progress=progress)
        self.check_attends(recording)
        try:
            recording.set_images([self._shown(seen)], processor=self.processor)
        except ArgumentError as error:
            warnings.warn(f"no picture is shown: {error}", PictureWarning, stacklevel=2)
        return recording

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """Refused: it looks at an image, and has no text alone.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"a text alone for a {type(self.model).__name__}",
            expected="a model that reads texts",
            cause="it looks at images",
        )

    def telling(self) -> AbstractContextManager[None]:
        """What goes wrong in the library, as one line."""
        return telling(f"run a {type(self.model).__name__} on this image")

    def _seen(self, pixels: Tensor) -> dict[str, Tensor]:
        """What the processor makes of an image, as far as the model takes it."""
        found = self.processor(images=_as_image(pixels), return_tensors="pt")
        known = inspect.signature(self.model.forward).parameters
        device = next(self.model.parameters()).device
        return {
            name: one.to(device)
            for name, one in found.items()
            if name in known and isinstance(one, Tensor)
        }

    def _given(self, seen: dict[str, Tensor], text: str | None, cut: bool) -> tuple[Any, dict]:
        """What of the model is called, and with what."""
        model: Any = self.model
        if "decoder_input_ids" in _arguments(model):
            ids = written(model, seen) if text is None else self._told(text, cut)
            return model, seen | {"decoder_input_ids": ids}
        if text is not None:
            known = _arguments(model)
            read = self._inputs(text, None, cut)
            return model, seen | {name: one for name, one in read.items() if name in known}
        if "input_ids" not in _arguments(model):
            return model, seen
        if hasattr(model, "get_image_features"):  # CLIP and its like: the side that looks
            return model.get_image_features, seen
        return model, seen | {"input_ids": written(model, seen)}

    def _told(self, text: str, cut: bool) -> Tensor:
        """The ids of a text as a decoder reads them that has been told to write it."""
        ids = self._inputs(text, None, cut)["input_ids"]
        config: Any = self.model.config
        start = config.decoder_start_token_id
        if start is None:
            start = self.model.generation_config.decoder_start_token_id  # type: ignore[union-attr]
        if int(ids[0, -1]) == self.tokenizer.eos_token_id:
            ids = ids[:, :-1]
        if start is None or (ids.shape[1] and int(ids[0, 0]) == start):
            return ids
        return torch.cat([ids.new_tensor([[start]]), ids], dim=1)

    def _shown(self, seen: dict[str, Tensor]) -> Tensor:
        """The image as the model saw it, (3, h, w), its values as they were normalised."""
        if "pixel_values" in seen and seen["pixel_values"].ndim == 4:
            return seen["pixel_values"][0]
        flat = seen.get("flattened_patches")
        if flat is None:
            shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in seen.items())
            raise ArgumentError(f"an image as {shapes}", expected="pixel_values (1, 3, h, w)")
        real = flat[0][flat[0, :, 0] > 0]  # row and column from 1, then a patch's pixels
        rows, columns = int(real[:, 0].max()), int(real[:, 1].max())
        side = int((real.shape[1] // 3) ** 0.5)
        return (
            real[:, 2:]
            .view(rows, columns, side, side, 3)
            .permute(4, 0, 2, 1, 3)
            .flatten(1, 2)
            .flatten(2, 3)
        )


def reads_images(directory: Path) -> bool:
    """Whether a directory has the settings of an image processor."""
    for name in SETTINGS:
        try:
            found = json.loads((directory / name).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and ({"image_processor_type", "image_processor"} & set(found)):
            return True
    return False


def open_vision(
    directory: Path, device: torch.device, *, allow_pickle: bool = False
) -> OpenedVision:
    """The model, image processor and, where there is one, tokenizer of a directory.

    Raises:
        RunError: no transformers here, or a directory that it cannot open whole.
    """
    library = library_for(directory)
    with telling(f"open {directory}"):
        config = from_files(library.AutoConfig, directory)
        processor = from_files(library.AutoImageProcessor, directory)
        has_text = any(directory.glob("tokenizer*.json")) or any(directory.glob("vocab.*"))
        tokenizer = read_tokenizer(library, directory) if has_text else None
        name = str((config.architectures or [None])[0])
        family = getattr(library, name, library.AutoModel)
        model = read_model(family, directory, device, allow_pickle)
    writes = config.is_encoder_decoder or model.can_generate()
    whole = model if writes else model.base_model
    return OpenedVision(whole, tokenizer, directory, processor=processor)


def _arguments(model: nn.Module) -> set[str]:
    return set(inspect.signature(model.forward).parameters)


def _as_image(pixels: Tensor) -> Any:
    from PIL import Image

    return Image.fromarray(pixels.numpy())
