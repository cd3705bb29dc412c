import pytest
from small_models import opened

from heedful.loaded import LoadedBert, LoadedGPT, LoadedSeq2Seq


@pytest.fixture(scope="session")
def gpt():
    return opened(LoadedGPT)


@pytest.fixture(scope="session")
def bert():
    return opened(LoadedBert)


@pytest.fixture(scope="session")
def seq2seq():
    return opened(LoadedSeq2Seq)
