"""Vision models, loaded by the transformers library with their image processor.

A recording has one pass over an image. Its picture is the image after the processor has resized
and cropped it. A model that generates text reads the caller's text, or generates a text first.
"""

from __future__ import annotations

import inspect
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.files import read_json
from heedful.loaded.loaded_model import ModelInputs
from heedful.loaded.transformers_models import (
    LoadedTransformers,
    from_pretrained,
    greedy_output,
    import_transformers,
    library_errors,
    model_class,
    read_model,
    read_tokenizer,
)
from heedful.recording import Recording
from heedful.recording.pixels import pixels_of

SETTINGS = ("preprocessor_config.json", "processor_config.json")  # files of image processors


class ImageWarning(UserWarning):
    """A model's patch layout is unknown, so its recordings have no picture."""


@dataclass(frozen=True)
class LoadedVision(LoadedTransformers):
    """A vision model of transformers with its image processor.

    processor: the image processor of transformers, which turns images into tensors. `tokenizer` is
    None if the model reads no text.
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
        """Record one pass over an image and an optional text.

        Args:
            text: the text that the model reads with the image; the decoder of an encoder–decoder
                reads it as if the model had generated it.
            second: must be None.
            image: a path, a PIL image or an array (h, w, 3).
            cut: as in `read`.
            options: `verify` and `progress` of `record_inputs`, and options of `heedful.record`.

        Returns:
            the finished recording, with `images`. If the model's patch layout is unknown, an
            `ImageWarning` is issued and `images` is None.

        Raises:
            ArgumentError: `image` is missing or is not an image, a text is passed to a model that
                reads no text, `second` is not None, or `verify` is set and only the vision part of
                the model runs.
            RunError: the library raised an error, or no attention was recorded.
        """
        from PIL import Image

        name = type(self.model).__name__
        if image is None:
            raise ArgumentError(
                f"no image for a {name}",
                expected="an image: this is a vision model",
                remedy="pass --image photo.jpg (in Python, image=…)",
            )
        if second is not None:
            raise ArgumentError("a second text", expected="an image and at most one text")
        if text is not None and self.tokenizer is None:
            raise ArgumentError(f"a text for a {name}", expected="an image alone")
        pixels = pixels_of(image).data
        with torch.inference_mode(), self.library_errors():
            output = self.processor(images=Image.fromarray(pixels.numpy()), return_tensors="pt")
            tensors = {name: value for name, value in output.items() if isinstance(value, Tensor)}
            image_inputs = self._accepted(tensors)
            model_inputs = ModelInputs(self._all_inputs(image_inputs, text, cut), [])
        if options.get("verify") and self._is_image_only(model_inputs):
            raise ArgumentError(
                f"verify of a {name} on an image alone",
                expected="an image and a text, so that all parts of the model run",
                remedy="omit verify, or record the model's vision part in Python",
            )
        recording = self.record_inputs(model_inputs, **options)
        try:
            recording.set_images([_image_pixels(image_inputs)], processor=self.processor)
        except ArgumentError as error:
            warnings.warn(f"no picture is shown: {error}", ImageWarning, stacklevel=2)
        return recording

    def run(self, model_inputs: ModelInputs) -> Any:
        """Return the model's output; for an image alone, a model like CLIP runs its vision part."""
        model: Any = self.model
        with self.library_errors():
            run = model.get_image_features if self._is_image_only(model_inputs) else model
            return run(**model_inputs.inputs)

    def contexts(self, text: str, max_tokens: int | None = None) -> list[ModelInputs]:
        """Raise an `ArgumentError`: a vision model does not read a text without an image."""
        raise ArgumentError(
            f"a text alone for a {type(self.model).__name__}",
            expected="a model that reads texts",
            cause="this is a vision model",
        )

    def _is_image_only(self, model_inputs: ModelInputs) -> bool:
        """Whether the model has a vision part and a text part, and the inputs have no text."""
        return hasattr(self.model, "get_image_features") and "input_ids" not in model_inputs.inputs

    def _accepted(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs that are arguments of the model, on the model's device."""
        parameters = inspect.signature(self.model.forward).parameters
        return self._on_device({name: inputs[name] for name in inputs if name in parameters})

    def _all_inputs(
        self, inputs: dict[str, Tensor], text: str | None, cut: bool
    ) -> dict[str, Tensor]:
        """Add the text to the image's inputs; without a text, generate one if the model can."""
        parameters, model = inspect.signature(self.model.forward).parameters, self.model
        if "decoder_input_ids" in parameters:
            ids = greedy_output(model, inputs) if text is None else self._decoder_ids(text, cut)
            return inputs | {"decoder_input_ids": ids}
        if text is not None:
            return inputs | self._accepted(self._inputs(text, None, cut))
        if "input_ids" not in parameters or hasattr(model, "get_image_features"):
            return inputs
        return inputs | {"input_ids": greedy_output(model, inputs)}

    def _decoder_ids(self, text: str, cut: bool) -> Tensor:
        """Return a text's ids as inputs of a decoder: with a start token, without an end token."""
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


def _image_pixels(inputs: dict[str, Tensor]) -> Tensor:
    """Return the image (3, h, w) that the model reads; the processor has normalised its values."""
    if "pixel_values" in inputs and inputs["pixel_values"].ndim == 4:
        return inputs["pixel_values"][0]
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in inputs.items())
    raise ArgumentError(f"an image as {shapes}", expected="pixel_values (1, 3, h, w)")


def reads_images(directory: Path) -> bool:
    """Whether the directory has settings of an image processor."""
    files = [path for name in SETTINGS if (path := directory / name).is_file()]
    return any('"image_processor' in json.dumps(read_json(path)) for path in files)


def open_vision(
    directory: Path, device: torch.device, *, allow_pickle: bool = False
) -> LoadedVision:
    """Load the model, its image processor and, if there is one, its tokenizer."""
    library = import_transformers(directory)
    with library_errors(f"open {directory}", directory):
        config = from_pretrained(library.AutoConfig, directory)
        processor = from_pretrained(library.AutoImageProcessor, directory)
        has_text = any(directory.glob("tokenizer*.json")) or any(directory.glob("vocab.*"))
        tokenizer = read_tokenizer(library, directory) if has_text else None
        model = read_model(model_class(library, config), directory, device, allow_pickle)
    if not (config.is_encoder_decoder or model.can_generate()):
        model = model.base_model
    return LoadedVision(model, tokenizer, directory, processor=processor)
