"""Checkpoints of Llama, Mistral and Qwen saved by transformers: heedful's GPT computes the same."""

import json

import pytest
import torch
from redrawn_parameters import redrawn
from safetensors.torch import load_file, save_file

from heedful.errors import ArgumentError, RunError
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig, export_model, load_model
from heedful.models.huggingface.checkpoints import ARCHITECTURES, unsupported_config
from heedful.rotary_scaling import RotaryScaling

transformers = pytest.importorskip("transformers")

VOCABULARY, CONTEXT = 53, 90
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 44,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 5.0, "original_max_position_embeddings": 20}  # fmt: skip
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}
CASES = [
    ("Llama", {}),
    ("Llama", {"num_key_value_heads": 6, "rms_norm_eps": 1e-2}),
    ("Llama", {"rope_parameters": LLAMA3}),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0}}),
    ("Llama", {"tie_word_embeddings": True, "rope_theta": 700.0}),  # as SmolLM2
    ("Llama", {"attention_bias": True}),
    ("Llama", {"mlp_bias": True, "head_dim": 4}),
    ("Llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "relu"}),
    ("Mistral", {"sliding_window": 7}),
    ("Mistral", {"sliding_window": None, "head_dim": 10}),
    ("Qwen2", {}),
    ("Qwen2", {**WINDOW, "hidden_act": "gelu"}),
    ("Qwen2", {**WINDOW, "max_window_layers": 3}),  # no layer has a window
    ("Qwen3", {"head_dim": 8}),
    ("Qwen3", {**WINDOW, "attention_bias": True, "head_dim": 12, "tie_word_embeddings": True}),
]


def random_model(kind, deviation=0.15, bare=False, **changes):
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **changes})
    name = f"{kind}Model" if bare else f"{kind}ForCausalLM"
    return redrawn(getattr(transformers, name)(config), deviation)


def same_everywhere(ours, theirs, tokens=60):
    """Compare logits and hidden states, relative to the largest entry, also with padding."""
    for lengths in ([tokens], [tokens, 3, tokens // 2]):
        ids = torch.randint(VOCABULARY, (len(lengths), tokens))
        keep = torch.arange(tokens)[None] >= tokens - torch.tensor(lengths)[:, None]
        positions = (keep.cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            mine = ours(ids, keep=keep)
            expected = theirs(
                ids, attention_mask=keep.long(), position_ids=positions, output_hidden_states=True
            )
        pairs = list(zip(mine.hidden_states, expected.hidden_states, strict=True))
        pairs += [(mine.logits, expected.logits)] if "logits" in expected else []
        for a, b in pairs:
            assert (a[keep] - b[keep]).abs().max() <= 1e-5 * b[keep].abs().max()


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=str)
def test_logits_and_hidden_states_are_those_of_transformers(kind, changes, tmp_path):
    theirs = random_model(kind, **changes)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert type(ours) is GPT
    same_everywhere(ours, theirs)


def rewrite_as_version_4(directory, scaling=None, **left_out):
    """Rewrite config.json as transformers 4: rotary settings at the top level, no defaults."""
    path = directory / "config.json"
    content = json.loads(path.read_text())
    rotary = content.pop("rope_parameters")
    content |= {"rope_theta": rotary.pop("rope_theta"), "rope_scaling": scaling or rotary}
    if rotary == {"rope_type": "default"}:
        content["rope_scaling"] = None
    content["torch_dtype"] = content.pop("dtype")
    for name in ("head_dim", "layer_types", "attention_dropout"):
        content.pop(name, None)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("kind", "changes", "scaling"),
    [
        ("Llama", {"rope_theta": 900.0}, None),
        ("Llama", {"rope_parameters": LLAMA3}, None),
        (
            "Llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 9e3, "factor": 2.0}},
            {"type": "linear", "factor": 2.0},  # the name of the type before 4.43
        ),
        ("Mistral", {"sliding_window": 5}, None),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, None),
    ],
    ids=str,
)
def test_configurations_of_transformers_4(kind, changes, scaling, tmp_path):
    theirs = random_model(kind, **changes)
    theirs.save_pretrained(tmp_path)
    rewrite_as_version_4(tmp_path, scaling)
    assert "rope_parameters" not in json.loads((tmp_path / "config.json").read_text())
    same_everywhere(load_model(tmp_path), theirs)


