"""`heedful export`, and other commands on directories in Hugging Face format."""

import json
import shutil

import pytest
import torch
from command_checks import refused, train
from PIL import Image

from heedful.text import BPETokenizer, load_tokenizer

transformers = pytest.importorskip("transformers")

TEXT = "".join(f"Bottle {i} of {i * i}: naïve café, 火, 🙂.\n" for i in range(99))
GPT2 = ["--context-length", "24", "--width", "24", "--layers", "2", "--heads", "3", "--positions",
        "learned", "--activation", "gelu_tanh", "--norm", "layer", "--no-qk-norm", "--bias",
        "--attention-bias", "--steps", "6", "--batch", "4", "--device", "cpu"]  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[("bpe", "--vocabulary", "280"), ("characters",)],
    ids=["bpe", "characters"],
)
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return train(folder, TEXT, *GPT2, "--tokenizer", *request.param)


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """A GPT-2 with its tokenizer, both as transformers saves them."""
    folder = tmp_path_factory.mktemp("checkpoints")
    BPETokenizer.train([TEXT], 300).save(folder / "trained")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "trained" / "tokenizer.json"), eos_token="<|endoftext|>"
    )
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=len(tokenizer), n_positions=64, n_embd=24, n_layer=2, n_head=3,
            bos_token_id=None, eos_token_id=None, initializer_range=0.5,
        )
    ).eval()  # fmt: skip
    for part in (model, tokenizer):
        part.save_pretrained(folder / "gpt2")
    return folder / "gpt2", model, tokenizer


@pytest.fixture
def copied(hugging_face, tmp_path):
    shutil.copytree(hugging_face[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_transformers_generates_the_same_text(trained, cli, tmp_path):
    out = tmp_path / "exported"
    assert cli("export", trained, "--to", out) == (0, f"{out}\n", "")
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    prompt = "Bottle 7 of"
    ids = tokenizer(prompt, return_tensors="pt")
    assert ids.input_ids[0].tolist() == load_tokenizer(trained).encode(prompt)
    expected = model.generate(
        ids.input_ids,
        attention_mask=ids.attention_mask,
        max_new_tokens=5,
        do_sample=False,
        pad_token_id=0,
    )
    for source in (trained, out):
        status, output, _ = cli(
            "generate", source, prompt, "--greedy", "--tokens", 5, "--json", "--device", "cpu"
        )
        assert status == 0
        [sample] = json.loads(output)["samples"]
        assert prompt + sample == tokenizer.decode(expected[0])


def test_models_and_tokenizers_that_cannot_be_exported(cli, tmp_path, data, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(data))
    compact = train(tmp_path, TEXT, *GPT2, "--tokenizer", "cl100k_base")
    refused(cli("export", compact, "--to", compact), "already holds a model")
    refused(cli("export", compact, "--to", tmp_path / "out"), "cl100k_base", "--no-tokenizer")
    assert not (tmp_path / "out").exists()
    assert cli("export", compact, "--to", tmp_path / "out", "--no-tokenizer")[0] == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.safetensors",
    }


def test_generation_stops_at_the_end_of_the_document(hugging_face, copied, cli):
    """If the end of the text is always the most probable token, nothing is generated."""
    _, model, tokenizer = hugging_face
    ending = transformers.GPT2LMHeadModel(model.config).eval()
    ending.load_state_dict(model.state_dict())
    with torch.no_grad():
        ending.transformer.ln_f.weight.zero_()
        ending.transformer.ln_f.bias.copy_(ending.transformer.wte.weight[tokenizer.eos_token_id])
        ending.transformer.ln_f.bias.mul_(9)
    ending.save_pretrained(copied)
    status, output, _ = cli("generate", copied, "Bottle", "--greedy", "--json", "--device", "cpu")
    assert status == 0
    assert json.loads(output)["samples"] == [""]


def test_plot_leaves_a_hugging_face_directory_as_it_is(copied, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(copied.rglob("*"))
    every = [word for kind in ("heads", "positions") for word in ("--only", kind)]
    status, output, error = cli("plot", copied, "Bottle 12 of 144", *every, "--device", "cpu")
    assert (status, error) == (0, "")
    assert output.split() == ["pictures/heads.png", "pictures/positions.png"]
    for picture in output.split():
        with Image.open(picture) as image:
            assert min(image.size) > 100
    assert sorted(copied.rglob("*")) == before
    refused(cli("plot", copied, "--only", "loss"), "no metrics", "heedful train")


def test_a_tokenizer_of_another_model_is_refused(copied, tmp_path, cli):
    BPETokenizer.train([TEXT * 2], 340).save(copied)
    for command in (["generate", copied, "x"], ["export", copied, "--to", tmp_path / "out"]):
        refused(cli(*command), "340 tokens", "at most 301", "tokenizer of another model")


def test_wrong_models_are_one_clear_line(copied, hugging_face, cli, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(cli("generate", tmp_path / "empty", "x"), "no file", "config.json")
    refused(cli("plot", copied, "Bottle " * 80), "tokens", "context of 64")
    torch.save(hugging_face[1].state_dict(), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    refused(cli("generate", copied, "x"), "--allow-pickle")
    options = ("--allow-pickle", "--tokens", 2, "--device", "cpu")
    assert cli("generate", copied, "Bottle", *options)[0] == 0
    config = json.loads((copied / "config.json").read_text())
    config |= {"model_type": "bloom", "architectures": ["BloomForCausalLM"]}
    (copied / "config.json").write_text(json.dumps(config))
    refused(cli("generate", copied, "x"), "BloomForCausalLM", "`heedful heads`")
