"""Texts of several parts, such as the windows of an image: each can be chosen, and opened on."""

import pytest
import torch
import transformers
from every_kind import sharp

import heedful
from heedful.views.explorer.texts import Texts
from heedful.views.notebook.answering import opened_on


@pytest.fixture(scope="module")
def swin():
    """Two images in four windows each, recorded, and the maps (8, H, 16, 16) of each layer."""
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2], num_heads=[2], window_size=4
    )
    model = transformers.SwinModel._from_config(config, attn_implementation="eager")
    sharp(model, 6, 0.3)
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), heedful.record(model) as recording:
        output = model(x, output_attentions=True)
    return recording, output.attentions


def test_every_window_is_listed_and_its_code_gives_it(swin):
    recording, [true] = swin
    texts = Texts({"swin": recording})
    [about] = texts.about()
    names = [f"text {text}, part {part}" for text in (1, 2) for part in (1, 2, 3, 4)]
    assert [text["label"] for text in about["texts"]] == names
    for t, text in enumerate(about["texts"]):
        calls = eval(text["code"], {"recording": recording})
        assert len(text["calls"]) == 2
        for c, call in enumerate(text["calls"]):
            shown = texts.call(0, t, c).weights()
            torch.testing.assert_close(shown, calls[call["at"]].weights())
        torch.testing.assert_close(shown, true[t], atol=1e-5, rtol=0)


def test_a_window_and_a_call_in_it_open_on_themselves(swin):
    recording, _ = swin
    window = recording.sequences[1].parts[2]
    assert opened_on(window)[1] == "call=0.6.0"
    assert opened_on(window[1])[1] == "call=0.6.1"
