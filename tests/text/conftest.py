import pytest
import tiktoken

from heedful.text import open_encoding

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@pytest.fixture
def cl100k(data, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(data))
    return open_encoding("cl100k_base")


@pytest.fixture(scope="session")
def tiny():
    """A tiny encoding: bytes in an unusual order, eight merges, a gap, a special token.

    'th' 256, 'he' 257, 'the' 258, ' the' 259, 'in' 260, 'ing' 261, two thirds of an em dash 262,
    the dash 263, <|end|> 270.
    """
    singles = {bytes([(7 * rank) % 256]): rank for rank in range(256)}
    merges = [b"th", b"he", b"the", b" the", b"in", b"ing", b"\xe2\x80", "—".encode()]
    ranks = singles | {token: 256 + k for k, token in enumerate(merges)}
    return tiktoken.Encoding(
        "tiny", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={"<|end|>": 270}
    )


@pytest.fixture
def named_tiny(tiny, monkeypatch):
    """The same encoding, registered under its name in tiktoken."""
    names = tiktoken.list_encoding_names()
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["tiny", *names])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: tiny)
    return tiny
