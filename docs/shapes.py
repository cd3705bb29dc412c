"""Draws the pictures of attention over an image in docs/pictures, light and dark.

    python docs/shapes.py build/shapes [docs/pictures]

The first argument is the folder of a small image captioning model of transformers, which names the
shapes in an image. If the folder is missing, the model is trained in some minutes. The script needs
chromium and playwright.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image, ImageDraw
from playwright.sync_api import sync_playwright
from screens import WIDE, Camera, address_of
from tokenizers import Tokenizer, models, pre_tokenizers

import heedful
from heedful.views.explorer.catalogue import Catalogue

SIDE, PATCH, WIDTH = 64, 8, 64
COLOURS = {"red": (205, 50, 45), "blue": (45, 90, 200), "green": (40, 150, 70),
           "yellow": (230, 190, 40), "white": (240, 240, 235)}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "ring", "cross")
WORDS = ["<pad>", "<s>", "</s>", "a", "and", *COLOURS, *SHAPES]
IMAGES, STEPS, BATCH = 6000, 2000, 32


def draw(pen, shape, colour, x, y, r):
    """Draw a shape of radius r around (x, y)."""
    around, w = (x - r, y - r, x + r, y + r), r * 0.35
    if shape == "circle":
        pen.ellipse(around, fill=colour)
    elif shape == "ring":
        pen.ellipse(around, outline=colour, width=3)
    elif shape == "square":
        pen.rectangle(around, fill=colour)
    elif shape == "triangle":
        pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=colour)
    else:
        pen.rectangle((x - w, y - r, x + w, y + r), fill=colour)
        pen.rectangle((x - r, y - w, x + r, y + w), fill=colour)


def scene(rng):
    """Draw two shapes on a cloudy background; return the image and its caption."""
    clouds = rng.normal(0, 18, (12, 12, 3)) + rng.integers(60, 130, 3)
    image = Image.fromarray(clouds.clip(0, 255).astype(np.uint8)).resize((SIDE, SIDE))
    pen, phrases = ImageDraw.Draw(image), []
    for left, right in ((10, 23), (41, 54)):
        colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        x, y = rng.uniform(left, right), rng.uniform(11, 53)
        draw(pen, shape, COLOURS[colour], x, y, rng.uniform(7, 9))
        phrases.append(f"a {colour} {shape}")
    return np.asarray(image), " and ".join(phrases)


def build():
    """Build a ViT encoder, and a BERT decoder that attends to the encoder."""
    common = {"hidden_size": WIDTH, "num_attention_heads": 4, "intermediate_size": 2 * WIDTH,
              "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
    sides = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**common, num_hidden_layers=3, image_size=SIDE, patch_size=PATCH),
        transformers.BertConfig(**common, num_hidden_layers=2, vocab_size=len(WORDS),
                                is_decoder=True, add_cross_attention=True),
    )  # fmt: skip
    sides.decoder_start_token_id, sides.pad_token_id, sides.eos_token_id = 1, 0, 2
    model = transformers.VisionEncoderDecoderModel(sides)
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=1, pad_token_id=0, eos_token_id=2, bos_token_id=1
    )
    return model


def train(folder):
    """Train the model on captions, and save it with its tokenizer and processor."""
    torch.manual_seed(0)
    rng, model = np.random.default_rng(0), build()
    pixels, captions = zip(*(scene(rng) for _ in range(IMAGES)), strict=True)
    images = torch.from_numpy(np.stack(pixels)).movedim(-1, 1) / 127.5 - 1
    ids = torch.tensor([[1, *map(WORDS.index, caption.split()), 2] for caption in captions])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    for step in range(STEPS):
        batch = torch.randint(IMAGES, (BATCH,))
        logits = model(pixel_values=images[batch], decoder_input_ids=ids[batch, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.mT, ids[batch, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        if step % 100 == 0:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)
    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder)


def correct_recording(loaded):
    """Return the recording of the first new image that the model captions correctly."""
    rng = np.random.default_rng(1)
    while True:
        image, caption = scene(rng)
        recording = loaded.record(image=image)
        cross = next(call for call in recording if call.kind == "cross")
        if " ".join(cross.query_tokens[1:]) == caption:
            return recording


def locating_head(recording):
    """Return call, head and cell of the head in which colours attend most to their shapes."""
    candidates = []
    for n, call in enumerate(recording):
        if call.kind == "cross":
            first, second = (i for i, token in enumerate(call.query_tokens) if token in COLOURS)
            for head in call.heads:
                rows = call.key_picture.laid(call.weights(head))
                half = rows.shape[-1] // 2
                shares = float(rows[first, :, :half].sum()), float(rows[second, :, half:].sum())
                key = int(call.weights(head)[second].argmax())
                candidates.append((min(shares), n, head, second, key))
    return max(candidates)[1:]


def main(folder, pictures="docs/pictures"):
    if not (Path(folder) / "config.json").exists():
        train(folder)
    recording = correct_recording(heedful.open(folder, device="cpu"))
    call, head, query, key = locating_head(recording)
    words = {"call": f"0.0.{call}", "head": head, "cell": f"{query},{key}", "pinned": 1}
    address = address_of(Catalogue({"shapes": recording}))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        camera = Camera(browser, address, Path(pictures))
        camera.take("image", words, size=WIDE, part="The text")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
