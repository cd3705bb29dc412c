"""Recordings during training: a slider selects the step; layer, head and cell stay selected."""

import pytest
import torch
from page_reader import Served, as_shown, faults

import heedful
from heedful.models import GPT, GPTConfig
from heedful.views.explorer.catalogue import TrainingStep

LOSSES = [(None, 5.25, 0), (4.125, 5.25, 0), (3.0625, 3.5, 100)]


@pytest.fixture(scope="module")
def learning(browser):
    """Recordings of a small model at three training steps: 2 layers, 3 heads, 11 tokens."""
    recordings = {}
    for number, step in enumerate((0, 32, 100)):
        torch.manual_seed(number)
        model = GPT(GPTConfig(vocabulary=20, context_length=16, width=12, layers=2, heads=3)).eval()
        with heedful.record(model) as recording:
            model(torch.arange(11)[None])
        recording.tokens = [[f"t{n}" for n in range(11)]]
        recordings[f"step {step}"] = recording
    with Served(recordings) as served:
        steps = (0, 32, 100)
        served.texts.training_steps = [
            TrainingStep(n, step, *of)
            for n, (step, of) in enumerate(zip(steps, LOSSES, strict=True))
        ]
        yield served, list(recordings.values())


def test_stepping_keeps_layer_head_and_cell_and_shows_step_and_losses(learning, opened):
    served, recordings = learning
    page = opened(f"{served.address}#colours=sqrt", served.origin)
    section = page.page.get_by_role("region", name="Steps of training")
    slider = section.get_by_role("slider", name="Step of training")
    status = section.get_by_role("status")
    assert slider.input_value() == "2"  # the trained model first
    assert status.inner_text() == "step 100 of 100 · training loss 3.063 · validation loss 3.500"
    page.cell("2.0.1", 2, 7, 3)

    def is_at(moment):
        """Check the slider, the weight and the address of a recorded step."""
        true = float(recordings[moment][1].weights(2)[7, 3])
        page.soon(lambda: check(slider.input_value() == str(moment)))
        page.soon(lambda: check(as_shown(page.weight, true)))
        page.soon(lambda: check(f"call={moment}.0.1&head=2&cell=7%2C3" in page.page.url))

    is_at(2)
    for moment, key in ((1, ","), (0, ","), (1, "."), (2, ".")):
        page.page.keyboard.press(key)
        is_at(moment)
    slider.fill("1")
    is_at(1)
    assert slider.get_attribute("aria-valuetext") == "step 32 of 100"
    expected = "step 32 of 100 · training loss 4.125 · validation loss 5.250 (step 0)"
    assert status.inner_text() == expected
    slider.focus()
    page.page.keyboard.press("ArrowLeft")  # the slider handles the key, which moves no cell
    is_at(0)
    assert status.inner_text() == "step 0 of 100 · validation loss 5.250"
    assert section.get_by_role("button", name="An earlier step").is_disabled()
    assert not faults(page.page)


def check(holds):
    assert holds
