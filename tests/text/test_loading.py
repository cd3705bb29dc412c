import numpy as np
import pytest
import tokenizers
from tokenizers import models

from heedful.errors import RunError
from heedful.text import BPETokenizer, CharacterTokenizer, TiktokenTokenizer, load_tokenizer

TEXT = "the thing — the"


def test_each_kind_survives_saving_and_loading(tmp_path, named_tiny):
    ids = np.array(named_tiny.encode_ordinary("the thing"))
    for number, tokenizer in enumerate(
        [
            CharacterTokenizer.train([TEXT]),
            BPETokenizer.train([TEXT * 5], 262),
            TiktokenTokenizer.compact(named_tiny, ids),
            TiktokenTokenizer.up_to_largest(named_tiny, ids),
        ]
    ):
        run = tmp_path / f"run{number}"
        tokenizer.save(run)
        for path in (run, run / "tokenizer.json", str(run)):
            loaded = load_tokenizer(path)
            assert type(loaded) is type(tokenizer)
            assert loaded.kind == tokenizer.kind
            assert loaded.encode(TEXT) == tokenizer.encode(TEXT)
            assert [loaded.token_bytes(id) for id in range(loaded.size)] == [
                tokenizer.token_bytes(id) for id in range(tokenizer.size)
            ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot read"),
        ("[]", "not a tokenizer"),
        ('{"model": 3}', "not a tokenizer"),
        ('{"model": {}}', "damaged"),
        ('{"heedful_tokenizer": 2}', "version 2 .*expected version 1"),
        ('{"heedful_tokenizer": 1, "kind": "morse"}', "morse"),
        ('{"heedful_tokenizer": 1, "kind": "characters", "characters": "ba"}', "sorted"),
        ('{"heedful_tokenizer": 1, "kind": "characters", "characters": 7}', "damaged"),
        ('{"heedful_tokenizer": 1, "kind": "tiktoken", "encoding": "tiny", "ids": [1]}', "damaged"),
    ],
)
def test_a_file_that_is_not_a_tokenizer_is_a_one_line_error(content, message, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(RunError, match=message) as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_missing_file_and_a_foreign_tokenizer(tmp_path):
    with pytest.raises(RunError, match="no file"):
        load_tokenizer(tmp_path)
    with pytest.raises(RunError, match=r"no file or directory.*'runs/none'.* gpt2"):
        load_tokenizer("runs/none")
    with pytest.raises(RunError, match=r"expected cl100k_base"):
        load_tokenizer("cl100k_bas")
    tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(
        str(tmp_path / "words.json")
    )
    with pytest.raises(RunError, match="byte-level BPE"):
        load_tokenizer(tmp_path / "words.json")
