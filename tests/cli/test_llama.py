"""The commands on checkpoints of Llama's family, as transformers saved them."""

import json

import pytest
import torch
from llama_tokenizers import of_bytes, of_characters
from redrawn import redrawn
from typed import refused, train

import heedful
from heedful.opened import OpenedGPT

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 512,  # more rows than either tokenizer has tokens
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 44,
    "max_position_embeddings": 90,
    "bos_token_id": None,
    "eos_token_id": None,
}
PROMPT = "Bottle 7 of 49: naïve ☃"
CPU = ("--device", "cpu")


def saved(directory, kind, library, name, **changes):
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**SHAPE, **changes)
    model = redrawn(getattr(transformers, f"{kind}ForCausalLM")(config), 0.3)
    model.save_pretrained(directory)
    library.save(str(directory / "tokenizer.json"))
    about = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(about))
    return directory


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """A window of five tokens, and the byte pairs of SentencePiece."""
    directory = tmp_path_factory.mktemp("mistral")
    return saved(directory, "Mistral", of_characters(), "LlamaTokenizer", sliding_window=5)


@pytest.fixture(scope="module")
def yarn(tmp_path_factory):
    rotary = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0,
              "original_max_position_embeddings": 20}  # fmt: skip
    directory = tmp_path_factory.mktemp("yarn")
    return saved(directory, "Llama", of_bytes(), "PreTrainedTokenizerFast", rope_parameters=rotary)


def their_maps(directory, text):
    """Weights of each layer, (H, N, N), and the tokens, by transformers' eager attention."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager"
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        output = model(ids, output_attentions=True)
    return [weights[0] for weights in output.attentions], ids[0].tolist(), output.logits[0]


def test_generate_continues_as_transformers_does(mistral, said):
    model = transformers.AutoModelForCausalLM.from_pretrained(mistral)
    tokenizer = transformers.AutoTokenizer.from_pretrained(mistral)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    known = len(tokenizer)
    expected = ids
    for _ in range(30):  # greedy among the rows that have tokens
        with torch.inference_mode():
            chosen = model(expected).logits[:, -1, :known].argmax(-1, keepdim=True)
        expected = torch.cat([expected, chosen], 1)
    options = ("--greedy", "--tokens", 30, "--json", *CPU)
    status, output, _ = said("generate", mistral, PROMPT, *options)
    assert status == 0
    # transformers' decoder replaces whole characters too, where broken ones stand beside them
    written = heedful.open(mistral, device="cpu").tokenizer.decode(expected[0, 1:].tolist())
    assert PROMPT + json.loads(output)["samples"][0] == written
    cold = said("generate", mistral, PROMPT, *options, "--no-cache")
    assert cold[1] == output


def test_probabilities_are_those_of_transformers(mistral, said):
    _, ids, logits = their_maps(mistral, PROMPT)
    status, output, _ = said("generate", mistral, PROMPT, "--probabilities", 3, "--json", *CPU)
    assert status == 0
    rows = json.loads(output)
    assert len(rows) == len(ids)
    tokens = heedful.open(mistral, device="cpu").tokenizer.size
    for row, wanted in zip(rows, logits.softmax(-1)[:, :tokens].topk(3).values, strict=True):
        found = [choice["probability"] for choice in row["next"]]
        assert found == pytest.approx(wanted.tolist(), rel=1e-4)


def test_a_recording_has_the_maps_of_transformers(mistral):
    maps, ids, _ = their_maps(mistral, PROMPT)
    opened = heedful.open(mistral, device="cpu")
    assert type(opened) is OpenedGPT
    recording = opened.record(PROMPT)
    assert recording[0].tokens == opened.pieces(ids)
    assert recording[0].tokens[0] == "<s>"
    for call, weights in zip(recording, maps, strict=True):
        assert call.proof == "proved"
        torch.testing.assert_close(call.weights(), weights, atol=2e-6, rtol=0)
        assert (call.weights()[:, 9, :5] == 0).all()  # out of the window


@pytest.mark.parametrize("command", [["explain", "--model"], ["heads"], ["plot"]])
def test_commands_that_look_inside(command, mistral, said, tmp_path):
    options = ("--layers", 0, "--out", tmp_path / "pictures") if command == ["plot"] else ()
    status, output, _ = said(*command, mistral, PROMPT, *CPU, *options)
    assert status == 0
    if command[0] == "explain":
        assert "#511" in output  # the last row of its table, which is no token


def test_export_writes_the_same_again(mistral, said, tmp_path):
    assert said("export", mistral, "--to", tmp_path / "out")[0] == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 5)
    for ours, theirs in zip(
        their_maps(tmp_path / "out", PROMPT), their_maps(mistral, PROMPT), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_run_with_a_window_is_exported_with_it(said, tmp_path):
    text = "".join(f"Bottle {i} of {i * i}.\n" for i in range(99))
    run = train(tmp_path, text, "--steps", "2", "--batch", "2", "--context-length", "24",
                "--width", "24", "--heads", "3", "--layers", "2", "--head-width", "10", "--window",
                "4", "--vocabulary", "270", *CPU)  # fmt: skip
    assert said("export", run, "--to", tmp_path / "out")[0] == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["sliding_window"]) == ("qwen3", 4)
    ids = torch.randint(270, (1, 20))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        wanted = theirs(ids).logits
    for source in (run, tmp_path / "out"):
        torch.testing.assert_close(
            heedful.load_model(source)(ids).logits, wanted, rtol=1e-5, atol=1e-5
        )


def test_a_run_on_pairs_is_refused_by_its_name(said, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{i} a\tb {i}\n" for i in range(60)))
    run = tmp_path / "run"
    assert said("train", "--pairs", pairs, "--out", run, "--steps", 1, "--width", 8, "--heads", 2,
                "--layers", 1, "--tokenizer", "characters", *CPU)[0] == 0  # fmt: skip
    refused(said("export", run, "--to", tmp_path / "out"), "a Seq2Seq", "transformers has too")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["generate"], ["explain", "--model"], ["fill"]])
def test_what_our_gpt_lacks_is_refused_by_its_name(command, yarn, said):
    refused(
        said(*command, yarn, PROMPT),
        "LlamaForCausalLM with rope_type = 'yarn'",
        "`heedful heads`",
    )


def test_what_our_gpt_lacks_is_recorded_through_transformers(yarn, said):
    maps, ids, _ = their_maps(yarn, PROMPT)
    recording = heedful.open(yarn, device="cpu").record(PROMPT)
    for call, weights in zip(recording, maps, strict=True):
        torch.testing.assert_close(call.weights(), weights, atol=2e-6, rtol=0)
    assert len(recording[0].tokens) == len(ids)
    assert said("heads", yarn, PROMPT)[0] == 0


def test_a_command_for_another_kind_says_what_this_is_for(mistral, said):
    refused(said("fill", mistral, PROMPT), "holds a GPT", "expected a BERT")
    refused(said("translate", mistral, PROMPT), "holds a GPT", "`heedful generate`")
