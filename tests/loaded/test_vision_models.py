"""Vision models, loaded with their processor: the image that they read is displayed."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

import heedful
from heedful.cli.main import run
from heedful.errors import ArgumentError
from heedful.loaded import ImageWarning, LoadedVision, vision_models
from heedful.recording import Recording

transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 32, "image_size": 32, "patch_size": 8}  # fmt: skip
WORDS = ["<pad>", "<s>", "</s>", "a", "red", "cat"]


def tokenizer():
    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def redrawn(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """A photo, 48 pixels high and 80 wide, which the processor crops and resizes."""
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 255, (48, 80, 3))
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    text = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 6,
            "intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2}  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=SMALL)
    folder = tmp_path_factory.mktemp("clip")
    redrawn(transformers.CLIPModel(config)).save_pretrained(folder)
    transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def captioning(tmp_path_factory):
    sides = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**SMALL),
        transformers.TrOCRConfig(d_model=24, decoder_layers=1, decoder_attention_heads=3,
                                 decoder_ffn_dim=32, vocab_size=6, cross_attention_hidden_size=24),
    )  # fmt: skip
    sides.decoder_start_token_id, sides.pad_token_id, sides.eos_token_id = 1, 0, 2
    model = redrawn(transformers.VisionEncoderDecoderModel(sides))
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=1, pad_token_id=0, eos_token_id=2, bos_token_id=1
    )
    folder = tmp_path_factory.mktemp("captioning")
    model.save_pretrained(folder)
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_the_picture_is_the_processors_output(clip, photo):
    opened = heedful.open(clip, device="cpu")
    assert isinstance(opened, LoadedVision)
    recording = opened.record("a red cat", image=photo)
    picture_file = Image.open(photo).convert("RGB")
    unscaled = opened.processor(images=picture_file, return_tensors="pt", do_normalize=False)
    pixels = (unscaled["pixel_values"][0].permute(1, 2, 0) * 255).round().to(torch.uint8)
    picture = recording[0].key_picture
    assert int((picture.pixels.int() - pixels.int()).abs().max()) <= 1
    inputs = opened.processor(images=picture_file, return_tensors="pt")
    family = transformers.CLIPVisionModel
    model = family.from_pretrained(clip, attn_implementation="eager").eval()
    with torch.no_grad():
        true = model(**inputs, output_attentions=True).attentions
    torch.testing.assert_close(recording[1].weights(), true[1][0], atol=1e-6, rtol=0)
    [*_, text] = recording
    assert (text.key_tokens, text.key_picture) == (["a", "red", "cat"], None)
    image_only = opened.record(image=photo)  # runs the vision part
    assert {call.name.split(".")[0] for call in image_only} == {"vision_model"}
    torch.testing.assert_close(image_only[1].weights(), recording[1].weights(), atol=1e-6, rtol=0)
    with pytest.raises(ArgumentError, match="verify of a CLIPModel on an image alone"):
        opened.record(image=photo, verify=True)


@pytest.mark.parametrize("text", [None, "a red cat"], ids=["generated", "passed"])
def test_the_words_of_a_generating_model_attend_to_the_image(text, captioning, photo):
    opened = heedful.open(captioning, device="cpu")
    recording = opened.record(text, image=photo)
    [crossing] = (call for call in recording if call.kind == "cross")
    assert crossing.query_tokens[0] == "<s>"
    if text:
        assert crossing.query_tokens == ["<s>", "a", "red", "cat"]
    assert crossing.key_tokens[:2] == ["[CLS]", "0,0"]


def test_a_pass_over_an_image_is_verified(captioning, photo):
    opened, shares = heedful.open(captioning, device="cpu"), []
    recording = opened.record("a red cat", image=photo, verify=True, progress=shares.append)
    assert shares[-1] == 1
    assert {call.layout for call in recording} == {"told", "verified"}
    assert recording[0].key_picture.rows == 4


def test_an_unknown_grid_is_reported_and_no_picture_is_shown(captioning, photo, monkeypatch):
    opened = heedful.open(captioning, device="cpu")
    monkeypatch.setattr(vision_models, "_image_pixels", lambda inputs: torch.rand(3, 31, 37))
    monkeypatch.setattr(Recording, "set_patches", lambda self, *patches: None)
    with pytest.warns(ImageWarning, match="no picture is shown"):
        recording = opened.record("a cat", image=photo)
    assert recording.images is None
    assert recording[0].key_tokens is None


def test_record_and_look_from_the_command_line(captioning, photo, tmp_path, capsys):
    out, page = tmp_path / "one.safetensors", tmp_path / "one.html"
    model, device = str(captioning), ["--device", "cpu"]
    assert run(["record", model, "a cat", "--image", str(photo), "--out", str(out), *device]) == 0
    assert heedful.load(out)[0].key_picture.rows == 4
    assert run(["look", model, "--image", str(photo), "--html", str(page), *device]) == 0
    assert page.stat().st_size > 10_000
    capsys.readouterr()
    for arguments, status in (
        (["--image", str(photo), "--second", "x"], 1),
        (["--image", str(tmp_path / "none.png")], 2),
        (["a cat"], 1),
    ):
        assert run(["look", model, *arguments, *device, "--no-browser"]) == status
        assert "image" in capsys.readouterr().err