def test_a_mistral_without_a_window_in_its_file_has_the_familys():
    description = {"model_type": "mistral", **SHAPE, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    config = ARCHITECTURES["mistral"].format.read_config(description, {})
    assert config.window == transformers.MistralConfig().sliding_window


def test_checkpoints_without_a_head_and_with_stored_frequencies(tmp_path):
    theirs = random_model("Llama", bare=True)
    theirs.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    save_file(weights, tmp_path / "model.safetensors")
    ours = load_model(tmp_path)
    same_everywhere(ours, theirs)
    assert ours.head.weight is ours.tokens.weight


MODERN = {"vocabulary": VOCABULARY, "context_length": CONTEXT, "width": 24, "heads": 3}
SCALED = RotaryScaling(kind="llama3", factor=8.0, original_context=16, high_frequency=3.0)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Qwen3", {}),
        ("Qwen3", {"activation": "swiglu", "window": 9, "head_width": 10, "kv_heads": 1}),
        ("Qwen3", {"bias": True, "attention_bias": True, "feed_bias": False}),
        ("Llama", {"qk_norm": False, "bias": True, "attention_bias": True, "norm_epsilon": 0.1,
                   "dropout": 0.3, "tied": False, "rotary_base": 500.0}),
        ("Llama", {"qk_norm": False, "activation": "swiglu", "rotary_scaling": SCALED}),
        ("Llama", {"qk_norm": False, "activation": "geglu", "feed_bias": True, "tied": False,
                   "rotary_scaling": RotaryScaling(kind="linear", factor=2.0)}),
        ("Mistral", {"qk_norm": False, "activation": "reglu", "window": 4, "head_width": 6}),
        ("Qwen2", {"qk_norm": False, "attention_bias": True, "window": 6}),
        ("Qwen2", {"qk_norm": False, "attention_bias": True, "rotary_scaling": SCALED}),
    ],
    ids=str,
)  # fmt: skip
def test_exports_load_in_transformers_and_here(kind, changes, tmp_path):
    ours = redrawn(GPT(GPTConfig(**MODERN | {"layers": 2} | changes)))
    export_model(ours, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    same_everywhere(ours, theirs)
    reloaded = load_model(tmp_path)
    same_everywhere(reloaded, theirs)
    ids = torch.randint(VOCABULARY, (2, 40))
    assert torch.equal(reloaded(ids).logits, ours(ids).logits)
    for name, parameter in ours.named_parameters():
        assert torch.equal(reloaded.get_parameter(name), parameter)
    defaults = {"hidden": 96, "kv_heads": ours.config.kv_heads or 3}
    assert reloaded.config.to_dict() | defaults == ours.config.to_dict() | defaults


def test_gates_that_differ_from_their_up_projections_stay_separate(tmp_path):
    """A squared ReLU is exported as a gate equal to the up-projection; training may change that."""
    export_model(redrawn(GPT(GPTConfig(**MODERN, layers=2))), tmp_path)
    assert load_model(tmp_path).config.activation == "relu2"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        theirs.model.layers[1].mlp.up_proj.weight[3, 5] += 1
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert ours.config.activation == "reglu"
    same_everywhere(ours, theirs)


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("mistral", {"qk_norm": False, "window": 3}, []),
        ("mistral", {"qk_norm": False, "bias": True}, ["bias = True"]),
        ("llama", {"qk_norm": False, "window": 3}, ["window = 3"]),
        ("qwen3", {"feed_bias": True}, ["feed_bias = True"]),
        ("qwen2", {"qk_norm": False}, ["attention_bias = False"]),
        ("llama", {"bias": True, "activation": "gelu", "norm": "layer", "norm_order": "post",
                   "logit_bias": True, "positions": "sinusoidal"},
         ["positions = 'sinusoidal'", "norm = 'layer'", "norm_order = 'post'", "logit_bias = True",
          "qk_norm = True", "attention_bias = False", "activation = 'gelu'"]),
        ("gpt2", {"kv_heads": 1},
         ["positions = 'rotary'", "norm = 'rms'", "qk_norm = True", "bias = False",
          "attention_bias = False", "activation = 'relu2'", "kv_heads = 1"]),
        ("gpt2", {"window": 3, "positions": "learned", "norm": "layer", "qk_norm": False,
                  "bias": True, "attention_bias": True, "activation": "gelu", "head_width": 10,
                  "feed_bias": False}, ["window = 3", "head_width = 10", "feed_bias = False"]),
    ],
)  # fmt: skip
def test_mismatches_list_every_unsupported_setting(kind, changes, expected):
    assert ARCHITECTURES[kind].format.mismatches(GPTConfig(**MODERN | changes), kind) == expected


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type = 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"hidden_act": "gelu_new"}, "hidden_act = 'gelu_new'"),
        (
            {"model_type": "qwen2", **WINDOW, "num_hidden_layers": 4, "max_window_layers": 3},
            "a window in only some of its layers",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rotary positions that differ between layers",
        ),
    ],
    ids=str,
)
def test_errors_name_unsupported_settings(description, words, tmp_path):
    config = {"model_type": "llama", "architectures": None} | description
    assert unsupported_config(config) == f"{config['model_type']} with {words}"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match=f"architecture .* with {words}"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"rope_scaling": {"rope_type": "linear"}}, "no 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "no 'low_freq_factor'"),
        ({"rope_scaling": LLAMA3 | {"factor": 0.5}}, "factor = 0.5; expected at least 1"),
        ({"num_hidden_layers": "3"}, "does not describe a model"),
        ({"rope_scaling": [1]}, "does not describe a model"),
        ({"head_dim": 5}, "even width per head"),
    ],
    ids=str,
)
def test_an_invalid_configuration_is_a_one_line_error(description, words, tmp_path):
    random_model("Llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | description))
    with pytest.raises(RunError, match=words):
        load_model(tmp_path)


def test_a_model_that_transformers_does_not_have_is_refused(tmp_path):
    model = Seq2Seq(Seq2SeqConfig(vocabulary=9, width=8, layers=1, heads=2))
    with pytest.raises(ArgumentError, match="a Seq2Seq"):
        export_model(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
