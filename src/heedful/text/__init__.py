"""Texts and tokenizers: from files to ids by memory map, and back. Knows no model."""

from typing import TYPE_CHECKING

from heedful.lazy import lazily

if TYPE_CHECKING:
    from heedful.text.bpe import BPETokenizer, FramedTokenizer
    from heedful.text.characters import CharacterTokenizer
    from heedful.text.dates import date_pairs, unseen_date_pairs
    from heedful.text.examples import LICENCE, TITLE, python_reference
    from heedful.text.huggingface import check_exportable, export_tokenizer
    from heedful.text.library import Inputs
    from heedful.text.loading import ForeignTokenizerError, load_tokenizer
    from heedful.text.pairs import MARKS, Pair, PairFile, Pairs, prepare_pairs, read_pairs
    from heedful.text.preparation import TokenizerChoice, prepare
    from heedful.text.sentencepiece import SentencePieceTokenizer
    from heedful.text.sources import FileSource, Source, StringSource, open_source, text_files
    from heedful.text.tiktoken_encoding import TiktokenTokenizer, open_encoding
    from heedful.text.tokenizer import Tokenizer
    from heedful.text.tokens import TokenFile
    from heedful.text.wordpiece import WordPieceTokenizer

__all__ = [
    "BPETokenizer",
    "CharacterTokenizer",
    "FileSource",
    "ForeignTokenizerError",
    "FramedTokenizer",
    "Inputs",
    "LICENCE",
    "MARKS",
    "Pair",
    "PairFile",
    "Pairs",
    "SentencePieceTokenizer",
    "Source",
    "StringSource",
    "TITLE",
    "TiktokenTokenizer",
    "TokenFile",
    "Tokenizer",
    "TokenizerChoice",
    "WordPieceTokenizer",
    "check_exportable",
    "date_pairs",
    "export_tokenizer",
    "load_tokenizer",
    "open_encoding",
    "open_source",
    "prepare",
    "prepare_pairs",
    "python_reference",
    "read_pairs",
    "text_files",
    "unseen_date_pairs",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "heedful.text.bpe": ["BPETokenizer", "FramedTokenizer"],
        "heedful.text.characters": ["CharacterTokenizer"],
        "heedful.text.dates": ["date_pairs", "unseen_date_pairs"],
        "heedful.text.examples": ["LICENCE", "TITLE", "python_reference"],
        "heedful.text.library": ["Inputs"],
        "heedful.text.huggingface": ["check_exportable", "export_tokenizer"],
        "heedful.text.loading": ["ForeignTokenizerError", "load_tokenizer"],
        "heedful.text.pairs": ["MARKS", "Pair", "PairFile", "Pairs", "prepare_pairs", "read_pairs"],
        "heedful.text.preparation": ["TokenizerChoice", "prepare"],
        "heedful.text.sentencepiece": ["SentencePieceTokenizer"],
        "heedful.text.sources": [
            "FileSource",
            "Source",
            "StringSource",
            "open_source",
            "text_files",
        ],
        "heedful.text.tiktoken_encoding": ["TiktokenTokenizer", "open_encoding"],
        "heedful.text.tokenizer": ["Tokenizer"],
        "heedful.text.tokens": ["TokenFile"],
        "heedful.text.wordpiece": ["WordPieceTokenizer"],
    },
)
