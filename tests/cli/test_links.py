"""Commands replace symbolic links; they never write to the files that links point to."""

import shutil
from pathlib import Path

import pytest
from command_checks import refused, train

TEXT = "".join(f"Bottle {i} of {i * i} on the wall.\n" for i in range(100))
SMALL = ["--context-length", "16", "--width", "24", "--layers", "1", "--heads", "2", "--batch", "3",
         "--tokenizer", "characters", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run trained with --watch. Do not change it."""
    return train(tmp_path_factory.mktemp("run"), TEXT, *SMALL, "--steps", "4", "--watch", "Bottle")


def state(folder):
    """Return the inode and modification time of each file in a folder."""
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
    "explain, pictures": "explain Bottle --pictures {out} --overwrite",
    "describe": "describe {run} --out {out}/a.png --overwrite",
    "ablate": "ablate {run} Bottle --out {out}/a.json --overwrite",
    "embed": "embed --picture {out}/a.png --overwrite",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_follows_no_link(command, run, cli, tmp_path):
    def written(folder):
        folder.mkdir(exist_ok=True)
        line = COMMANDS[command].format(run=run, out=folder).split()
        status, _, error = cli(*line)
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


OWN = ["config.json", "tokenizer.json", "model.safetensors", "metrics.jsonl", "state",
       "state/recipe.json", "state/tokens.npy", "state/last.safetensors", "state/lock", "watched",
       "watched/step-00000004.safetensors", "logs", "pictures", "state/fresh",
       "state/sharded"]  # fmt: skip
OTHER = ["loss.png", ".metrics.jsonl.part", ".model.safetensors.part"]
LINES = {
    "resume": "train --out {out} --resume --steps 6",
    "overwrite": "train {text} --out {out} --overwrite --steps 2 " + " ".join(SMALL),
}


def with_links(run, folder, names):
    """Copy the run, turn some of its files into links, and return it with the links' targets."""
    out, outside = shutil.copytree(run, folder / "run"), folder / "outside"
    outside.mkdir()
    for name in names:
        link, target = out / name, outside / Path(name).name
        if link.exists():
            shutil.move(link, target)
        elif "." in name:
            target.write_text("before\n")
        else:
            target.mkdir()
            (target / "file").write_text("before\n")
        link.symlink_to(target)
    return out, outside


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", OWN)
def test_a_run_with_a_link_writes_no_other_file(name, line, run, cli, tmp_path):
    out, outside = with_links(run, tmp_path, [name])
    before = state(outside)
    result = cli(*LINES[line].format(out=out, text=run.parent / "text.txt").split())
    assert state(outside) == before
    refused(result, f"{name} is a link to {outside / Path(name).name}", "remove the link")


@pytest.mark.parametrize("line", LINES)
def test_links_that_are_no_files_of_a_run_are_replaced(line, run, cli, tmp_path):
    out, outside = with_links(run, tmp_path, OTHER)
    (out / ".mine.part").touch()
    before = state(outside)
    assert cli(*LINES[line].format(out=out, text=run.parent / "text.txt").split())[0] == 0
    assert state(outside) == before
    assert (out / ".mine.part").exists()


@pytest.mark.parametrize("name", ["config.json", "state"])
def test_a_dangling_link_creates_no_file(name, run, cli, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / name).symlink_to(tmp_path / "other")
    line = LINES["overwrite"].replace("--overwrite", "")
    refused(cli(*line.format(out=out, text=run.parent / "text.txt").split()), "is a link to")
    assert not (tmp_path / "other").exists()
    assert [path.name for path in out.iterdir()] == [name]


@pytest.mark.parametrize("command", ["plot {out} --only loss", "demo --keep --out {out}"])
def test_pictures_of_a_run_go_through_no_link(command, run, cli, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(run, out)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "loss.png").write_text("before")
    (out / "pictures").symlink_to(tmp_path / "outside")
    before = state(tmp_path / "outside")
    refused(cli(*command.format(out=out).split()), "pictures is a link to")
    assert state(tmp_path / "outside") == before


def test_a_run_may_be_called_by_a_link(run, cli, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert cli("train", "--out", tmp_path / "latest", "--resume", "--steps", "5")[0] == 0
    assert (tmp_path / "latest").is_symlink()
