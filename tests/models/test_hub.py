"""Models by hub name: from the cache without a network, or a one-line error naming the cache."""

import fnmatch
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors
import pytest
import torch

from heedful.errors import ArgumentError, RunError
from heedful.models import GPT, GPTConfig, export_model, load_model, model_directory
from heedful.recording import from_attentions

NAME, COMMIT = "somebody/tiny-gpt2", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def model():
    config = GPTConfig(
        vocabulary=11, context_length=8, width=12, heads=2, layers=1, positions="learned",
        activation="gelu_tanh", norm="layer", qk_norm=False, bias=True, attention_bias=True,
    )  # fmt: skip
    return GPT(config).eval()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


@pytest.fixture
def cached(cache, model):
    """A snapshot in the cache's layout of `huggingface_hub`, also under the tag v1."""
    repository = cache / "models--somebody--tiny-gpt2"
    export_model(model, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    for reference in ("main", "v1"):
        (repository / "refs" / reference).write_text(COMMIT)
    return repository / "snapshots" / COMMIT


@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
def test_a_cached_model_opens_with_no_network(revision, cached, model):
    assert model_directory(NAME, revision=revision) == cached
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(load_model(NAME, revision=revision)(ids).logits, model(ids).logits)


def test_with_no_network_the_error_names_the_cache(cache, cached):
    for name, revision in (("somebody/else", None), ("gpt2", None), (NAME, "v2")):
        with pytest.raises(RunError) as caught:
            load_model(name, revision=revision)
        assert str(cache) in str(caught.value)
        assert repr(name) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a/b/c", "../x", "/nowhere/at/all", "a b", "", "~/runs"])
def test_an_invalid_hub_name_is_not_requested(name, cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", pytest.fail)
    if name:
        with pytest.raises(RunError, match="no directory"):
            model_directory(name)
    else:
        assert model_directory(name).is_dir()  # the empty path is this directory


def test_a_local_directory_takes_precedence_over_the_hub(cache, model, monkeypatch):
    export_model(model, cache.parent / "gpt2")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", pytest.fail)
    assert load_model("gpt2").config == model.config
    with pytest.raises(ArgumentError, match="revision 'v1' of the directory 'gpt2'"):
        load_model("gpt2", revision="v1")


class Hub:
    """A fake hub: files by name, and a log of requests."""

    def __init__(self, directory, files):
        self.directory, self.files, self.calls = directory, files, []

    def __call__(self, name, *, revision, allow_patterns):
        self.calls.append((name, revision))
        self.directory.mkdir(exist_ok=True)
        for file in self.files:
            if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                (self.directory / file).parent.mkdir(exist_ok=True, parents=True)
                (self.directory / file).write_text("{}")
        return str(self.directory)

    def fetched(self):
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return {path.relative_to(self.directory).as_posix() for path in files}


FILES = {
    "config.json",
    "tokenizer.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
}
OTHERS = {"README.md", "model.fp16.safetensors", "tf_model.h5", "onnx/model.safetensors", "a.py"}
PICKLED = {"pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"}


@pytest.mark.parametrize(
    ("files", "pickles", "expected"),
    [
        (FILES | OTHERS | PICKLED, True, FILES),
        ({"config.json"} | OTHERS | PICKLED, False, {"config.json"}),
        ({"config.json"} | OTHERS | PICKLED, True, {"config.json"} | PICKLED),
    ],
)
def test_only_needed_files_are_downloaded(files, pickles, expected, cache, tmp_path, monkeypatch):
    hub = Hub(tmp_path / "fetched", files)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    model_directory(NAME, revision="v1", allow_pickle=pickles)
    assert hub.fetched() == expected
    assert set(hub.calls) == {(NAME, "v1")}


def test_a_file_is_not_a_model(tmp_path):
    path = tmp_path / "maps.safetensors"
    from_attentions([torch.eye(3).expand(1, 2, 3, 3)]).save(path)
    with pytest.raises(RunError, match=r"is a file; .*heedful\.load opens a recording"):
        load_model(path)


def test_a_wrong_folder_lists_the_models_in_it(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    assert model_directory("runs/a") == Path("runs/a")
    for wrong in ("runs", "runs/nope"):  # the second may also be a name on the hub
        with pytest.raises(RunError, match=r"one of.*runs/a, runs/b"):
            model_directory(wrong)
