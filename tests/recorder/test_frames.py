"""Frames of videos that stand in the batch, (b t) first: what attends over them tells no texts."""

import pytest
import torch
from torch import nn

import heedful
from heedful.errors import ArgumentError

WIDTH = 8


class Frames(nn.Module):
    """Each patch attends over the frames of its video; frames are (b t) n c."""

    def __init__(self, frames):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.frames = frames

    def forward(self, x):
        x = x.unflatten(0, (-1, self.frames)).transpose(1, 2).flatten(0, 1)
        self.maps = (self.q(x) @ self.k(x).mT / 3).softmax(-1)
        return self.maps @ self.v(x)


class Pictures(nn.Module):
    """All pixels of a video attend to each other; frames are (b t) c h w."""

    def __init__(self, frames):
        super().__init__()
        self.q, self.k = nn.Conv2d(WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.frames = frames

    def forward(self, x):
        def tokens(made):
            made = made.flatten(2).unflatten(0, (-1, self.frames))
            return made.permute(0, 1, 3, 2).flatten(1, 2)

        query, key = tokens(self.q(x)), tokens(self.k(x))
        self.maps = (query @ key.mT / 3).softmax(-1)
        return self.maps @ key


def recorded(model, x):
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    return recording


@pytest.mark.parametrize("patches", [3, 5, 6])
@pytest.mark.parametrize(("videos", "frames"), [(2, 3), (3, 2), (2, 2)])
def test_what_attends_over_frames_is_never_proved_to_be_of_patches(videos, frames, patches):
    model, x = Frames(frames), torch.randn(videos * frames, patches, WIDTH)
    recording = recorded(model, x)
    assert len(recording.sequences) == videos * patches
    maps = model.maps[:, None]
    for [call], map_ in zip(recording.sequences, maps, strict=True):  # video after video
        assert call.proof == "assumed"
        assert f"of the {len(x)} texts" in call.why
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=1e-5)
    with pytest.raises(ArgumentError, match="the model ends in RuntimeError"):
        recording.verify(model, x)  # of one frame there is no video
    assert recording[0].proof == "assumed"


@pytest.mark.parametrize(("videos", "frames"), [(2, 3), (3, 2)])
def test_channels_are_no_texts_where_pixels_of_all_frames_attend(videos, frames):
    model, x = Pictures(frames), torch.randn(videos * frames, WIDTH, 4, 4)
    recording = recorded(model, x)
    assert len(recording.sequences) == videos
    assert recording[0].proof == "assumed"
    assert "8" not in recording[0].why
    for [call], map_ in zip(recording.sequences, model.maps[:, None], strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=1e-5)
