"""Files of two continuations of a run, and of different times, are not mixed."""

import itertools
import shutil

import pytest
import small_runs
from small_runs import TEXT, outcome, recipe

from heedful.errors import HeedfulError, RunError
from heedful.files import load_tensors, read_json, write_json
from heedful.models import load_model
from heedful.train import Step, begin, checkpoint, new_plan, open_training, prepare_run, read_plan
from heedful.train.loop import Training
from heedful.train.run import events
from heedful.train.run_directory import lock_run

LAST, BEST, METRICS = "state/last.safetensors", "model.safetensors", "metrics.jsonl"
RECIPE = "state/recipe.json"
CHANGING = (RECIPE, LAST, BEST, METRICS)
SAVED = {"steps": 12, "evaluate_every": 3, "save_every": 4}


def train_run(directory, until=None, **changes):
    """Start or resume a run as the command does; `until` kills it after the events of a step."""
    is_new = not (directory / "config.json").exists()
    if is_new:
        text = directory.with_suffix(".txt")
        text.write_text(TEXT)
        plan = new_plan(directory, [str(text)], recipe(**SAVED, **changes))
    else:
        plan = read_plan(directory)
        plan = plan.continued(plan.recipe.changed({"train": changes}))
    with lock_run(directory):
        training = open_training(plan, (begin if is_new else prepare_run)(plan))
        training.restore()
        plan.write()
        for event in events(plan, training):
            if isinstance(event, Step) and event.step == until:
                break
    return directory


