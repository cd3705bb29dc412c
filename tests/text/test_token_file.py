import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, RunError
from heedful.text import TokenFile, token_file
from heedful.text.token_file import distinct_ids, write_ids


def write(path, ids):
    with path.open("w+b") as file:
        write_ids(file, [np.array(ids)], np.dtype(np.uint16))


CHUNKS = st.lists(st.lists(st.integers(0, 65_535), max_size=20), min_size=1).filter(any)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=CHUNKS, dtype=st.sampled_from([np.dtype(np.uint16), np.dtype(np.uint32)]))
def test_chunks_are_one_array_for_numpy(chunks, dtype, tmp_path):
    path = tmp_path / "tokens.npy"
    with path.open("w+b") as file:
        count = write_ids(file, (np.array(chunk, np.uint32) for chunk in chunks), dtype)
    array = np.load(path)
    assert array.dtype == dtype
    assert array.tolist() == [id for chunk in chunks for id in chunk]
    assert count == len(array) == len(TokenFile(path, 0.0))


@given(st.lists(st.integers(0, 200_000), min_size=1), st.integers(1, 7))
def test_distinct_ids(ids, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_file, "_CHUNK", chunk)
        assert distinct_ids(np.array(ids, np.uint32)).tolist() == sorted(set(ids))


def test_the_last_share_is_for_validation(tmp_path):
    write(tmp_path / "t.npy", np.arange(77_919) % 5)
    file = TokenFile(tmp_path / "t.npy", 0.1)
    assert len(file.train) == int(77_919 * 0.9)
    assert len(file.train) + len(file.validation) == 77_919
    assert file.validation[0] == file.ids[len(file.train)]
    assert isinstance(file.train, np.memmap)
    assert len(TokenFile(tmp_path / "t.npy", 0.0).validation) == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), 0.9])
def test_a_share_that_leaves_no_training_ids_is_refused(share, tmp_path):
    write(tmp_path / "t.npy", np.arange(10))
    with pytest.raises(ArgumentError, match="validation share"):
        TokenFile(tmp_path / "t.npy", share)
    assert TokenFile(tmp_path / "t.npy", 0.8).train.tolist() == [0]


@pytest.mark.parametrize("size", [0, 5, 100, 147, 148, 170])  # 148: all ids, and no checksum
def test_a_truncated_file_is_refused(size, tmp_path):
    path = tmp_path / "t.npy"
    write(path, np.arange(10))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RunError, match="damaged"):
        TokenFile(path)


def test_files_without_an_array_of_ids_are_refused(tmp_path):
    path = tmp_path / "t.npy"
    with pytest.raises(RunError, match="no token file"):
        TokenFile(path)
    for array in (np.zeros((2, 2), np.uint16), np.zeros(3), np.zeros(0, np.uint16), [None]):
        np.save(path, array)
        with pytest.raises(RunError, match=r"t\.npy"):
            TokenFile(path)
    np.savez(tmp_path / "t.npz", np.zeros(3, np.uint16))
    with pytest.raises(RunError, match="not an array of ids"):
        TokenFile(tmp_path / "t.npz")
