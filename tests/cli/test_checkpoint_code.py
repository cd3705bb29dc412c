"""Checkpoints that contain Python files: their code never runs, whatever the user answers."""

import ast
import io
import json
from pathlib import Path

import pytest
import torch
from command_checks import refused
from safetensors.torch import save_file

import heedful
from heedful.errors import HeedfulError

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SOURCE = Path(heedful.__file__).parent
CLASSES = {
    "AutoConfig": "strange.StrangeConfig",
    "AutoModel": "strange.StrangeModel",
    "AutoModelForCausalLM": "strange.StrangeModel",
    "AutoModelForSeq2SeqLM": "strange.StrangeModel",
    "AutoTokenizer": [None, "strange.StrangeTokenizer"],
    "AutoImageProcessor": ["strange.StrangeProcessor", "strange.StrangeProcessor"],
}


def classes(*names):
    return {"auto_map": {name: CLASSES[name] for name in names}}


OLMO = {"model_type": "olmo", "architectures": ["StrangeModel"], "is_encoder_decoder": True}
# The files of a checkpoint by the part that needs its own code
KINDS = {
    "config": {"config.json": {"model_type": "strange"} | classes(*CLASSES)},
    "model": {"config.json": OLMO | classes("AutoModelForSeq2SeqLM")},
    "tokenizer": {
        "config.json": {"model_type": "vit", "architectures": ["ViTModel"]},
        "tokenizer_config.json": {"tokenizer_class": "StrangeTokenizer"} | classes("AutoTokenizer"),
    },
    "image processor": {
        "config.json": OLMO,
        "preprocessor_config.json": {"image_processor_type": "StrangeProcessor"}
        | classes("AutoImageProcessor"),
    },
}


@pytest.fixture
def strange(request, tmp_path, monkeypatch):
    """A checkpoint whose code would write the file `ran`; standard input answers yes."""
    directory, ran = tmp_path / "strange", tmp_path / "ran"
    words = tokenizers.models.WordLevel({"<unk>": 0, "the": 1, "cat": 2}, unk_token="<unk>")
    library = tokenizers.Tokenizer(words)
    transformers.PreTrainedTokenizerFast(tokenizer_object=library).save_pretrained(directory)
    (directory / "strange.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    for name, content in KINDS[getattr(request, "param", "config")].items():
        (directory / name).write_text(json.dumps(content))
    save_file({"weight": torch.zeros(2, 2)}, directory / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    yield directory
    assert not ran.exists()


@pytest.mark.parametrize("strange", KINDS, indirect=True)
def test_own_code_is_refused_in_one_line(strange):
    with pytest.raises(HeedfulError, match="comes with Python code, which heedful does not run"):
        heedful.open(strange, device="cpu")
    with pytest.raises(HeedfulError, match="holds a model of the architecture"):
        heedful.load_model(strange)


def test_a_model_that_transformers_has_opens_without_its_own_code(strange):
    """Checkpoints keep their Python files after the library has added their architecture."""
    config = transformers.OlmoConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.OlmoForCausalLM(config).save_pretrained(strange)
    about = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps(about | classes(*CLASSES)))
    opened = heedful.open(strange, device="cpu")
    assert type(opened.model) is transformers.OlmoModel
    assert len(opened.record("the cat")) == 1


CALLS = [
    "record DIR the --out DIR/out",
    "heads DIR the",
    "plot DIR the --out DIR/out",
    "look DIR the --no-browser",
    "look DIR the --generate --no-browser",
    "explain the --model DIR",
    "embed DIR",
    "fill DIR [MASK]",
    "translate DIR the",
    "generate DIR the",
    "tokenize the --tokenizer DIR",
    "export DIR --to DIR/out",
]


def test_each_command_refuses_own_code_in_one_line(strange, cli, tmp_path):
    reasons = ("comes with Python code", "a model of the architecture strange", "WordLevel")
    for call in CALLS:
        result = cli(*call.replace("DIR", str(strange)).split())
        refused(result)
        assert any(reason in result[2] for reason in reasons), call
    status, output, error = cli("describe", strange)  # reads only its files
    assert (status, error) == (0, "")
    assert "strange" in output


def test_transformers_opens_files_in_two_places():
    """Both pass `trust_remote_code=False`."""
    opening = [
        path.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("from_pretrained", "pipeline")
    ]
    assert sorted(opening) == ["loading.py", "transformers_models.py"]
