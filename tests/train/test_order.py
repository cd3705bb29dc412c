"""Which sequences of a training split are read: random ones, or each once in a shuffled pass."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import started

from heedful.train import open_training, prepare_run
from heedful.train.batches import Which, draw, shuffled, starts


@given(
    pieces=st.integers(1, 20),
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    seed=st.integers(0, 5),
)
def test_a_pass_has_each_piece_once_whatever_the_batches(pieces, batches, seed):
    found, first = [], 0
    for step, batch in enumerate(batches):
        found += shuffled(Which((seed, step, 0), first), batch, pieces)
        first += batch
    assert found == shuffled(Which((seed,), 0), first, pieces)
    for number in range(first // pieces):
        assert sorted(found[number * pieces : (number + 1) * pieces]) == [
            (number, piece) for piece in range(pieces)
        ]


def test_passes_and_seeds_are_shuffled_differently():
    one, two = (shuffled(Which((7,), first), 50, 50) for first in (0, 50))
    other = shuffled(Which((8,), 0), 50, 50)
    orders = [[piece for _, piece in found] for found in (one, two, other)]
    assert len({tuple(order) for order in (*orders, range(50))}) == 4


@given(tokens=st.integers(1, 60), length=st.integers(1, 12), seed=st.integers(0, 20))
def test_windows_of_a_pass_do_not_overlap_and_leave_little_out(tokens, length, seed):
    length = min(tokens, length)
    pieces = max(1, tokens // length - 1)
    found = starts(Which((seed,), 0), pieces, tokens, length, np.random.default_rng(0))
    read = [start + i for start in found for i in range(length)]
    assert len(set(read)) == len(read)
    assert min(read) >= 0
    assert max(read) < tokens
    assert tokens - len(read) < 2 * length


def test_every_token_is_read_in_some_pass_and_cut_elsewhere_in_each():
    ids = np.arange(40)
    windows = [draw(ids, 6, 1, Which((3,), first)) for first in range(200)]
    assert {int(token) for inputs, _ in windows for token in inputs.flatten()} == set(range(39))
    assert {int(token) for _, targets in windows for token in targets.flatten()} == set(ids[1:])
    assert {int(inputs[0, 0]) % 6 for inputs, _ in windows} == set(range(6))


def which_of(training, monkeypatch):
    """The batches that a training reads from here to its end, each with its first and its size."""
    read, task = [], training.task
    of_class = type(task).draw

    def drawn(self, batch, which, rows=slice(None)):
        if len(which.key) > 1:  # what chance is counted from is no batch of the training
            read.append((which.first, batch))
        return of_class(self, batch, which, rows)

    with monkeypatch.context() as patch:
        patch.setattr(type(task), "draw", drawn)
        list(training.events())
    return read


@pytest.mark.parametrize("batch", [3, 5])
def test_training_goes_on_in_its_pass_where_it_was(batch, tmp_path, monkeypatch):
    """Where the batch or the number of steps is another one, too."""
    plan = started(tmp_path, steps=8)
    read = which_of(open_training(plan, prepare_run(plan)), monkeypatch)
    longer = plan.recipe.changed({"train": {"steps": 12, "batch": batch}})
    training = open_training(plan._replace(recipe=longer), prepare_run(plan))
    assert training.restore()
    read += which_of(training, monkeypatch)
    assert len(read) == 12 * plan.recipe.train.accumulation
    places = [place for first, batch in read for place in range(first, first + batch)]
    assert places == list(range(len(places)))
