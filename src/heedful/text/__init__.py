"""Texts and tokenizers: from text files to memory-mapped token ids, and back to text."""

from heedful.text.bpe import BPETokenizer, RobertaTokenizer, SentencePieceTokenizer
from heedful.text.characters import CharacterTokenizer
from heedful.text.example_dates import date_pairs, unseen_date_pairs
from heedful.text.example_texts import LICENCE, TITLE, python_reference
from heedful.text.library_tokenizer import Inputs
from heedful.text.loading import (
    UnsupportedTokenizerError,
    check_exportable,
    export_tokenizer,
    load_tokenizer,
)
from heedful.text.pairs import EXTRA_IDS, Pair, PairFile, Pairs, prepare_pairs, read_pairs
from heedful.text.preparation import TokenizerChoice, prepare
from heedful.text.sources import FileSource, Source, StringSource, open_source, text_files
from heedful.text.tiktoken_encoding import TiktokenTokenizer, open_encoding
from heedful.text.token_file import TokenFile
from heedful.text.tokenizer import Tokenizer
from heedful.text.wordpiece import WordPieceTokenizer

__all__ = [
    "BPETokenizer", "CharacterTokenizer", "FileSource", "UnsupportedTokenizerError",
    "RobertaTokenizer", "Inputs", "LICENCE", "EXTRA_IDS", "Pair", "PairFile", "Pairs",
    "SentencePieceTokenizer", "Source", "StringSource", "TITLE", "TiktokenTokenizer",
    "TokenFile", "Tokenizer", "TokenizerChoice", "WordPieceTokenizer", "check_exportable",
    "date_pairs", "export_tokenizer", "load_tokenizer", "open_encoding", "open_source",
    "prepare", "prepare_pairs", "python_reference", "read_pairs", "text_files",
    "unseen_date_pairs",
]  # fmt: skip
