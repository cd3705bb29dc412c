"""Tokenizers in the formats of Llama and its relatives, trained on a few lines."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers")

LINES = [f"Bottle {i} of {i * i}: naïve café, 火, 🙂.\n  and two spaces\n" for i in range(40)]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]


def frame(first):
    return tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", first)]
    )


def of_characters(metaspace=False):
    """SentencePiece BPE with byte tokens, as Llama 2 and Mistral, or as Mistral's later files."""
    t = tokenizers
    library = t.Tokenizer(t.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trainer = t.trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL + BYTES, show_progress=False
    )
    words = [word for line in LINES for word in line.replace(" ", " ▁").split(" ")]
    library.train_from_iterator(words, trainer)
    described = json.loads(library.to_str())  # bytes are ordinary tokens
    described["added_tokens"] = described["added_tokens"][: len(SPECIAL)]
    library = t.Tokenizer.from_str(json.dumps(described))
    if metaspace:
        library.pre_tokenizer = t.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        library.normalizer = t.normalizers.Sequence(
            [t.normalizers.Prepend("▁"), t.normalizers.Replace(" ", "▁")]
        )
    d = t.decoders
    library.decoder = d.Sequence(
        [d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]
    )
    library.post_processor = frame(1)
    return library


def of_bytes(qwen=False):
    """Byte-level BPE with Llama 3's pattern and a begin token, or with Qwen's and NFC."""
    t = tokenizers
    library = t.Tokenizer(t.models.BPE(ignore_merges=not qwen))
    digits = r"\p{N}" if qwen else r"\p{N}{1,3}"
    pattern = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    library.pre_tokenizer = t.pre_tokenizers.Sequence(
        [
            t.pre_tokenizers.Split(t.Regex(pattern), "isolated"),
            t.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = t.decoders.ByteLevel()
    trainer = t.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=t.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(LINES, trainer)
    if qwen:
        library.normalizer = t.normalizers.NFC()
    else:
        library.post_processor = t.processors.Sequence(
            [t.processors.ByteLevel(trim_offsets=False), frame(0)]
        )
    return library
