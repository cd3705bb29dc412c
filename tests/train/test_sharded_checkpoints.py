"""A sharded checkpoint beside a checkpoint in a file: the later one counts."""

import pytest
import torch
import torch.distributed as dist
from small_runs import train_run, write_plan

from heedful.errors import RunError, SaveError
from heedful.files import load_tensors, save_tensors
from heedful.files.sharded import newest, save_sharded
from heedful.models import load_model, parameters_of
from heedful.models.directory import latest_checkpoint
from heedful.processes import Processes
from heedful.train.checkpoint import saved_step

LAST = "state/last.safetensors"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    plan = write_plan(tmp_path_factory.mktemp("run"), steps=4)
    train_run(plan)
    return plan.directory


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("step", "is_later"), [(3, False), (5, True)])
def test_the_later_checkpoint_is_resumed_and_loaded(step, is_later, run, group, tmp_path):
    """Both exist if a process is killed between writing one and removing the other."""
    tensors, about = load_tensors(run / LAST)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (copy / name).write_bytes((run / name).read_bytes())
    (copy / "state").mkdir()
    save_tensors(copy / LAST, tensors, about)
    other = {name: tensor + 1 for name, tensor in tensors.items()}
    save_sharded(copy / "state/sharded", other, {**about, "step": step}, Processes())
    assert (latest_checkpoint(copy) == copy / LAST) != is_later
    assert saved_step(copy) == (5 if is_later else 4)
    loaded = parameters_of(load_model(copy, checkpoint="last"))
    expected = other if is_later else tensors
    for name, tensor in loaded.items():
        torch.testing.assert_close(tensor.detach(), expected[f"model.{name}"])


def test_a_file_that_another_machine_did_not_write_here_is_missed(group, tmp_path, monkeypatch):
    """The previous checkpoint stays intact if machines do not share a directory."""
    save_sharded(tmp_path, {"a": torch.ones(3)}, {"step": 1}, Processes())
    before = newest(tmp_path)
    monkeypatch.setattr("heedful.files.sharded.VISIBLE_WITHIN", 0.1)
    monkeypatch.setattr(Processes, "all_gather", lambda _, sums: [sums, {"shard-00002.x": "0" * 8}])
    with pytest.raises(SaveError, match=r"lacks shard-00002\.x"):
        save_sharded(tmp_path, {"a": torch.zeros(3)}, {"step": 2}, Processes())
    assert newest(tmp_path) == before


def test_parts_that_are_damaged_are_refused(group, run, tmp_path):
    tensors, about = load_tensors(run / LAST)
    save_sharded(tmp_path / "state/sharded", tensors, about, Processes())
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    [path] = newest(tmp_path / "state/sharded").glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)
    with pytest.raises(RunError, match="is not what was written"):
        load_model(tmp_path, checkpoint="last")
