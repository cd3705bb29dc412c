"""Small files and texts that exhaust memory or time, for `faults.py`, or alone with their figures.

    python benchmarks/bombs.py

Each command must answer in one line and exit with status 1 or 2, without a traceback or "please
report", in 500 MB and one second more of processor time than `heedful describe` of the run.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from heedful.files import read_tensors, save_tensors
from heedful.files.run_identity import RUN

TIMEOUT, SECONDS, MEGABYTES = 60.0, 1.0, 500.0
DEEP = "[" * 100_000 + "]" * 100_000
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}


class Answer(NamedTuple):
    """What a command did: its exit status, standard error, processor time and peak memory."""

    status: int
    error: str
    seconds: float
    megabytes: float


def answer(*words: Any) -> Answer:
    """Run the command, with a limit of address space so that a fault does not harm the machine."""
    program = [sys.executable, "-c", "from heedful.cli import main; main()", *map(os.fspath, words)]
    with tempfile.TemporaryFile("w+b") as error:
        process = subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=error,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
        )  # fmt: skip
        began = time.perf_counter()
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if time.perf_counter() - began > TIMEOUT:
                process.kill()
            time.sleep(0.02)
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        error.seek(0)
        text = error.read().decode(errors="replace")
    seconds = usage.ru_utime + usage.ru_stime
    return Answer(process.returncode, text, seconds, usage.ru_maxrss / 1e3)


def faults_of(given: Answer, seconds: float) -> list[str]:
    """Return the ways in which an answer misses the target."""
    conditions = {
        f"status {given.status}": given.status not in (1, 2),
        f"{given.error.count(chr(10))} lines": given.error.count("\n") != 1,
        "the fallback": "please report the error" in given.error,
        f"{given.seconds:.1f} s": given.seconds > seconds + SECONDS,
        f"{given.megabytes:.0f} MB": given.megabytes > MEGABYTES,
    }
    return [fault for fault, is_missed in conditions.items() if is_missed]


def changed(run: Path, file: str = "config.json", **entries: Any) -> Callable[[Path], None]:
    """Return a function that changes entries of a JSON file of a copied run."""

    def change(copy: Path) -> None:
        content = json.loads((run / file).read_text())
        content.pop("crc32", None)
        content["model"] |= entries
        (copy / file).write_text(json.dumps(content))

    return change


def recording_with(run: Path, **entries: Any) -> Callable[[Path], None]:
    """Return a function that writes a recording of which the first tokens have these entries."""

    def write(copy: Path) -> None:
        path = copy / "r.safetensors"
        command = [sys.executable, "-m", "heedful", "record", run, "10 green", "--out", path]
        subprocess.run(command, check=True, capture_output=True)
        tensors, about = read_tensors(path)
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        del about["sums"]
        about["calls"][0]["tokens"][0] |= entries
        save_tensors(path, tensors, about)

    return write


def deep_metrics(copy: Path) -> None:
    """Write a line of metrics with a valid checksum and a deep list."""
    body = b'{"step": 1, "loss": ' + DEEP.encode()
    seed = zlib.crc32(json.loads((copy / "config.json").read_text())[RUN].encode())
    line = body + b', "crc32": "%08x"}\n' % zlib.crc32(body + b"}", seed)
    (copy / "metrics.jsonl").write_bytes(line)


def special(name: str, device: str = "") -> Callable[[Path], None]:
    """Return a function that replaces a file by a link to a device, or by a pipe."""

    def replace(copy: Path) -> None:
        (copy / name).unlink(missing_ok=True)
        os.symlink(device, copy / name) if device else os.mkfifo(copy / name)

    return replace


def rewritten(name: str, text: str) -> Callable[[Path], None]:
    return lambda copy: (copy / name).write_text(text) and None


def line_of_200_megabytes(copy: Path) -> None:
    with (copy / "line.txt").open("w") as file:
        for _ in range(200):
            file.write("a" * 1_000_000)


def replacements(copy: Path) -> None:
    """Write a tokenizer whose normaliser makes a character 10¹² characters."""
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    content = json.loads(library.to_str())
    content["normalizer"] = {"type": "Sequence", "normalizers": [REPLACE] * 12}
    (copy / "tokenizer.json").write_text(json.dumps(content))


def cases(run: Path, text: Path, copy: Path) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield the name of each bomb, the function that makes it in `copy`, and the command."""
    sizes = {
        "layers": 10**7, "vocabulary": 2**32, "width": 10**18, "hidden": 10**18,
        "context_length": 10**10, "convolution": 10**9, "head_width": 10**18,
    }  # fmt: skip
    for name, size in sizes.items():
        for words in (("describe", copy), ("heads", copy, "10 green")):
            yield f"{words[0]}, {name} {size:.0e}", changed(run, **{name: size}), words
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        for device in ("", "/dev/zero"):
            made = special(file, device)
            yield f"{file} is {device or 'a pipe'}", made, ("heads", copy, "10 green")
    for file in ("state/recipe.json", "state/tokens.npy", "state/last.safetensors"):
        yield f"{file} is a pipe", special(file), ("train", "--resume", "--out", copy)
    for file in ("config.json", "tokenizer.json"):
        yield f"{file}, deep", rewritten(file, DEEP), ("heads", copy, "10 green")
    yield "metrics.jsonl, deep", deep_metrics, ("train", "--resume", "--out", copy, "--steps", "99")
    out = ("--out", copy / "out")
    settings = copy / "settings.toml"
    yield "--config /dev/zero", None, ("train", text, "--config", "/dev/zero", *out)
    deep_toml = rewritten(settings.name, f"a = {DEEP}")
    yield "--config, deep", deep_toml, ("train", text, "--config", settings, *out)
    yield "words, deep", rewritten("w.json", DEEP), ("embed", copy / "w.json")
    for axis in ("queries", "keys"):
        for size in (10**9, 10**12, 10**30):
            made = recording_with(run, **{axis: [0, size]})
            yield f"{axis} {size:.0e}", made, ("heads", copy / "r.safetensors")
    made = recording_with(run, mask={"causal": 10**30})
    yield "a mask's offset 1e30", made, ("heads", copy / "r.safetensors")
    for words in (("tokenize",), ("record", run, "--out", copy / "o.safetensors"), ("heads", run)):
        line = ("--file", copy / "line.txt")
        yield f"{words[0]}, a line of 200 MB", line_of_200_megabytes, (*words, *line)
    tokenizer = ("tokenize", "aa", "--tokenizer", copy / "tokenizer.json")
    yield "replacements that multiply a text", replacements, tokenizer
    name = "n" * 300
    for words in (("describe", name), ("tokenize", "--file", name), ("train", text, "--out", name)):
        yield f"{words[0]}, a name too long", None, words
    foreign = os.fsdecode(b"\xff")
    for words in (("describe", foreign), ("train", text, "--out", copy / foreign)):
        yield f"{words[0]}, a name not in UTF-8", None, words


