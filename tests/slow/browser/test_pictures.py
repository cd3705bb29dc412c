"""The image of a call in the browser: its shades and weights equal the library's."""

import re

import numpy as np
import pytest
import torch
import transformers
from page_reader import Served, as_shown, number

import heedful
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.wire import unpacked

transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 32, "image_size": 32, "patch_size": 8}  # fmt: skip
WORDS = ["a", "red", "cat", "here"]
# the colour of the canvas in the middle of each patch, row by row
COLOURS = """(canvas, [rows, columns]) => {
  const context = canvas.getContext("2d");
  return Array.from({ length: rows * columns }, (_, place) => {
    const x = ((place % columns) + 0.5) * canvas.width / columns;
    const y = (Math.floor(place / columns) + 0.5) * canvas.height / rows;
    return [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
  });
}"""
GLOW, MOST = np.array([255, 92, 0]), 0.88


@pytest.fixture(scope="module")
def recording():
    """A blue image of 3 × 6 patches, and four words that attend to it."""
    sides = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**SMALL),
        transformers.TrOCRConfig(d_model=24, decoder_layers=1, decoder_attention_heads=2,
                                 decoder_ffn_dim=32, vocab_size=4, cross_attention_hidden_size=24,
                                 pad_token_id=3, bos_token_id=0, eos_token_id=2),
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.VisionEncoderDecoderModel(sides).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    image = torch.tensor([0.1, 0.4, 0.9])[:, None, None].expand(3, 24, 48)
    naming = lambda ids: [WORDS[i] for i in ids]  # noqa: E731
    with torch.no_grad(), heedful.record(model, tokenizer=naming) as result:
        model(
            pixel_values=image[None] + 0.3 * torch.rand(1, 3, 24, 48),
            decoder_input_ids=torch.tensor([[0, 1, 2, 3]]),
            interpolate_pos_encoding=True,
        )
    result.set_images([image])
    return result


@pytest.fixture(scope="module")
def pictured(browser, recording):
    with Served({"photo": recording}) as explorer:
        yield explorer


def compare(part, weights):
    """Check that each patch is the image with a shade that is linear in its weight."""
    weights = weights.numpy()
    shape = list(weights.shape)
    pixels = np.array(part.locator("canvas").first.evaluate(COLOURS, shape), float)
    share = MOST * (weights / weights.max()).reshape(-1, 1)
    pale = share.argmin()  # the least shaded patch shows the colour of the image
    colour = (pixels[pale] - GLOW * share[pale]) / (1 - share[pale])
    np.testing.assert_allclose(pixels, colour * (1 - share) + GLOW * share, atol=2)


def text(page):
    return page.page.get_by_role("region", name="The text")


def test_the_shades_of_a_patch_as_query_and_as_key(opened, pictured, recording):
    page = opened(pictured.address)
    call, part = recording[0], text(page)
    weights, picture = call.weights(1), call.key_picture
    page.cell("0.0.0", 1, 9, 4)
    page.soon(lambda: compare(part, picture.laid(weights[9])))
    box = part.get_by_role("button", name="[CLS]")
    assert number(box.inner_text().split()[-1]) == pytest.approx(float(weights[9, 0]), rel=1e-3)
    total = float(part.locator("[data-sum]").get_attribute("data-sum"))
    assert total == pytest.approx(float(weights[9, 1:].sum()), abs=1e-5)
    assert "24 × 48 pixels, 3 × 6 patches" in part.inner_text()
    # the same for the column of a key
    part.get_by_role("button", name="what attends to it").click()
    page.cell("0.0.0", 1, 9, 9, profile="column")
    page.soon(lambda: compare(part, picture.laid(weights[:, 9])))
    # a click chooses the patch under it, and pins it
    part.get_by_role("button", name="what it attends to").click()
    canvas = part.locator("canvas").first
    size = canvas.bounding_box()
    canvas.click(position={"x": size["width"] * 4.5 / 6, "y": size["height"] * 2.5 / 3})
    page.region.get_by_text("queries=[17]").wait_for()
    assert page.region.get_by_text("2,4", exact=True).count()
    # arrow keys move by patches and announce the patch
    canvas.focus()
    for key in ("ArrowUp", "ArrowRight"):
        page.page.keyboard.press(key)
    announcement = part.locator("[data-patch]")

    def check_announcement():
        most = int(weights[12].argmax())
        place = "[CLS]" if not most else f"row {(most - 1) // 6}, column {(most - 1) % 6}"
        assert announcement.inner_text().startswith(f"row 1, column 5: largest weight on {place}, ")
        assert as_shown(announcement.inner_text().split()[-1], float(weights[12].max()))

    page.soon(check_announcement)
    page.page.keyboard.press("Enter")
    page.region.get_by_text("queries=[12]").wait_for()


def test_a_word_chosen_in_the_text_shades_the_image(opened, pictured, recording):
    page = opened(pictured.address)
    [at] = (i for i, call in enumerate(recording) if call.kind == "cross")
    call, part = recording[at], text(page)
    page.cell(f"0.0.{at}", 0, 0, 3)
    part.get_by_role("option", name=re.compile("^cat")).click()
    weights = call.weights(0)[2]
    page.soon(lambda: compare(part, call.key_picture.laid(weights)))
    part.locator("canvas").hover(position={"x": 9, "y": 9})  # the shades remain those of the word
    page.soon(lambda: compare(part, call.key_picture.laid(weights)))
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.page.get_by_role("button", name="picture", exact=True).first.click()
    page.soon(lambda: compare(part, call.key_picture.laid(weights)))
    assert part.get_by_role("button", name="[CLS]").is_visible()


ASK = """async (about) => {
  const element = document.getElementById("heedful");
  while (!element.source) await new Promise((soon) => setTimeout(soon, 10));
  const { pixels, places, ...rest } = await element.source.ask("image", about);
  return { pixels: [...pixels.data], shape: pixels.shape, places: [...places.data], rest };
}"""


def test_the_one_file_has_the_image(opened, recording, tmp_path):
    path, texts = tmp_path / "page.html", Catalogue({"photo": recording})
    one_file.write(path, texts, "a file")
    page = opened(path.as_uri(), "file://", offline=True)
    about, arrays = unpacked(Handlers(texts).handle("image", {"call": "0.0.0", "axis": "queries"}))
    answer = page.page.evaluate(ASK, {"call": "0.0.0", "axis": "queries"})
    np.testing.assert_array_equal(np.array(answer["pixels"]).reshape(24, 48, 3), arrays["pixels"])
    assert answer["places"] == arrays["places"].tolist() == [-1, *range(18)]
    assert {name: answer["rest"][name] for name in about} == about
    page.cell("0.0.0", 0, 5, 7)
    weights = recording[0].key_picture.laid(recording[0].weights(0)[5])
    page.soon(lambda: compare(text(page), weights))