def copied(source, directory):
    shutil.copytree(source, directory)
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of 12 steps, and two continuations of 8 further steps."""
    folder = tmp_path_factory.mktemp("runs")
    train_run(folder / "old")
    for name, rate in (("first", 2e-3), ("second", 4e-3)):
        train_run(copied(folder / "old", folder / name), steps=20, learning_rate=rate)
    assert marks_of(folder / "first", BEST)["step"] > 12  # otherwise both have the same weights
    return folder


def marks_of(directory, name):
    return load_tensors(directory / name)[1]


def used(directory, **changes):
    """Load the model of a run, then continue the run."""
    weights = {name: tensor.tolist() for name, tensor in load_model(directory).state_dict().items()}
    train_run(directory, **changes)
    return weights, outcome(directory)


SWAPS = [names for n in range(1, 4) for names in itertools.combinations(CHANGING, n)]


@pytest.mark.parametrize(("run", "other"), [("first", "second"), ("second", "first")])
def test_files_of_another_continuation_are_refused(run, other, runs, tmp_path):
    for names in SWAPS:
        directory = copied(runs / run, tmp_path / "run")
        for name in names:
            shutil.copy(runs / other / name, directory / name)
        with pytest.raises(RunError, match=r"does not belong to the run that|a line before it"):
            used(directory, steps=22)
        shutil.rmtree(directory)


def test_files_of_an_earlier_time_are_refused_or_change_nothing(runs, tmp_path):
    """An earlier checkpoint is continued, and the run repeats the later steps.

    All files of an earlier time together are the earlier run, a backup that somebody restored.
    """
    expected = used(copied(runs / "first", tmp_path / "expected"))[1][2]
    backup, of_backup = (RECIPE, LAST, BEST), used(copied(runs / "old", tmp_path / "old"))[1][2]
    accepted = []
    for names in SWAPS:
        directory = copied(runs / "first", tmp_path / "run")
        for name in names:
            shutil.copy(runs / "old" / name, directory / name)
        try:
            _, (_, _, numbers) = used(directory)
        except HeedfulError:
            continue
        finally:
            shutil.rmtree(directory)
        accepted.append(names)
        assert numbers == (of_backup if names == backup else expected), names
    assert accepted == [
        (LAST,), (METRICS,), (LAST, BEST), (LAST, METRICS), backup, (LAST, BEST, METRICS)
    ]  # fmt: skip


def test_earlier_weights_are_refused_beside_a_checkpoint(runs, tmp_path):
    directory = copied(runs / "first", tmp_path / "run")
    shutil.copy(runs / "old" / BEST, directory / BEST)
    for use in (load_model, train_run):
        with pytest.raises(RunError, match=r"model.safetensors does not belong .*earlier time"):
            use(directory)
    shutil.rmtree(directory / "state")
    load_model(directory)


@pytest.mark.parametrize("until", [3, 7, 11])
def test_a_run_killed_before_and_after_a_change_equals_one_changed_once(until, tmp_path):
    """After step 7 the weights are newer than the checkpoint that the continuation starts from."""
    killed = train_run(tmp_path / "run", until=until)
    uninterrupted = copied(killed, tmp_path / "copy")
    changes = {"steps": 20, "learning_rate": 4e-3}
    load_model(killed)
    for step in (until + 1, 13, None):
        train_run(killed, until=step, **changes)
        load_model(killed)
    train_run(uninterrupted, **changes)
    assert outcome(killed) == outcome(uninterrupted)
    continued = read_plan(killed).continuation
    train_run(killed)
    assert read_plan(killed).continuation == continued


def test_weights_of_before_a_change_stay_the_best(tmp_path, monkeypatch):
    """They are newer than the checkpoint, and no later validation loss is lower."""
    directory = train_run(tmp_path / "run", until=7)
    assert (marks_of(directory, BEST)["step"], marks_of(directory, LAST)["step"]) == (6, 4)
    better = copied(directory, tmp_path / "better")
    weights = (directory / BEST).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Training, "evaluate", lambda *_: 99.0)
        train_run(directory, learning_rate=2e-3)
    for _ in range(2):
        assert marks_of(directory, LAST)["step"] == 12
        assert (directory / BEST).read_bytes() == weights
        load_model(directory)
        train_run(directory)
    train_run(better, learning_rate=2e-3)
    assert marks_of(better, BEST)["step"] == 12
    (better / BEST).write_bytes(weights)
    with pytest.raises(RunError, match=r"model.safetensors does not belong"):
        load_model(better)


def test_without_validation_the_weights_of_the_checkpoint_are_expected(tmp_path, monkeypatch):
    def plan_in(directory):
        directory.mkdir()
        plan = small_runs.write_plan(directory, **SAVED)
        plan = plan._replace(recipe=plan.recipe.changed({"text": {"validation": 0.0}}))
        plan.write()
        return plan

    uninterrupted = plan_in(tmp_path / "uninterrupted")
    small_runs.train_run(uninterrupted)
    killed, save, calls = plan_in(tmp_path / "killed"), checkpoint.save, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        save(*arguments)

    monkeypatch.setattr(checkpoint, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_runs.train_run(killed)
    earlier = (killed.directory / BEST).read_bytes()
    small_runs.train_run(killed, resume=True)
    assert outcome(killed.directory) == outcome(uninterrupted.directory)
    (killed.directory / BEST).write_bytes(earlier)
    with pytest.raises(RunError, match="does not belong"):
        load_model(killed.directory)


def test_a_missing_checkpoint_of_a_continuation_is_refused_by_training_only(runs, tmp_path):
    directory = copied(runs / "first", tmp_path / "run")
    (directory / LAST).unlink()
    load_model(directory)
    with pytest.raises(RunError, match=r"last.safetensors does not belong"):
        train_run(directory)


@pytest.mark.parametrize("entry", ["x", 5, [1], {}, [None, 0, 0], ["a", ["b", "c"], [[], {}]]])
def test_a_recipe_with_an_impossible_continuation_is_refused(entry, runs, tmp_path):
    directory = copied(runs / "first", tmp_path / "run")
    write_json(directory / RECIPE, {**read_json(directory / RECIPE), "continuation": entry})
    load_model(directory)  # the best weights can be used without the folder `state`
    for use in (lambda path: load_model(path, checkpoint="last"), train_run):
        with pytest.raises(RunError):
            use(directory)