def bombs(run: Path, text: Path, place: Path, show: bool = False) -> Iterator[str]:
    """Yield "clear" for each bomb that is answered within the limits, else "lost"."""
    intact = answer("describe", run)
    copy = place / "bomb"
    for name, make, words in cases(run, text, copy):
        shutil.copytree(run, copy)
        if make is not None:
            make(copy)
        result = answer(*words)
        faults = faults_of(result, intact.seconds)
        if show or faults:
            print(
                f"  {name:40}{result.seconds - intact.seconds:6.1f} s{result.megabytes:6.0f} MB  "
                f"{', '.join(faults) or 'clear'}",
                file=sys.stdout if show else sys.stderr,
                flush=True,
            )
        yield "lost" if faults else "clear"
        shutil.rmtree(copy)


def main() -> None:
    from tiny_runs import recipe, trained, written_texts

    from heedful.train.plan import new_plan
    from heedful.train.run import begin

    with tempfile.TemporaryDirectory() as folder:
        text = written_texts(Path(folder))[0]
        trained(new_plan(Path(folder) / "run", [str(text)], recipe()), begin)
        results = list(bombs(Path(folder) / "run", text, Path(folder), show=True))
    print(f"{results.count('clear')} of {len(results)} bombs answered within the limits")
    sys.exit("lost" in results)


if __name__ == "__main__":
    main()
