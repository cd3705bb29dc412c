"""Images of recordings: the calls that have pictures, the patches, guesses and errors."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.files import load_tensors, save_tensors
from heedful.recording.image_patches import Patches, patch_indices_of

transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 32, "image_size": 32, "patch_size": 8}  # fmt: skip
TEXT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 50,
        "intermediate_size": 32, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0}  # fmt: skip
REGISTERS = tuple(f"[REG {n}]" for n in range(1, 5))


def pretrained(family, config):
    """Return a model with attention that is far from uniform, and with fixed parameters."""
    torch.manual_seed(0)
    model = family._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def recorded(model, **inputs):
    with torch.no_grad(), heedful.record(model) as recording:
        output = model(**inputs, output_attentions=True)
    return recording, output


def images(count=2, height=32, width=32):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def grid_by_loops(row, before, rows, columns):
    """Return a row of weights as a grid of patches, by nested loops."""
    return [[float(row[before + r * columns + c]) for c in range(columns)] for r in range(rows)]


def of_vision(kind, **changed):
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **changed})
    return pretrained(getattr(transformers, f"{kind}Model"), config)


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        ("ViT", ("[CLS]",)),
        ("DeiT", ("[CLS]", "[DIST]")),
        ("Dinov2WithRegisters", ("[CLS]", *REGISTERS)),
        ("CLIPVision", ("[CLS]",)),
        ("SiglipVision", ()),
    ],
)
def test_weights_on_the_grid_equal_eager_attention(kind, before):
    x = images()
    recording, output = recorded(of_vision(kind), pixel_values=x)
    recording.set_images(list(x))
    for b, sequence in enumerate(recording.sequences):
        for call, true in zip(sequence, output.attentions, strict=False):
            picture = call.key_picture
            assert picture.assumed == ""
            assert picture.before == before
            assert (picture.rows, picture.columns) == (4, 4)
            assert call.query_tokens == [*before, *(f"{r},{c}" for r in range(4) for c in range(4))]
            pixels = (x[b].permute(1, 2, 0) * 255).round().to(torch.uint8)
            assert torch.equal(picture.pixels, pixels)
            query = len(before) + 6
            grid = picture.laid(call.weights(1)[query])
            expected = grid_by_loops(true[b, 1, query], len(before), 4, 4)
            np.testing.assert_allclose(grid.numpy(), expected, atol=1e-6)


def test_an_image_that_is_wider_than_it_is_high():
    x = images(1, 24, 48)
    model = of_vision("ViT")
    recording, output = recorded(model, pixel_values=x, interpolate_pos_encoding=True)
    recording.set_images(list(x))
    picture = recording[0].key_picture
    assert (picture.rows, picture.columns, picture.assumed) == (3, 6, "")
    expected = grid_by_loops(output.attentions[0][0, 2, 5], 1, 3, 6)
    grid = picture.laid(recording[0].weights(2)[5])
    np.testing.assert_allclose(grid.numpy(), expected, atol=1e-6)


def captioning():
    """Return a model with a ViT, and a decoder of words that attends to its patches."""
    sides = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**SMALL),
        transformers.TrOCRConfig(d_model=24, decoder_layers=2, decoder_attention_heads=3,
                                 decoder_ffn_dim=32, vocab_size=50,
                                 cross_attention_hidden_size=24),
    )  # fmt: skip
    return pretrained(transformers.VisionEncoderDecoderModel, sides)


def test_only_the_keys_of_cross_attention_have_a_picture():
    x, words = images(), torch.randint(1, 49, (2, 5))
    recording, output = recorded(captioning(), pixel_values=x, decoder_input_ids=words)
    recording.set_images(list(x))
    [*_, crossing] = (call for call in recording.sequences[1] if call.kind == "cross")
    assert crossing.query_picture is None
    assert crossing.key_picture.before == ("[CLS]",)
    grid = crossing.key_picture.laid(crossing.weights(0)[3])
    expected = grid_by_loops(output.cross_attentions[1][1, 0, 3], 1, 4, 4)
    np.testing.assert_allclose(grid.numpy(), expected, atol=1e-6)
    inner = [call for call in recording if call.kind == "causal"]
    assert inner
    assert not any(call.key_picture or call.query_picture for call in inner)


def test_a_text_of_clip_has_no_picture_even_if_as_long():
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=SMALL)
    model = pretrained(transformers.CLIPModel, config)
    x, ids = images(), torch.randint(3, 49, (2, 17))
    recording, _ = recorded(model, pixel_values=x, input_ids=ids)
    recording.set_images(list(x))
    has_picture = {call.name.partition(".")[0]: call.key_picture is not None for call in recording}
    assert has_picture == {"vision_model": True, "text_model": False}


@pytest.mark.parametrize("shift", [0, 2])
def test_a_window_of_swin_has_its_own_patches(shift):
    """The windows of transformers, applied to a table of patch indices, are the expected ones."""
    from transformers.models.swin.modeling_swin import window_partition

    table = torch.arange(8 * 12).view(1, 8, 12, 1)
    true = window_partition(table.roll((-shift, -shift), (1, 2)), 4).view(-1, 16)
    patches = Patches("", 2, 2, window=4, shift=shift)
    indices = torch.stack([patch_indices_of(patches, 8, 12, window) for window in range(6)])
    assert torch.equal(indices, true)


def test_each_window_has_its_part_of_the_image():
    config = transformers.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[2],
                                     num_heads=[2], window_size=4)  # fmt: skip
    x = images(2, 16, 16)
    recording, _ = recorded(pretrained(transformers.SwinModel, config), pixel_values=x)
    recording.set_images(list(x))
    assert [len(call.parts) for call in recording.sequences[1]] == [4, 4]
    plain, shifted = recording.sequences[1].parts[1]  # the upper right window of the second image
    assert plain.key_tokens[0] == "0,4"
    assert shifted.key_tokens[0] == "2,6"
    pixels = (x[1].permute(1, 2, 0) * 255).round().to(torch.uint8)
    assert torch.equal(plain.key_picture.pixels, pixels)
    grid = plain.key_picture.laid(plain.weights(0)[0])
    assert int(grid.isnan().sum()) == 64 - 16


class Bare(nn.Module):
    """Attention over tokens that nothing marks as patches."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(24, 3, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x)[0]


