"""Training of a small model on a small text, in a second or less."""

from heedful.files import load_tensors
from heedful.train import PRESETS, new_plan, open_training, prepare_run, read_metrics

TEXT = "".join(f"{i} green bottles hanging on the wall, {i * i} of them\n" for i in range(120))


def recipe(**changes):
    """Return a smaller form of the preset quick, with changes of its training settings."""
    model = {"context_length": 16, "width": 24, "layers": 2, "heads": 2, "convolution": 2,
             "dropout": 0.2, "embedding_dropout": 0.1}  # fmt: skip
    train = {"steps": 24, "batch": 3, "convolution_rate": 0.01, "accumulation": 2,
             "evaluate_every": 6, "save_every": 4, "device": "cpu"}  # fmt: skip
    text = {"tokenizer": "characters"}
    return PRESETS["quick"].changed({"text": text, "model": model, "train": train | changes})


def write_plan(directory, **changes):
    (directory / "text.txt").write_text(TEXT)
    plan = new_plan(directory / "run", [str(directory / "text.txt")], recipe(**changes))
    plan.write()
    return plan


def train_run(plan, resume=False):
    training = open_training(plan, prepare_run(plan))
    if resume:
        training.restore()
    return list(training.events())


def outcome(directory):
    """Return the metrics, the progress and all tensors of a completed run."""
    last, progress = load_tensors(directory / "state/last.safetensors")
    best, _ = load_tensors(directory / "model.safetensors")
    numbers = {name: tensor.tolist() for name, tensor in {**last, **best}.items()}
    return read_metrics(directory / "metrics.jsonl"), progress, numbers
