import pytest
from small_models import opened

from heedful.opened import OpenedBert, OpenedGPT, OpenedSeq2Seq


@pytest.fixture(scope="session")
def gpt():
    return opened(OpenedGPT)


@pytest.fixture(scope="session")
def bert():
    return opened(OpenedBert)


@pytest.fixture(scope="session")
def seq2seq():
    return opened(OpenedSeq2Seq)
