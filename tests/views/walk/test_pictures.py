import itertools

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
    image = figures[f"{side}block-1-weights"].axes[2].images[0].get_array()
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


def images(figure):
    return [image.get_array() for ax in figure.axes for image in ax.images]


def test_all_heads_and_all_weight_matrices_of_a_variant_are_drawn():
    explanation = explain("the cat sat", "multihead", heads=3, dim=6)
    figures = {picture.name: picture.figure for picture in pictures(explanation)}
    expected = {
        "matrices": ["W_query", "W_key", "W_value"],
        "query-key-value": ["query", "key", "value"],
        "scores": ["scaled", "masked"],
        "weights": ["weights"],
    }
    for name, stages in expected.items():
        tables = images(figures[name])
        numbers = [explanation.stage(stage).numbers().numpy() for stage in stages]
        for table, (head, stage) in zip(tables, itertools.product(range(3), numbers), strict=False):
            shown = np.ma.filled(table, -np.inf if name == "scores" else 0)
            np.testing.assert_allclose(shown, stage[head])
        assert len(tables) == 3 * len(stages) + (name == "matrices")
    np.testing.assert_allclose(
        images(figures["matrices"])[9], explanation.stage("W_output").numbers()
    )


def frames(figure):
    """The framed row of each table, or None."""
    return [
        next((round(patch.get_y() + 0.5) for patch in ax.patches if not patch.fill), None)
        for ax in figure.axes
        if ax.images
    ]


def test_the_row_of_a_query_is_framed():
    explanation = explain("tea for two", "cross", memory="une tasse de thé")
    figures = {picture.name: picture.figure for picture in pictures(explanation, query=1)}
    assert frames(figures["vectors"]) == [1, None]
    assert frames(figures["query-key-value"]) == [1, None, None]
    assert frames(figures["matrices"]) == [None] * 4
    assert frames(figures["scores"]) == frames(figures["weights"]) == [1]
    assert set(frames(figures["context"])) == {1}
    for picture in pictures(explanation):
        assert set(frames(picture.figure)) <= {None}


def plane(figure):
    """The positions of the dots, the labels with their positions, and the arrows of a plane."""
    [ax] = figure.axes
    arrows = [(text.xyann, text.xy) for text in ax.texts if text.arrowprops
              and text.arrowprops["arrowstyle"] == "-|>"]  # fmt: skip
    labels = [(text.get_text(), text.xy) for text in ax.texts if text.get_text()]
    return np.array(ax.collections[0].get_offsets()), labels, arrows


def test_keys_on_the_plane_of_a_query_have_the_places_of_their_scores():
    explanation = explain("Terry loves to eat Mango Greek Yogurt", "projected")
    figures = {picture.name: picture.figure for picture in pictures(explanation, query=4)}
    dots, labels, [(start, end)] = plane(figures["query-and-keys"])
    query = explanation.stage("query").numbers().numpy()[4]
    key = explanation.stage("key").numbers().numpy()
    length = np.sqrt(np.sum(query**2))
    np.testing.assert_allclose(dots[:, 0] * length, key @ query)
    np.testing.assert_allclose([start, end], [[0, 0], [length, 0]], atol=1e-9)
    rest = key - np.outer(key @ query, query) / length**2
    largest = np.linalg.eigvalsh(np.cov(rest.T))[-1]
    assert np.var(dots[:, 1], ddof=1) == pytest.approx(largest)
    powers = np.exp(key @ query / 4)
    expected = [f"{word} {share:.2f}" for word, share in
                zip(explanation.tokens, powers / powers.sum(), strict=True)]  # fmt: skip
    assert [text for text, _ in labels] == [*expected, "0", "query of Mango"]


def test_a_plane_of_two_dimensions_shows_the_numbers_themselves_and_no_masked_key():
    explanation = explain("a cup of tea", "multihead", heads=2, dim=4)
    figures = {picture.name: picture.figure for picture in pictures(explanation, query=2)}
    dots, _, [(_, end)] = plane(figures["query-and-keys"])
    np.testing.assert_allclose(dots, explanation.stage("key").numbers()[0, :3])
    np.testing.assert_allclose(end, explanation.stage("query").numbers()[0, 2])


@pytest.mark.parametrize("options", [{}, {"dim": 2, "head_dim": 2}, {"positions": True}])
def test_the_arrows_of_a_moved_token_lead_from_its_vector_to_its_output(options):
    explanation = explain("Terry loves to eat Mango Greek Yogurt", "projected", **options)
    figures = {picture.name: picture.figure for picture in pictures(explanation)}
    dots, _, arrows = plane(figures["moved-token"])
    assert len(arrows) == 7
    for (_, end), (start, _) in itertools.pairwise(arrows):
        assert tuple(end) == tuple(start)
    inputs = explanation.stages[-1].sources[1].numbers().numpy()[-1]
    output = explanation.stages[-1].numbers().numpy()[-1]
    start, end = np.array(arrows[0][0]), np.array(arrows[-1][1])
    np.testing.assert_allclose(start, dots[0])
    assert np.linalg.norm(end - start) == pytest.approx(np.linalg.norm(output - inputs))
    if options.get("dim") == 2:
        np.testing.assert_allclose([start, end], [inputs, output])


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
