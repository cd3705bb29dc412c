"""Sequences of several parts, such as windows: plot draws a part, heads reads all parts."""

import json

import numpy as np
import pytest
import torch
from command_checks import refused
from torch import nn

import heedful


class Windows(nn.Module):
    """Attention of two heads within each of three windows of five tokens."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def queries(self, x):
        return self.project(x).view(-1, 5, 2, 4).transpose(1, 2)

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(*[self.queries(x)] * 3)


def test_a_window_of_a_text_is_drawn(cli, tmp_path, drawn):
    model, x = Windows(), torch.randn(2, 15, 8)
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
        true = (model.queries(x) @ model.queries(x).mT / 2).softmax(-1).view(2, 3, 2, 5, 5)
    path = recording.save(tmp_path / "r.safetensors")
    for part in (0, 2):
        out = ["--out", tmp_path / f"{part}.svg"]
        assert cli("plot", path, "--sequence", "1", "--part", part, *out)[0] == 0
        [block], look = drawn[-1]
        np.testing.assert_allclose(block.lines[0].maps, true[1, part], atol=1e-6)
        assert look["notes"][:2] == ["text 1 of 2", f"part {part} of 3"]
    refused(
        cli("plot", path, "--part", "3", "--out", tmp_path / "3.svg"),
        "part 3",
    )
    rows = json.loads(cli("heads", path, "--json")[1])
    assert [(row["sequence"], row["head"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    sinks = true[:, :, :, 1:, 0].mean(dim=(1, 3)).flatten()
    assert [row["sink"] for row in rows] == pytest.approx(sinks.tolist(), abs=1e-5)
