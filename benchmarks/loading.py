"""Seconds and peak memory of loading a checkpoint, in heedful and in transformers.

    python benchmarks/loading.py

Each row is measured in a new process. Memory is the peak rise of anonymous memory after importing
torch. The files were just written, so they are in the page cache. The checkpoints have GPT-2's
shape: "whole" is one file, "shards" has files of about 100 MB, "half" stores float16 and is loaded
as float32, "run" is a run directory of `heedful train`. The target is a rise of less than 1.3 times
the size of the parameters.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from memory import in_fresh_process, memory_rise
from safetensors.torch import load_file, save_file

from heedful.models import GPT, export_model, load_model, parameters_of, write_model_config
from heedful.train import PRESETS

TARGET = 1.3
SHARD = 100e6


class Row(NamedTuple):
    """One line of the table; memory in MB."""

    seconds: float
    weights: float
    rise: float


def main() -> None:
    arguments = _arguments()
    torch.manual_seed(0)
    changes = {"vocabulary": 50_257, "width": arguments.width, "layers": arguments.layers}
    config = PRESETS["gpt2"].changed({"model": changes}).model
    with tempfile.TemporaryDirectory() as folder:
        kinds = write(GPT(config), Path(folder))
        print(
            f"{'checkpoint':12}{'reader':14}{'s':>7}{'weights MB':>12}{'rise MB':>10}{'ratio':>8}"
        )
        for kind, directory in kinds.items():
            show(kind, "heedful", in_fresh_process(load_with_heedful, directory))
            if kind != "run":
                show(kind, "transformers", in_fresh_process(load_with_transformers, directory))


def write(model: GPT, folder: Path) -> dict[str, Path]:
    """Write the same weights in four forms; return the directory of each."""
    whole, shards, half, run = (folder / name for name in ("whole", "shards", "half", "run"))
    export_model(model, whole)
    split(whole, shards)
    run.mkdir()
    write_model_config(run, model.config)
    save_file(parameters_of(model), run / "model.safetensors")
    export_model(model.half(), half)
    return {"whole": whole, "shards": shards, "half": half, "run": run}


def split(whole: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_bytes((whole / "config.json").read_bytes())
    tensors = load_file(whole / "model.safetensors")
    shard_of, size, number = {}, 0.0, 0
    for name, tensor in tensors.items():
        if size and size + tensor.nbytes > SHARD:
            size, number = 0.0, number + 1
        size += tensor.nbytes
        shard_of[name] = f"model-{number:05}.safetensors"
    for shard in set(shard_of.values()):
        save_file({n: tensors[n] for n in tensors if shard_of[n] == shard}, folder / shard)
    index = {"metadata": {}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def load_with_heedful(directory: Path) -> Row:
    return measured(lambda: load_model(directory, dtype=torch.float32))


def load_with_transformers(directory: Path) -> Row:
    import transformers

    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=12)
    )  # imports its modules
    return measured(
        lambda: transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    )


def measured(load: Callable[[], torch.nn.Module]) -> Row:
    with memory_rise() as rise:
        start = time.perf_counter()
        model = load()
        seconds = time.perf_counter() - start
    weights = sum(parameter.nbytes for parameter in model.parameters()) / 1e6
    return Row(seconds, weights, rise[0])


def show(kind: str, reader: str, row: Row) -> None:
    ratio = row.rise / row.weights
    verdict = (
        "" if reader != "heedful" else f"  under {TARGET}: {'yes' if ratio < TARGET else 'NO'}"
    )
    print(f"{kind:12}{reader:14}{row.seconds:7.2f}{row.weights:12.0f}{row.rise:10.0f}", end="")
    print(f"{ratio:8.2f}{verdict}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    return parser.parse_args()


if __name__ == "__main__":
    main()
