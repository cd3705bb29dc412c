"""GPT-2 checkpoints saved by transformers, with random parameters: heedful computes the same."""

import json
import shutil

import pytest
import torch
from redrawn_parameters import redrawn
from safetensors.torch import load_file, save_file

from heedful.errors import RunError
from heedful.generate import Sampling, generate
from heedful.models import GPT, GPTConfig, load_model, loss, parameters_of, write_model_config
from heedful.models.huggingface.parameter_names import GPT2

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CONTEXT, VOCABULARY = 80, 101


def gpt2(kind=None, deviation=0.1, **changes):
    sizes = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 24, "n_layer": 3}
    config = transformers.GPT2Config(
        **{**sizes, "n_head": 4, "bos_token_id": None, "eos_token_id": None, **changes}
    )
    return redrawn((kind or transformers.GPT2LMHeadModel)(config), deviation)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny GPT-2 and the directory that transformers saved it to."""
    directory = tmp_path_factory.mktemp("checkpoints") / "gpt2"
    torch.manual_seed(7)
    theirs = gpt2()
    theirs.save_pretrained(directory)
    return theirs, directory


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """As `saved`, with weights so large that greedy decoding chooses many different tokens."""
    directory = tmp_path_factory.mktemp("checkpoints") / "lively"
    torch.manual_seed(7)
    theirs = gpt2(deviation=0.5, tie_word_embeddings=False)
    with torch.no_grad():
        theirs.transformer.wpe.weight.mul_(4)
    theirs.save_pretrained(directory)
    return theirs, directory


@pytest.fixture
def edit(saved, tmp_path):
    """A copy of the directory whose tensors or config.json a test may change."""
    directory = tmp_path / "spoiled"
    shutil.copytree(saved[1], directory)

    def call(tensors=None, **config):
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
        weights = directory / "model.safetensors"
        save_file({**load_file(weights), **(tensors or {})}, weights)
        return directory

    return call


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def same_everywhere(ours, theirs, ids, real=None, **their_arguments):
    """Compare logits and all hidden states at the real tokens."""
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    with torch.inference_mode():
        mine = ours(ids, keep=real)
        expected = theirs(ids, output_hidden_states=True, **their_arguments)
    assert len(mine.hidden_states) == len(expected.hidden_states)
    for a, b in zip(mine.hidden_states, expected.hidden_states, strict=True):
        close(a[real], b[real])
    if "logits" in expected:
        close(mine.logits[real], expected.logits[real])


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layer": 6, "n_head": 25, "n_embd": 50},  # as the largest, which has 25 heads
        {"n_inner": 31},
        {"activation_function": "relu"},
        {"activation_function": "gelu"},
        {"layer_norm_epsilon": 1e-2},
        {"tie_word_embeddings": False},
        {"kind": transformers.GPT2Model},  # without a head
    ],
    ids=str,
)
def test_settings_that_change_the_numbers(changes, tmp_path):
    theirs = gpt2(**changes)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    same_everywhere(ours, theirs, torch.randint(VOCABULARY, (2, 13)))
    is_tied = ours.head.weight is ours.tokens.weight
    assert is_tied == changes.get("tie_word_embeddings", True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(side, saved):
    theirs, directory = saved
    ids = torch.randint(VOCABULARY, (3, 11))
    lengths = torch.tensor([11, 4, 7])[:, None]
    columns = torch.arange(11)[None]
    real = columns >= 11 - lengths if side == "left" else columns < lengths
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    arguments = {"attention_mask": real.long(), "position_ids": positions}
    same_everywhere(load_model(directory), theirs, ids, real, **arguments)


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
def test_greedy_tokens_are_those_of_transformers(cached, varied):
    theirs, directory = varied
    ids = torch.randint(VOCABULARY, (1, 9))
    expected = theirs.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0)[0, 9:]
    assert greedy(load_model(directory), ids[0], 40, cached) == expected.tolist()
    assert len(set(expected.tolist())) > 9  # the numbers decide, not one token that always wins


def greedy(model, ids, tokens, cache=True):
    sampling = Sampling(temperature=0.0)
    return [
        int(t) for t in generate(model, ids.tolist(), tokens=tokens, sampling=sampling, cache=cache)
    ]


@torch.inference_mode()
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_prompts_of_unequal_length_continue_as_each_alone(positions, cached, varied):
    """As one left-padded batch, with or without a cache; compared with transformers for GPT-2."""
    theirs, directory = varied
    model = load_model(directory)
    if positions != "learned":
        config = GPTConfig(
            vocabulary=VOCABULARY, context_length=CONTEXT, width=24, layers=3, heads=4,
            positions=positions,
        )  # fmt: skip
        model = redrawn(GPT(config), 0.3)
    start = 9 - torch.tensor([9, 3, 6])[:, None]
    prompts = ids = torch.randint(VOCABULARY, (3, 9))
    keep = prompt_keep = torch.arange(9)[None] >= start
    cache = model.new_cache(3) if cached else None
    for _ in range(20):
        new_ids = ids[:, cache.length :] if cached else ids
        next_ids = model(new_ids, keep=keep, cache=cache).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, next_ids], 1)
        keep = torch.cat([keep, keep.new_ones(3, 1)], 1)
    for row, first, continued in zip(prompts, start[:, 0].tolist(), ids[:, 9:], strict=True):
        assert greedy(model, row[first:], 20) == continued.tolist()
    if positions == "learned":
        expected = theirs.generate(
            prompts, attention_mask=prompt_keep.long(), max_new_tokens=20, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        assert ids.tolist() == expected.tolist()


def test_padding_between_takes_no_position(saved):
    """Right-padded prompts continued with a cache: `keep` is False in the middle."""
    model = load_model(saved[1])
    ids = torch.randint(VOCABULARY, (2, 8))
    keep = torch.tensor([[True] * 8, [True] * 3 + [False] * 3 + [True] * 2])
    cache = model.new_cache(2)
    with torch.inference_mode():
        model(ids[:, :6], keep=keep[:, :6], cache=cache)
        logits = model(ids[:, 6:], keep=keep, cache=cache).logits
        close(logits[:1], model(ids[:1]).logits[:, 6:])
        close(logits[1:], model(ids[1:, keep[1]]).logits[:, 3:])


def test_one_training_step_gives_the_same_loss_and_gradients(tmp_path):
    theirs = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).train()
    ids = torch.randint(VOCABULARY, (3, 17))
    expected = theirs.train()(ids, labels=ids).loss
    mine = loss(ours(ids[:, :-1]).logits, ids[:, 1:])
    torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-6)
    expected.backward()
    mine.backward()
    gradient = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    compared = 0
    for name, parameter in ours.named_parameters():
        for their_name, mine in GPT2.entry(name).to_checkpoint(parameter.grad).items():
            close(mine, gradient[their_name])
            compared += 1
    assert compared == len(gradient)


def test_mixed_dtypes_load_as_the_wider_one(edit):
    name = "transformer.wpe.weight"
    directory = edit({name: torch.zeros(CONTEXT, 24, dtype=torch.float16)})
    assert {parameter.dtype for parameter in load_model(directory).parameters()} == {torch.float32}
    directory = edit({name: torch.zeros(CONTEXT, 24, dtype=torch.int8)})
    for dtype in (None, torch.float32):
        with pytest.raises(RunError, match="quantised"):
            load_model(directory, dtype=dtype)


def test_tensors_that_are_not_parameters(saved, edit):
    """A copy of the token table, which must be equal, and the mask buffers of old checkpoints."""
    table = saved[0].transformer.wte.weight.detach()
    masks = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, CONTEXT, CONTEXT).tril(),
        "transformer.h.2.attn.masked_bias": torch.tensor(-1e4),
    }
    directory = edit({"lm_head.weight": table.clone(), **masks})
    same_everywhere(load_model(directory), saved[0], torch.randint(VOCABULARY, (2, 5)))
    with pytest.raises(RunError, match=r"lm_head.weight and transformer.wte.weight .* differ"):
        load_model(edit({"lm_head.weight": table + 1}))


@pytest.fixture
def sharded(saved, tmp_path):
    saved[0].save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    return tmp_path / "sharded"


@pytest.mark.parametrize("end", [None, -100], ids=["missing", "truncated"])
def test_an_error_names_a_damaged_shard(end, sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    content = shard.read_bytes()[:end]
    shard.unlink()
    if end:
        shard.write_bytes(content)
    with pytest.raises(RunError, match=shard.name):
        load_model(sharded)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": {"a": "../model.safetensors"}}'])
def test_an_invalid_index_is_refused(index, sharded):
    (sharded / "model.safetensors.index.json").write_text(index)
    with pytest.raises(RunError, match="no weight_map"):
        load_model(sharded)


def test_loaded_weights_are_copies_of_the_file(edit):
    directory = edit()
    model = load_model(directory)
    logits = model(torch.tensor([[1, 2]])).logits
    path = directory / "model.safetensors"
    with path.open("r+b") as file:  # in place, as a careless program would
        file.seek(1000)
        file.write(b"\x7f" * (path.stat().st_size - 1000))
    assert torch.equal(model(torch.tensor([[1, 2]])).logits, logits)


def test_loading_skips_random_initialisation(saved, tmp_path):
    model = GPT(GPTConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=2))
    write_model_config(tmp_path, model.config)
    save_file(parameters_of(model), tmp_path / "model.safetensors")
    state = torch.get_rng_state()
    load_model(saved[1])
    reopened = load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert reopened.head.weight is reopened.tokens.weight
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(reopened(ids).logits, model(ids).logits)


def test_one_error_lists_all_tensors_that_do_not_fit(edit):
    directory = edit({"score.weight": torch.zeros(2, 24)}, n_positions=70, n_layer=4)
    with pytest.raises(RunError) as caught:
        load_model(directory)
    for words in (
        "missing transformer.h.3.attn.c_attn.weight",
        "9 more of this kind",
        "unexpected score.weight",
        "transformer.wpe.weight is (80, 24), not (70, 24)",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["GPT2ForSequenceClassification"]}, "heedful.record"),
        ({"model_type": "bloom", "architectures": None}, "bloom"),
        ({"architectures": {"a": 1}}, "architecture {'a': 1}"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"activation_function": "silu"}, "silu"),
        ({"n_head": 5}, "5 heads for a width of 24"),
        ({"vocab_size": None}, "vocabulary = None"),
    ],
    ids=str,
)
def test_errors_name_unsupported_architectures(config, words, edit):
    with pytest.raises(RunError, match=words):
        load_model(edit(**config))


class Harmful:
    def __reduce__(self):
        return (print, ("this code ran",))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_pickles_are_read_only_if_allowed(is_zip, shards, saved, tmp_path):
    state = {name: tensor.clone() for name, tensor in saved[0].state_dict().items()}
    shutil.copy(saved[1] / "config.json", tmp_path)
    shard_of = {}
    for i in range(shards):
        file = f"pytorch_model-{i}.bin" if shards > 1 else "pytorch_model.bin"
        part = {name: state[name] for name in list(state)[i::shards]}
        torch.save(part, tmp_path / file, _use_new_zipfile_serialization=is_zip)
        shard_of |= dict.fromkeys(part, file)
    if shards > 1:
        index = json.dumps({"weight_map": shard_of})
        (tmp_path / "pytorch_model.bin.index.json").write_text(index)
    with pytest.raises(RunError, match="--allow-pickle"):
        load_model(tmp_path)
    ours = load_model(tmp_path, allow_pickle=True)
    same_everywhere(ours, saved[0], torch.randint(VOCABULARY, (2, 5)))


@pytest.mark.parametrize(
    "content", [{"a": Harmful()}, [1, 2], {"a": 1}], ids=["code", "list", "number"]
)
def test_only_tensors_are_read_from_pickles(content, saved, tmp_path, capsys):
    shutil.copy(saved[1] / "config.json", tmp_path)
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(RunError, match=r"pytorch_model.bin") as error:
        load_model(tmp_path, allow_pickle=True)
    assert "weights_only" not in str(error.value)  # torch's advice, which would run the code
    assert "this code ran" not in capsys.readouterr().out


def test_a_directory_without_a_checkpoint(saved, tmp_path):
    with pytest.raises(RunError, match=r"no file .*config.json"):
        load_model(tmp_path)
    shutil.copy(saved[1] / "config.json", tmp_path)
    (tmp_path / "model.h5").write_text("")
    with pytest.raises(RunError, match=r"no weights in .*only config.json, model.h5"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="damaged or truncated"):
        load_model(tmp_path)
