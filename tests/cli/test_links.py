"""What a command writes replaces a link, and is not written to what it leads to."""

import shutil

import pytest
from typed import train

TEXT = "".join(f"Bottle {i} of {i * i} on the wall.\n" for i in range(100))
SMALL = ["--context-length", "16", "--width", "24", "--layers", "1", "--heads", "2", "--batch", "3",
         "--tokenizer", "characters", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was watched, not to be changed."""
    return train(tmp_path_factory.mktemp("run"), TEXT, *SMALL, "--steps", "4", "--watch", "Bottle")


def state(folder):
    """What tells whether a file of a folder was written, replaced, added or removed."""
    return {
        path.relative_to(folder): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


COMMANDS = {
    "record": "record {run} Bottle --out {out}/a.safetensors",
    "look": "look {run} Bottle --html {out}/a.html --overwrite",
    "plot": "plot {run} Bottle --out {out} --only heads --only scores --overwrite",
    "plot, a file": "plot {run} Bottle --out {out}/a.svg --overwrite",
    "plot, the run's": "plot {run} --only loss --only positions --only watched "
    "--out {out} --overwrite",
    "export": "export {run} --to {out}",
    "explain": "explain Bottle --model {run} --html {out}/a.html --overwrite",
    "explain, pictures": "explain Bottle --model {run} --pictures {out} --overwrite",
    "describe": "describe {run} --out {out}/a.png --overwrite",
    "embed": "embed --picture {out}/a.png --overwrite",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_follows_no_link(command, run, said, tmp_path):
    def written(folder):
        folder.mkdir(exist_ok=True)
        line = COMMANDS[command].format(run=run, out=folder).split()
        status, _, error = said(*line)
        return status, error

    assert written(tmp_path / "first") == (0, "")
    names = [path.name for path in (tmp_path / "first").iterdir()]
    outside, folder = tmp_path / "outside", tmp_path / "second"
    shutil.copytree(tmp_path / "first", outside)
    folder.mkdir()
    for name in names:
        if command != "export":  # it refuses a directory that has a model
            (folder / name).symlink_to(outside / name)
    before = state(outside)
    assert written(folder) == (0, "")
    assert names
    assert state(outside) == before
    for name in names:
        assert (folder / name).is_file()
        assert not (folder / name).is_symlink()


def test_a_run_may_be_called_by_a_link(run, said, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert said("train", "--out", tmp_path / "latest", "--resume", "--steps", "5")[0] == 0
    assert (tmp_path / "latest").is_symlink()
