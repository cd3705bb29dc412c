"""The choice of a device, and of the dtype for matrix products."""

import pytest
import torch

from heedful.device import choose_device, choose_matmul_dtype
from heedful.errors import ArgumentError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["meta", "cuda:99", "abacus"])
def test_a_device_that_this_machine_lacks_is_refused(name):
    with pytest.raises(ArgumentError, match=f"device '{name}' for process 3"):
        choose_device(name, 3)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, torch.float32),
        ({"avx512_bf16": False, "amx_bf16": False, "avx2": True}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_is_bfloat16_on_cpus_with_instructions_for_it(capabilities, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert choose_matmul_dtype("auto", CPU) == expected
    assert choose_matmul_dtype("float32", CPU) == torch.float32
    assert choose_matmul_dtype("bfloat16", CPU) == torch.bfloat16


def test_auto_is_float32_on_other_devices():
    assert choose_matmul_dtype("auto", torch.device("mps")) == torch.float32


@pytest.mark.parametrize(("supports", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_on_gpus_whose_tensor_cores_support_it(supports, expected, monkeypatch):
    def supported(including_emulation=True):
        return supports or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_matmul_dtype("auto", torch.device("cuda")) == expected
