import numpy as np
import pytest
import torch
from explained_models import walk

from heedful.errors import SaveError
from heedful.explain import explain
from heedful.views.walk.pictures import draw, pictures


@pytest.mark.parametrize("kind", ["gpt", "seq2seq"])
def test_the_pictures_of_a_walk_hold_its_numbers(kind):
    explanation = walk(kind, layer=1, head=2)
    drawn = list(pictures(explanation))
    figures = {picture.name: picture.figure for picture in drawn}
    assert len(figures) == len(drawn)
    side = {"seq2seq": "decoder-"}.get(kind, "")
    section = next(
        s for s in explanation.sections
        if "self-attention" in s.title and s.title.casefold().startswith(side.strip("-"))
    )  # fmt: skip
    image = figures[f"{side}block-1-weights"].axes[0].images[0].get_array()
    weights = section.stage("weights").numbers()[2].numpy()
    np.testing.assert_allclose(image.filled(0.0), weights, atol=1e-6)
    assert image.mask.any()
    residual = figures[f"{side}block-1-residual"].axes
    inputs, output, total = (ax.images[0].get_array() for ax in residual[:3])
    np.testing.assert_allclose(inputs + output, total, atol=1e-5)
    words = figures["words"].axes[0]
    widths = [bar.get_width() for bar in words.patches]
    likely = explanation.answers[-1].likeliest
    expected = [token.probability for token in likely]
    if kind == "seq2seq":
        expected = [answer.likeliest[0].probability for answer in explanation.answers]
    assert widths == pytest.approx(expected)


@pytest.mark.parametrize("variant", ["simple", "projected", "cross"])
def test_each_variant_is_drawn(variant):
    memory = "une tasse de thé" if variant == "cross" else None
    explanation = explain("tea for two", variant, memory=memory)
    figures = {picture.name: picture.figure for picture in pictures(explanation)}
    assert next(iter(figures)) == "vectors"
    assert {"weights", "context"} <= figures.keys()
    assert ("query-key-value" in figures) == (variant != "simple")
    assert ("residual" in figures) == (variant == "projected")
    [image] = [ax.images[0] for ax in figures["scores"].axes if ax.images][:1]
    section = explanation.sections[-1]
    expected = (section.of_kind("scaled") or section.stage("scores")).numbers()
    drawn = torch.tensor(image.get_array().data)
    torch.testing.assert_close(drawn, expected.reshape(drawn.shape))


def test_files_are_numbered_and_replaced_only_with_overwrite(tmp_path):
    explanation = explain("tea for two")
    paths = draw(explanation, tmp_path / "walk", "svg")
    assert [path.name for path in paths] == ["01-vectors.svg", "02-scores.svg", "03-weights.svg",
                                             "04-context.svg"]  # fmt: skip
    assert all("tea" in path.read_text() for path in paths)
    paths[2].write_text("mine")
    with pytest.raises(SaveError, match=r"01-vectors\.svg already exists"):
        draw(explanation, tmp_path / "walk", "svg")
    assert paths[2].read_text() == "mine"
    draw(explanation, tmp_path / "walk", "svg", overwrite=True)
    assert paths[2].read_text() != "mine"
