"""Pictures of an image under attention in docs/pictures, light and dark, from today's code.

    python docs/shapes.py build/shapes [docs/pictures]

The first argument is a folder for a model of transformers that says which shapes an image has; it
is trained here, in some minutes, where it is not there yet. Chromium and playwright as in screens.py.
"""  # noqa: E501

import shutil
import sys
import threading
from pathlib import Path
from queue import Queue

import numpy as np
import torch
import transformers
from PIL import Image, ImageDraw
from playwright.sync_api import sync_playwright
from screens import WIDE, Camera
from tokenizers import Tokenizer, models, pre_tokenizers

import heedful
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.server import serve

SIDE, PATCH, WIDTH = 64, 8, 64
COLOURS = {"red": (205, 50, 45), "blue": (45, 90, 200), "green": (40, 150, 70),
           "yellow": (230, 190, 40), "white": (240, 240, 235)}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "ring", "cross")
WORDS = ["<pad>", "<s>", "</s>", "a", "and", *COLOURS, *SHAPES]
IMAGES, STEPS, BATCH = 6000, 2000, 32


def draw(pen, shape, colour, x, y, r):
    """One shape of a radius around a place."""
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


def scene(chance):
    """Two shapes on clouds, and what is to be said of them, from left to right."""
    clouds = chance.normal(0, 18, (12, 12, 3)) + chance.integers(60, 130, 3)
    image = Image.fromarray(clouds.clip(0, 255).astype(np.uint8)).resize((SIDE, SIDE))
    pen, said = ImageDraw.Draw(image), []
    for left, right in ((10, 23), (41, 54)):
        colour, shape = chance.choice(list(COLOURS)), chance.choice(SHAPES)
        x, y = chance.uniform(left, right), chance.uniform(11, 53)
        draw(pen, shape, COLOURS[colour], x, y, chance.uniform(7, 9))
        said.append(f"a {colour} {shape}")
    return np.asarray(image), " and ".join(said)


def made():
    """A ViT, and a decoder that looks at what it makes of an image."""
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
    """Teach it to say what is there, and save it with its tokenizer and processor."""
    torch.manual_seed(0)
    chance, model = np.random.default_rng(0), made()
    pixels, said = zip(*(scene(chance) for _ in range(IMAGES)), strict=True)
    seen = torch.from_numpy(np.stack(pixels)).movedim(-1, 1) / 127.5 - 1
    ids = torch.tensor([[1, *map(WORDS.index, words.split()), 2] for words in said])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    for step in range(STEPS):
        some = torch.randint(IMAGES, (BATCH,))
        logits = model(pixel_values=seen[some], decoder_input_ids=ids[some, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.mT, ids[some, 1:])
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


def told_right(opened):
    """The recording of the first new image of which every word is right."""
    chance = np.random.default_rng(1)
    while True:
        image, words = scene(chance)
        recording = opened.record(image=image)
        crossing = next(call for call in recording if call.kind == "cross")
        if " ".join(crossing.query_tokens[1:]) == words:
            return recording


def finder(recording):
    """The head whose rows of the two colours lie most on the halves where their shapes are."""
    found = []
    for n, call in enumerate(recording):
        if call.kind == "cross":
            first, second = (i for i, token in enumerate(call.query_tokens) if token in COLOURS)
            for head in call.heads:
                rows = call.key_picture.laid(call.weights(head))
                half = rows.shape[-1] // 2
                right = float(rows[first, :, :half].sum()), float(rows[second, :, half:].sum())
                found.append(
                    (min(right), n, head, second, int(call.weights(head)[second].argmax()))
                )
    return max(found)[1:]


def main(folder, pictures="docs/pictures"):
    """Draw them all."""
    if not (Path(folder) / "config.json").exists():
        train(folder)
    recording = told_right(heedful.open(folder, device="cpu"))
    call, head, query, key = finder(recording)
    words = {"call": f"0.0.{call}", "head": head, "cell": f"{query},{key}", "pinned": 1}
    told = Queue()
    threading.Thread(
        target=serve, args=(Catalogue({"shapes": recording}), told.put), daemon=True
    ).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        camera = Camera(browser, told.get(), Path(pictures))
        camera.take("image", words, size=WIDE, part="The text")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
