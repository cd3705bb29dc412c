"""Small runs of every kind, trained by one process or by the processes of torchrun.

    torchrun tests/trained_together.py DIR NAMES [--shard]

Each is trained in DIR/its name, one after another; none has dropout, which each process has of its
own.
"""

import sys
from pathlib import Path

from heedful.torchrun import exit_at_once, started
from heedful.train import PRESETS, new_plan, open_training, prepare_run

STEPS = 20
TEXT = "".join(f"{i} green bottles hanging on the wall, {i * i} of them\n" for i in range(120))
PAIRS = "".join(f"{i} bottles\t{i * i} of them, {'all' * (i % 5)} green\n" for i in range(90))
# In float32: sums in bfloat16 would depend on the division of a batch
TRAIN = {"steps": STEPS, "evaluate_every": 6, "save_every": 8, "device": "cpu", "accumulation": 2}
TRAIN |= {"precision": "float32"}
SMALL = {"width": 24, "layers": 2, "heads": 2, "dropout": 0.0}
# A preset, a tokenizer, and changes of the model and of its training; batches have sizes
# that two and three processes cannot divide evenly
CASES = {
    "adamw": ("quick", "characters", {}, {"optimizer": "adamw", "batch": 7}),
    "muon": ("quick", "characters", {}, {"optimizer": "muon", "batch": 5, "matrix_decay": 0.1}),
    "all": ("quick", "characters", {"convolution": 2, "tied": False, "kv_heads": 1},
            {"optimizer": "muon", "batch": 8, "label_smoothing": 0.1, "watch": "12 green bottles",
             "watch_every": 7}),
    "gpt2": ("quick", "characters", {"norm": "layer", "bias": True, "positions": "learned",
                                     "qk_norm": False, "tied": True},
             {"optimizer": "adamw", "batch": 5, "initial": "normal"}),
    "bert": ("bert", "wordpiece", {"attention_dropout": 0.0},
             {"batch": 7, "watch": "green bottles hang on the wall"}),
    "pairs": ("pairs", "characters", {"context_length": 64}, {"batch": 5}),
    "pairs with muon": ("pairs", "characters", {"context_length": 64, "decoder_layers": 1},
                        {"batch": 7, "optimizer": "muon"}),
}  # fmt: skip


def plan_of(name, directory, shard):
    preset, tokenizer, model, train = CASES[name]
    text = {"tokenizer": tokenizer} | ({"vocabulary": 300} if tokenizer == "wordpiece" else {})
    recipe = PRESETS[preset].changed(
        {
            "text": text,
            "model": {"context_length": 16, **SMALL, **model},
            "train": {**TRAIN, **train, "shard": shard},
        }
    )
    source = directory / ("pairs.tsv" if recipe.on_pairs else "text.txt")
    return new_plan(directory / name, [str(source)], recipe)


def write_texts(directory):
    (directory / "text.txt").write_text(TEXT)
    (directory / "pairs.tsv").write_text(PAIRS)


def main(directory, names, shard):
    processes = started()
    with processes.process_group(60):
        if processes.is_first:
            write_texts(directory)
        processes.barrier()
        for name in names:
            plan = plan_of(name, directory, shard)
            if processes.is_first:
                plan.write()
                prepare_run(plan)
            processes.barrier()
            for _ in open_training(plan, prepare_run(plan), processes).events():
                pass


if __name__ == "__main__":
    options = [word for word in sys.argv[1:] if not word.startswith("--")]
    main(Path(options[0]), options[1:], "--shard" in sys.argv)
    exit_at_once(0)