def of_bare(tokens, batch=1):
    torch.manual_seed(0)
    model = Bare().eval()
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.rand(batch, tokens, 24))
    return recording


def test_an_inferred_grid_is_marked_as_assumed():
    recording = of_bare(17)
    recording.set_images(list(images(1)))
    assert recording[0].key_picture.assumed == "patches assumed 4 × 4, after the first token"
    recording.set_images(list(images(1)), patches=(4, 4))
    assert recording[0].key_picture.assumed == "assumed to begin after the first token"
    recording.set_images(list(images(1)), patches=(4, 4), before=["[CLS]"])
    assert recording[0].key_picture.assumed == ""
    assert recording[0].key_tokens[:3] == ["[CLS]", "0,0", "0,1"]


def test_a_resized_image_is_marked():
    recording, _ = recorded(of_vision("ViT"), pixel_values=images(1))
    recording.set_images([np.zeros((40, 64, 3), np.uint8)])
    picture = recording[0].key_picture
    assert picture.pixels.shape == (32, 32, 3)
    assert picture.assumed == "40 × 64 pixels, assumed to be resized to 32 × 32 without a crop"


def test_normalised_values_become_colours_by_the_processor():
    pixels = (images(1)[0] * 255).round() / 255
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    normalised = (pixels - 0.5) / 0.5
    recording, _ = recorded(of_vision("ViT"), pixel_values=normalised[None])
    recording.set_images([normalised], processor=processor)
    true = (pixels.permute(1, 2, 0) * 255).round().to(torch.uint8)
    assert torch.equal(recording[0].key_picture.pixels, true)
    recording.set_images([normalised])
    assert recording[0].key_picture.assumed.startswith("colours stretched")


