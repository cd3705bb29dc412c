"""Candidate inputs of a model of transformers, derived from the signature of its forward pass.

A batch has two sequences, images or sounds, without padding. `INPUTS` lists the models whose
inputs cannot be derived.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tiny_models import IMAGE
from torch import Tensor

LENGTH = 9


def candidate_inputs(model: torch.nn.Module, kind: str) -> Iterator[dict[str, Any]]:
    """Yield inputs that the model may accept, most arguments first."""
    config = model.config
    for pattern, make in INPUTS:
        if re.fullmatch(pattern, kind):
            yield make(config)
            return
    names = list(inspect.signature(model.forward).parameters)
    if "grid_thw" in names:
        arguments = patches(config)
        yield {name: value for name, value in arguments.items() if name in names}
        return
    inputs = {name: value for name in names if (value := _argument(name, config)) is not None}
    ids = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
    decoder = {k: v for k, v in inputs.items() if k.startswith("decoder_input_ids")}
    others = {k: v for k, v in inputs.items() if k not in ids and k not in decoder}
    main = getattr(model, "main_input_name", None)
    yield inputs
    if ids:
        yield {**ids, **decoder}
    if main in inputs:
        yield {main: inputs[main], **decoder}
        yield {main: inputs[main]}
    yield {**others, **decoder}
    yield others
    if "input_features" in inputs:  # some models swap its axes
        swapped = {name: value.mT for name, value in inputs.items() if name == "input_features"}
        yield {**swapped, **decoder}
        length = swapped["input_features"].shape
        for steps in length[1:]:
            yield {**swapped, "input_features_mask": torch.ones(2, steps, dtype=torch.long)}


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(1))


def patches(config: Any) -> dict[str, Tensor]:
    """Return two images as rows of patches, the input of Qwen2-VL's vision tower."""
    size = config.patch_size**2 * getattr(config, "temporal_patch_size", 1)
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    rows = numbers(24, size * channels)
    return {"hidden_states": rows, "pixel_values": rows, "grid_thw": grid,
            "merge_sizes": torch.tensor([2, 2])}  # fmt: skip


# Patterns of architectures, and functions from their configuration to their inputs.
INPUTS: list[tuple[str, Callable[[Any], dict[str, Any]]]] = [
    (r"audio-spectrogram-transformer", lambda c: {"input_values": numbers(2, 128, 128)}),
    (r"decision_transformer", lambda c: {
        "states": numbers(2, 5, c.state_dim), "actions": numbers(2, 5, c.act_dim),
        "rewards": numbers(2, 5, 1), "returns_to_go": numbers(2, 5, 1),
        "timesteps": tokens(2, 5)}),
    (r"patchtst|patchtsmixer", lambda c: {
        "past_values": numbers(2, c.context_length, c.num_input_channels)}),
    (r"autoformer|informer|time_series_transformer", lambda c: {
        "past_values": numbers(2, 10), "past_time_features": numbers(2, 10, 0),
        "past_observed_mask": torch.ones(2, 10), "future_values": numbers(2, 4),
        "future_time_features": numbers(2, 4, 0)}),
    (r"siglip2_vision_model|siglip2", lambda c: {
        "pixel_values": numbers(2, 16, 192), "pixel_attention_mask": torch.ones(2, 16),
        "spatial_shapes": torch.tensor([[4, 4], [4, 4]]),
        **({"input_ids": tokens(2, LENGTH)} if hasattr(c, "text_config") else {})}),
    (r"clap", lambda c: {
        "input_ids": tokens(2, LENGTH), "input_features": numbers(2, 1, 1001, 64),
        "is_longer": torch.zeros(2, 1, dtype=torch.bool)}),
    (r"perceiver", lambda c: {"inputs": numbers(2, 9, c.d_model)}),
    (r"kyutai_speech_to_text", lambda c: {"input_ids": tokens(2, 9, c.num_codebooks + 1)}),
    (r"lxmert", lambda c: {
        "input_ids": tokens(2, LENGTH), "visual_feats": numbers(2, 6, c.visual_feat_dim),
        "visual_pos": numbers(2, 6, c.visual_pos_dim)}),
    (r"idefics", lambda c: {
        "input_ids": tokens(2, LENGTH), "pixel_values": numbers(2, 1, 3, 32, 32),
        "image_attention_mask": torch.ones(2, LENGTH, 1, dtype=torch.long),
        "attention_mask": torch.ones(2, LENGTH, dtype=torch.long)}),
    (r"timesfm", lambda c: {
        "past_values": numbers(2, 64), "past_values_padding": torch.zeros(2, 64),
        "freq": torch.zeros(2, 1, dtype=torch.long)}),
    (r"blip_2_qformer", lambda c: {
        "query_embeds": numbers(2, 5, c.hidden_size),
        "encoder_hidden_states": numbers(2, 6, c.encoder_hidden_size)}),
]  # fmt: skip


def _argument(name: str, config: Any) -> Tensor | None:
    """Return a value for an argument of a forward pass, or None to omit it."""
    if name == "input_ids":
        return tokens(2, LENGTH).clamp(max=(getattr(config, "vocab_size", None) or 99) - 1)
    if name == "decoder_input_ids":
        return tokens(2, 5)
    if name in ("pixel_values", "images"):
        return numbers(2, *image_shape(config))
    if name == "pixel_values_videos":
        return numbers(2, 4, *image_shape(config)[-3:])
    if name in ("qformer_input_ids", "token_ids"):
        return tokens(2, 6)
    if name == "input_features":
        return numbers(2, *features_shape(config))
    if name == "input_features_mask":
        return torch.ones(2, features_shape(config)[-1], dtype=torch.long)
    if name in ("input_values", "audio_values"):
        return numbers(2, 3200)
    if name == "bbox":
        return torch.tensor([3, 5, 20, 30]) + torch.arange(LENGTH)[None, :, None].expand(2, -1, 4)
    return None


def image_shape(config: Any) -> tuple[int, ...]:
    """Return (channels, height, width), with frames in front for a model of videos."""
    inner = ("vision_config", "image_config", "backbone_config")
    configs = (getattr(config, name, None) for name in inner)
    vision = next((inner for inner in configs if inner is not None), config)
    size = getattr(vision, "image_size", None) or getattr(config, "image_size", None) or IMAGE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    frames = getattr(vision, "num_frames", None)
    return (channels, height, width) if frames is None else (frames, channels, height, width)


def features_shape(config: Any) -> tuple[int, int]:
    """Return (steps, mels) of sound, or (mels, steps) for Whisper and similar models."""
    inner = ("audio_config", "encoder_config")
    configs = (getattr(config, name, None) for name in inner)
    audio = next((inner for inner in configs if inner is not None), config)
    names = ("num_mel_bins", "feature_projection_input_dim", "input_feat_size", "mel_bins",
             "input_dim", "feature_size")  # fmt: skip
    counts = (getattr(audio, name, None) for name in names)
    mels = next((count for count in counts if isinstance(count, int)), 80)
    steps = getattr(audio, "max_source_positions", None)
    return (64, mels) if steps is None else (mels, 2 * steps)
