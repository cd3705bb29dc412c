"""A model that looks at images, opened by the transformers library with its image processor.

What is recorded is one pass over an image as the processor makes it: resized and cut to what the
model takes, which is also what is shown. Beside the image there may be a text. A model that writes
about images writes one itself where none is given, and is given one where there is.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.loaded.loaded_model import Pass
from heedful.loaded.transformers_models import (
    LoadedTransformers,
    class_named,
    from_files,
    library_for,
    read_model,
    read_tokenizer,
    reporting,
    written,
)
from heedful.recording import Recording
from heedful.recording.pixels import pixels_of

SETTINGS = ("preprocessor_config.json", "processor_config.json")  # of a processor, in a directory


class ImageWarning(UserWarning):
    """A model cuts images in a way that is not known, and its recording has no picture."""


@dataclass(frozen=True)
class LoadedVision(LoadedTransformers):
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
        **options: Any,
    ) -> Recording:
        """One pass over an image, and a text where one is given, recorded with the image.

        Args:
            text: what the model reads, or is made to write, beside the image.
            second: none: a model that looks at images reads one text.
            image: a path, a PIL image, an array (h, w, 3).
            cut: as `read`.
            options: `verify` and `progress` of `recorded`, and those of `heedful.record`.

        Returns:
            the finished recording with its `images`; where the way in which the model cuts them is
            not known, there is none, and a `ImageWarning` reports it.

        Raises:
            ArgumentError: no image, or what is none; a text for a model that reads none; a second;
                `verify` of a model of which only the side that looks runs.
            RunError: what the library reported of a pass that failed, or no attention that is seen.
        """
        name = type(self.model).__name__
        if image is None:
            raise ArgumentError(
                f"no image for a {name}",
                expected="one: it looks at images",
                remedy="--image photo.jpg, in Python image=…",
            )
        if second is not None:
            raise ArgumentError("a second text", expected="one text at most, beside the image")
        if text is not None and self.tokenizer is None:
            raise ArgumentError(f"a text for a {name}", expected="an image alone")
        pixels = pixels_of(image).data
        with torch.inference_mode(), self.reporting():
            seen = self._seen(pixels)
            given = Pass(self._inputs_beside(seen, text, cut), [])
        if options.get("verify") and self._looks_alone(given):
            raise ArgumentError(
                f"verify of a {name} on an image alone",
                expected="a model that runs whole",
                remedy="leave it out, or record its vision model in Python",
            )
        recording = self.recorded(given, **options)
        try:
            recording.set_images([_shown(seen)], processor=self.processor)
        except ArgumentError as error:
            warnings.warn(f"no picture is shown: {error}", ImageWarning, stacklevel=2)
        return recording

    def run(self, given: Pass) -> Any:
        """The model's output; of an image alone, CLIP and its like run the side that looks."""
        model: Any = self.model
        with self.reporting():
            run = model.get_image_features if self._looks_alone(given) else model
            return run(**given.inputs)

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """Refused: it looks at an image, and has no text alone; `ArgumentError`."""
        raise ArgumentError(
            f"a text alone for a {type(self.model).__name__}",
            expected="a model that reads texts",
            cause="it looks at images",
        )

    def _looks_alone(self, given: Pass) -> bool:
        """Whether a model that compares texts and images is given an image and no text."""
        return hasattr(self.model, "get_image_features") and "input_ids" not in given.inputs

    def _seen(self, pixels: Tensor) -> dict[str, Tensor]:
        """What the processor makes of an image, as far as the model takes it."""
        from PIL import Image

        found = self.processor(images=Image.fromarray(pixels.numpy()), return_tensors="pt")
        return self._taken({n: value for n, value in found.items() if isinstance(value, Tensor)})

    def _taken(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those that are arguments of the model, on its device."""
        takes = inspect.signature(self.model.forward).parameters
        return self._on_device({name: inputs[name] for name in inputs if name in takes})

    def _inputs_beside(
        self, seen: dict[str, Tensor], text: str | None, cut: bool
    ) -> dict[str, Tensor]:
        """What the model is given beside the image: a text, or what it writes where there is none.

        A decoder is given the text as if it had been written.
        """
        takes = inspect.signature(self.model.forward).parameters
        if "decoder_input_ids" in takes:
            ids = written(self.model, seen) if text is None else self._as_written(text, cut)
            return seen | {"decoder_input_ids": ids}
        if text is not None:
            return seen | self._taken(self._inputs(text, None, cut))
        if "input_ids" not in takes or hasattr(self.model, "get_image_features"):
            return seen
        return seen | {"input_ids": written(self.model, seen)}

    def _as_written(self, text: str, cut: bool) -> Tensor:
        """The ids of a text as a decoder reads them once it has written it: a start, and no end."""
        ids = self._inputs(text, None, cut)["input_ids"]
        model: Any = self.model
        start = model.config.decoder_start_token_id
        if start is None:
            start = model.generation_config.decoder_start_token_id
        if int(ids[0, -1]) == self.tokenizer.eos_token_id:
            ids = ids[:, :-1]
        if start is None or (ids.shape[1] and int(ids[0, 0]) == start):
            return ids
        return torch.cat([ids.new_tensor([[start]]), ids], dim=1)


def _shown(seen: dict[str, Tensor]) -> Tensor:
    """The image as the model saw it, (3, h, w), its values as they were normalised."""
    if "pixel_values" in seen and seen["pixel_values"].ndim == 4:
        return seen["pixel_values"][0]
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in seen.items())
    raise ArgumentError(f"an image as {shapes}", expected="pixel_values (1, 3, h, w)")


def reads_images(directory: Path) -> bool:
    """Whether a directory has the settings of an image processor."""
    files = [path for name in SETTINGS if (path := directory / name).is_file()]
    return any('"image_processor' in path.read_text("utf-8", errors="replace") for path in files)


def open_vision(
    directory: Path, device: torch.device, *, allow_pickle: bool = False
) -> LoadedVision:
    """As `open_transformers`, with the image processor, and a tokenizer where there is one."""
    library = library_for(directory)
    with reporting(f"open {directory}"):
        config = from_files(library.AutoConfig, directory)
        processor = from_files(library.AutoImageProcessor, directory)
        has_text = any(directory.glob("tokenizer*.json")) or any(directory.glob("vocab.*"))
        tokenizer = read_tokenizer(library, directory) if has_text else None
        model = read_model(class_named(library, config), directory, device, allow_pickle)
    writes = config.is_encoder_decoder or model.can_generate()
    whole = model if writes else model.base_model
    return LoadedVision(whole, tokenizer, directory, processor=processor)