@pytest.mark.parametrize("form", ["path", "PIL", "array", "floats", "tensor", "grey", "deep"])
def test_the_forms_of_an_image(form, tmp_path):
    array = np.random.default_rng(2).integers(0, 255, (32, 32, 3)).astype(np.uint8)
    array = array[..., :1].repeat(3, -1) if form in ("grey", "deep") else array
    Image.fromarray(array).save(tmp_path / "one.png")
    Image.fromarray(array[..., 0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    image = {
        "path": str(tmp_path / "one.png"),
        "PIL": Image.fromarray(array).convert("RGBA"),
        "array": array,
        "floats": array / 255,
        "tensor": torch.from_numpy(array).permute(2, 0, 1),
        "grey": array[..., 0],
        "deep": tmp_path / "deep.png",  # 16 bits
    }[form]
    recording = of_bare(16)
    recording.set_images([image])
    np.testing.assert_array_equal(recording.images[0].numpy(), array)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("text.png", "is not an image"),
        ("none.png", "no image"),
        ("cut.png", "cannot be read"),
        (np.zeros((0, 4, 3)), "at least one pixel"),
        (np.zeros((8, 8, 5)), "three channels"),
        (torch.zeros(5, 8, 8), "three channels"),
        (np.full((8, 8, 3), np.nan), "not finite"),
        (np.full((8, 8, 3), 300), "0 to 255"),
        (np.array([["a"]]), "numbers"),
        (7, "an image of type int"),
    ],
)
def test_other_values_than_images_are_refused_in_one_line(image, message, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    Image.new("RGB", (64, 64), "red").save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:60])
    image = tmp_path / image if isinstance(image, str) else image
    with pytest.raises(ArgumentError, match=message) as raised:
        of_bare(16).set_images([image])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": []}, "a list"),
        ({"images": "one.png"}, "a list"),
        ({"images": [images(1)[0]] * 3}, "3 images of 4 × 4 patches; expected an image for each"),
        ({"patches": (3, 6)}, "of 3 × 6 patches"),
        ({"patches": 4}, "rows and columns"),
        ({"patches": (0, 4)}, "rows and columns"),
        ({"before": -1}, "the number of tokens"),
    ],
)  # fmt: skip
def test_images_that_fit_no_call_are_refused(options, message):
    recording = of_bare(16, batch=2)
    arguments = {"images": list(images(2)), **options}
    with pytest.raises(ArgumentError, match=message):
        recording.set_images(arguments.pop("images"), **arguments)
    assert recording.images is None


def test_the_error_without_a_fitting_grid_has_the_remedy():
    with pytest.raises(ArgumentError, match=r"7 tokens.*patches=\(rows, columns\)"):
        of_bare(7).set_images([np.zeros((31, 37, 3), np.uint8)])


def test_images_are_saved(tmp_path):
    x = images()
    recording, _ = recorded(of_vision("Dinov2WithRegisters"), pixel_values=x)
    recording.save(tmp_path / "none")
    late = heedful.load(tmp_path / "none")
    assert late[0].key_picture is None
    late.set_images(list(x))  # the patches are in the file
    recording.set_images(list(x))
    recording.save(tmp_path / "some")
    for other in (late, heedful.load(tmp_path / "some")):
        for call, true in zip(other.sequences[1], recording.sequences[1], strict=True):
            assert torch.equal(call.key_picture.pixels, true.key_picture.pixels)
            assert call.query_picture.names == true.query_picture.names
            assert call.key_picture.assumed == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, about: tensors.update({"image.0": tensors["image.0"].float()}),
        lambda tensors, about: tensors.update({"image.0": tensors["image.0"][..., :1].clone()}),
        lambda tensors, about: tensors.update({"image.2": tensors.pop("image.1")}),
        lambda tensors, about: about["images"].update(patches=[["", 0, 8, [], 0, 0, ""]]),
        lambda tensors, about: about["images"].update(patches=[["", 8, 8, [1], 0, 0, ""]]),
        lambda tensors, about: about["images"].update(patches=[["", 8]]),
        lambda tensors, about: about["images"].update(patches=[["", 8, 8, [], -4, 0, ""]]),
        lambda tensors, about: about["images"].update(seen=[32]),
        lambda tensors, about: about["images"].update(assumed=3),
    ],
)  # fmt: skip
def test_damaged_images_are_refused(change, tmp_path):
    x = images()
    recording, _ = recorded(of_vision("ViT"), pixel_values=x)
    recording.set_images(list(x))
    recording.save(tmp_path / "one")
    tensors, about = load_tensors(tmp_path / "one")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors, about)
    save_tensors(tmp_path / "one", tensors, {**about, "sums": {}})
    with pytest.raises(RunError, match="damaged"):
        heedful.load(tmp_path / "one")


def test_a_patch_larger_than_the_image_yields_no_picture():
    recording, _ = recorded(of_vision("ViT"), pixel_values=images(1))
    recording.set_images(list(images(1)))
    recording._images.patches = [Patches("", 64, 64, ("none",) * 17)]  # as in a forged file
    recording._calls.clear()
    assert recording[0].shape[1:] == (17, 17)
    assert recording[0].key_picture is None
