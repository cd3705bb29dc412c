"""Checkpoints that transformers saved, every parameter re-drawn: the same numbers in ours."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from redrawn import redrawn
from safetensors.torch import load_file, save_file

import heedful
from heedful.cli.main import run
from heedful.errors import RunError
from heedful.generate import Sampling, generate
from heedful.models import GPT, GPTConfig, load_model, loss, parameters_of, write_description
from heedful.models.huggingface.parameter_names import GPT2, Names, same

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

# layers and heads of the four sizes, at widths that are quick to compute
SIZES = {"small": (12, 12), "medium": (24, 16), "large": (36, 20), "xl": (48, 25)}
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
def lively(tmp_path_factory):
    """As `saved`, with numbers so large that many different tokens win."""
    directory = tmp_path_factory.mktemp("checkpoints") / "lively"
    torch.manual_seed(7)
    theirs = gpt2(deviation=0.5, tie_word_embeddings=False)
    with torch.no_grad():
        theirs.transformer.wpe.weight.mul_(4)
    theirs.save_pretrained(directory)
    return theirs, directory


@pytest.fixture
def spoiled(saved, tmp_path):
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
    """Logits and all hidden states, at the real tokens."""
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    with torch.inference_mode():
        mine = ours(ids, keep=real)
        his = theirs(ids, output_hidden_states=True, **their_arguments)
    assert len(mine.hidden_states) == len(his.hidden_states)
    for a, b in zip(mine.hidden_states, his.hidden_states, strict=True):
        close(a[real], b[real])
    if "logits" in his:
        close(mine.logits[real], his.logits[real])


@pytest.mark.parametrize("size", SIZES)
def test_the_four_sizes(size, tmp_path):
    layers, heads = SIZES[size]
    theirs = gpt2(n_layer=layers, n_head=heads, n_embd=2 * heads)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert (ours.config.layers, ours.config.heads) == (layers, heads)
    same_everywhere(ours, theirs, torch.randint(VOCABULARY, (2, 13)))


@pytest.mark.parametrize(
    "changes",
    [
        {"n_inner": 31},
        {"activation_function": "relu"},
        {"activation_function": "gelu"},
        {"layer_norm_epsilon": 1e-2},
        {"tie_word_embeddings": False},
    ],
    ids=str,
)
def test_settings_that_change_the_numbers(changes, tmp_path):
    theirs = gpt2(**changes)
    theirs.save_pretrained(tmp_path)
    same_everywhere(load_model(tmp_path), theirs, torch.randint(VOCABULARY, (2, 13)))


def test_the_model_without_a_head(tmp_path):
    theirs = gpt2(transformers.GPT2Model)
    theirs.save_pretrained(tmp_path)
    assert "wte.weight" in load_file(tmp_path / "model.safetensors")
    ours = load_model(tmp_path)
    same_everywhere(ours, theirs, torch.randint(VOCABULARY, (2, 13)))
    assert ours.head.weight is ours.tokens.weight


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(side, saved):
    theirs, directory = saved
    ids = torch.randint(VOCABULARY, (3, 11))
    lengths = torch.tensor([11, 4, 7])[:, None]
    place = torch.arange(11)[None]
    real = place >= 11 - lengths if side == "left" else place < lengths
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    same_everywhere(
        load_model(directory),
        theirs,
        ids,
        real,
        attention_mask=real.long(),
        position_ids=positions,
    )


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_greedy_tokens_are_those_of_transformers(cache, lively):
    theirs, directory = lively
    ids = torch.randint(VOCABULARY, (1, 9))
    expected = theirs.generate(ids, max_new_tokens=64, do_sample=False, pad_token_id=0)[0, 9:]
    greedy = generate(
        load_model(directory),
        ids[0].tolist(),
        tokens=64,
        sampling=Sampling(temperature=0.0),
        cache=cache,
    )
    assert torch.cat(list(greedy)).tolist() == expected.tolist()
    assert len(set(expected.tolist())) > 9  # the numbers decide, not one token that always wins


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_prompts_of_unequal_length_continue_as_each_alone(positions, cached, lively):
    """Together, left-padded, with the cache or without; learned ones also as transformers does."""
    theirs, directory = lively
    config = GPTConfig(vocabulary=VOCABULARY, context_length=CONTEXT, width=24, layers=3, heads=4)
    model = load_model(directory)
    if positions != "learned":
        changed = {**config.to_dict(), "positions": positions}
        model = redrawn(GPT(GPTConfig(**changed)), 0.3)
    lengths = [9, 3, 6]
    ids = torch.zeros(3, 9, dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[9 - length :] = torch.randint(VOCABULARY, (length,))
    keep = torch.arange(9)[None] >= 9 - torch.tensor(lengths)[:, None]
    together = greedily(model, ids, keep, 40, cached)
    for row, length, continued in zip(ids, lengths, together, strict=True):
        alone = generate(
            model, row[9 - length :].tolist(), tokens=40, sampling=Sampling(temperature=0.0)
        )
        assert torch.cat(list(alone)).tolist() == continued.tolist()
    if positions == "learned":
        expected = theirs.generate(
            ids,
            attention_mask=keep.long(),
            max_new_tokens=40,
            do_sample=False,
            pad_token_id=0,
        )
        assert together.tolist() == expected[:, 9:].tolist()


@torch.inference_mode()
def greedily(model, ids, keep, tokens, cached):
    cache = model.new_cache(len(ids)) if cached else None
    unread, chosen = ids, []
    for _ in range(tokens):
        chosen.append(model(unread, keep=keep, cache=cache).logits[:, -1:].argmax(-1))
        ids = torch.cat([ids, chosen[-1]], 1)
        keep = torch.cat([keep, keep.new_ones(len(ids), 1)], 1)
        unread = chosen[-1] if cached else ids
    return torch.cat(chosen, 1)


def test_padding_between_takes_no_position(saved):
    """Prompts padded on the right, continued through the cache: keep has a hole."""
    model = load_model(saved[1])
    ids = torch.randint(VOCABULARY, (2, 8))
    keep = torch.tensor([[True] * 8, [True] * 3 + [False] * 3 + [True] * 2])
    cache = model.new_cache(2)
    with torch.inference_mode():
        model(ids[:, :6], keep=keep[:, :6], cache=cache)
        after = model(ids[:, 6:], keep=keep, cache=cache).logits
        close(after[:1], model(ids[:1]).logits[:, 6:])
        close(after[1:], model(ids[1:, keep[1]]).logits[:, 3:])


def test_one_training_step_gives_the_same_loss_and_gradients(tmp_path):
    theirs = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).train()
    ids = torch.randint(VOCABULARY, (3, 17))
    his = theirs.train()(ids, labels=ids).loss
    mine = loss(ours(ids[:, :-1]).logits, ids[:, 1:])
    torch.testing.assert_close(mine, his, rtol=1e-6, atol=1e-6)
    his.backward()
    mine.backward()
    gradient = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    compared = 0
    for name, parameter in ours.named_parameters():
        for their_name, mine in GPT2.of(name).theirs(parameter.grad).items():
            close(mine, gradient[their_name])
            compared += 1
    assert compared == len(gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_unless_another_is_asked_for(dtype, tmp_path):
    theirs = gpt2().to(dtype)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    ids = torch.randint(VOCABULARY, (2, 5))
    assert ours(ids).logits.dtype == dtype
    same_everywhere(load_model(tmp_path, dtype=torch.float32), theirs.float(), ids)


def test_a_checkpoint_of_mixed_types_gets_the_wider(spoiled):
    directory = spoiled({"transformer.wpe.weight": torch.zeros(CONTEXT, 24, dtype=torch.float16)})
    assert {parameter.dtype for parameter in load_model(directory).parameters()} == {torch.float32}


@pytest.mark.parametrize("entry", ["crc32", "run"])
def test_entries_that_look_like_a_checksum_of_ours_are_not_compared(entry, tmp_path):
    gpt2(vocab_size=256).save_pretrained(tmp_path)
    wanted = load_model(tmp_path)
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator(["a text"], vocab_size=256, show_progress=False)
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    for name in ("config.json", "tokenizer_config.json"):
        about = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({**about, entry: "20240131"}, indent=2) + "\n")
    opened = heedful.open(tmp_path, device="cpu")
    for model in (load_model(tmp_path), opened.model):
        for name, parameter in parameters_of(wanted).items():
            assert torch.equal(parameter, parameters_of(model)[name])
    assert run(["heads", str(tmp_path), "a text", "--device", "cpu"]) == 0


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_quantised_checkpoint_is_refused(dtype, spoiled):
    directory = spoiled({"transformer.wpe.weight": torch.zeros(CONTEXT, 24, dtype=torch.int8)})
    with pytest.raises(RunError, match="quantised"):
        load_model(directory, dtype=dtype)


@pytest.fixture
def sharded(saved, tmp_path):
    saved[0].save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    return tmp_path / "sharded"


def test_shards(saved, sharded):
    whole, parts = load_model(saved[1]), load_model(sharded)
    for name, parameter in parameters_of(whole).items():
        assert torch.equal(parameter, parameters_of(parts)[name])


@pytest.mark.parametrize("left", [None, -100], ids=["missing", "truncated"])
def test_a_shard_that_is_not_whole_is_named(left, sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    content = shard.read_bytes()[:left]
    shard.unlink()
    if left:
        shard.write_bytes(content)
    with pytest.raises(RunError, match=shard.name):
        load_model(sharded)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": {"a": "../model.safetensors"}}'])
def test_an_index_that_is_none_is_refused(index, sharded):
    (sharded / "model.safetensors.index.json").write_text(index)
    with pytest.raises(RunError, match="no index of shards"):
        load_model(sharded)


def test_the_weights_have_memory_of_their_own(spoiled):
    directory = spoiled()
    model = load_model(directory)
    before = model(torch.tensor([[1, 2]])).logits
    path = directory / "model.safetensors"
    with path.open("r+b") as file:  # in place, as no program that is careful would
        file.seek(1000)
        file.write(b"\x7f" * (path.stat().st_size - 1000))
    assert torch.equal(model(torch.tensor([[1, 2]])).logits, before)


def test_nothing_is_drawn_while_a_model_is_opened(saved, tmp_path):
    model = GPT(GPTConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=2))
    write_description(tmp_path, model.config)
    save_file(parameters_of(model), tmp_path / "model.safetensors")
    state = torch.get_rng_state()
    load_model(saved[1])
    reopened = load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert reopened.head.weight is reopened.tokens.weight
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(reopened(ids).logits, model(ids).logits)


def test_tied_copies_must_be_equal(saved, spoiled):
    table = saved[0].transformer.wte.weight.detach()
    directory = spoiled({"lm_head.weight": table.clone()})
    ids = torch.randint(VOCABULARY, (2, 5))
    same_everywhere(load_model(directory), saved[0], ids)
    with pytest.raises(RunError, match=r"lm_head.weight and transformer.wte.weight .* differ"):
        load_model(spoiled({"lm_head.weight": table + 1}))


def test_masks_of_old_checkpoints_are_no_parameters(saved, spoiled):
    directory = spoiled(
        {
            "transformer.h.0.attn.bias": torch.ones(1, 1, CONTEXT, CONTEXT).tril(),
            "transformer.h.2.attn.masked_bias": torch.tensor(-1e4),
        }
    )
    same_everywhere(load_model(directory), saved[0], torch.randint(VOCABULARY, (2, 5)))


def test_one_error_lists_all_tensors_that_do_not_fit(spoiled):
    directory = spoiled({"score.weight": torch.zeros(2, 24)}, n_positions=70, n_layer=4)
    with pytest.raises(RunError) as caught:
        load_model(directory)
    for words in (
        "missing transformer.h.3.attn.c_attn.weight",
        "missing transformer.h.3.ln_2.bias",
        "unexpected score.weight",
        "transformer.wpe.weight is (80, 24), not (70, 24)",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["GPT2ForSequenceClassification"]}, "heedful.record"),
        ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "BloomForCausalLM"),
        ({"model_type": "bloom", "architectures": None}, "bloom"),
        ({"architectures": "BloomForCausalLM"}, "architecture BloomForCausalLM"),
        ({"architectures": 3}, "architecture 3"),
        ({"architectures": {"a": 1}}, "architecture {'a': 1}"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"activation_function": "silu"}, "silu"),
        ({"n_head": 5}, "5 heads for a width of 24"),
        ({"n_head": "4"}, "heads = '4'"),
        ({"vocab_size": None}, "vocabulary = None"),
    ],
    ids=str,
)
def test_models_that_are_not_ours_are_named(config, words, spoiled):
    with pytest.raises(RunError, match=words):
        load_model(spoiled(**config))


def pickled(saved, tmp_path, **options):
    state = {name: tensor.clone() for name, tensor in saved[0].state_dict().items()}
    shutil.copy(saved[1] / "config.json", tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin", **options)
    return tmp_path


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_pickled_weights_only_where_they_are_allowed(zipped, saved, tmp_path):
    directory = pickled(saved, tmp_path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(RunError, match="--allow-pickle"):
        load_model(directory)
    ours = load_model(directory, allow_pickle=True)
    same_everywhere(ours, saved[0], torch.randint(VOCABULARY, (2, 5)))


def test_pickled_shards(saved, tmp_path):
    directory = pickled(saved, tmp_path)
    state = torch.load(directory / "pytorch_model.bin", weights_only=True)
    names = list(state)
    (directory / "pytorch_model.bin").unlink()
    shard_of = {}
    for i, half in enumerate((names[::2], names[1::2])):
        torch.save({name: state[name] for name in half}, directory / f"pytorch_model-{i}.bin")
        shard_of |= dict.fromkeys(half, f"pytorch_model-{i}.bin")
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": shard_of}))
    with pytest.raises(RunError, match="--allow-pickle"):
        load_model(directory)
    ours = load_model(directory, allow_pickle=True)
    same_everywhere(ours, saved[0], torch.randint(VOCABULARY, (2, 5)))


class Harmful:
    def __reduce__(self):
        return (print, ("this code ran",))


@pytest.mark.parametrize(
    "content", [{"a": Harmful()}, [1, 2], {"a": 1}], ids=["code", "list", "number"]
)
def test_pickled_files_give_tensors_and_nothing_else(content, saved, tmp_path, capsys):
    directory = pickled(saved, tmp_path)
    torch.save(content, directory / "pytorch_model.bin")
    with pytest.raises(RunError, match=r"pytorch_model.bin"):
        load_model(directory, allow_pickle=True)
    assert "this code ran" not in capsys.readouterr().out


def test_a_directory_that_is_no_checkpoint(saved, tmp_path):
    with pytest.raises(RunError, match=r"no file .*config.json"):
        load_model(tmp_path)
    shutil.copy(saved[1] / "config.json", tmp_path)
    (tmp_path / "model.h5").write_text("")
    with pytest.raises(RunError, match=r"no weights in .*only config.json, model.h5"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="damaged or truncated"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", sorted({n.split(".N.")[0] for n in GPT2.table}))
def test_names_are_read_both_ways(name):
    for ours, theirs in GPT2.table.items():
        if ours.startswith(name):
            shape = (6, 4) if theirs.transposed else (6,)
            parameter = torch.randn(shape)
            there = theirs.theirs(parameter)
            assert torch.equal(theirs.ours(there.values()), parameter)
            assert theirs.shapes(shape) == {n: tuple(t.shape) for n, t in there.items()}


def test_opening_a_model_does_not_bring_the_compiler(saved):
    """Drawing on the meta device would, and that takes longer than the weights do."""
    program = (
        "import sys\n"
        "from heedful.models import load_model\n"
        f"load_model({str(saved[1])!r})\n"
        "print('torch._dynamo' in sys.modules, 'huggingface_hub' in sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "False False"


def test_old_names_bare_ones_and_rows_of_several():
    names = Names(
        prefix="bert.",
        table={
            "blocks.N.project.weight": same("bert.layer.N.query.weight", "bert.layer.N.key.weight"),
            "blocks.N.norm.bias": same("bert.layer.N.LayerNorm.bias"),
        },
        ignored=(r"cls\..*",),
        old={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    )
    rows = names.of("blocks.12.project.weight")
    assert rows.names == ("bert.layer.12.query.weight", "bert.layer.12.key.weight")
    query, key = torch.randn(2, 3, 5)
    joined = rows.ours([query, key])
    assert torch.equal(joined, torch.cat([query, key]))
    assert all(map(torch.equal, rows.theirs(joined).values(), (query, key)))
    wanted = {*rows.names, *names.of("blocks.12.norm.bias").names}
    found = ["layer.12.LayerNorm.beta", "bert.layer.12.query.weight", "cls.bias", "other"]
    assert names.recognised(found, wanted) == {
        "bert.layer.12.LayerNorm.bias": "layer.12.LayerNorm.beta",
        "bert.layer.12.query.weight": "bert.layer.12.query.weight",
        "other": "other",
    }
