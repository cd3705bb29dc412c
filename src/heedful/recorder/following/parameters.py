"""Knows the storages of a model's parameters and buffers, and the copies that autocast makes.

Under autocast the first product with a weight makes a copy of it in half precision, which the next
passes use too. It is told from other tensors by its numbers: they are those of a parameter.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from heedful.recorder.following import feature_rules
from heedful.recorder.following.addresses import Addresses
from heedful.recorder.following.axis_rules import is_tensor
from heedful.recorder.following.natures import PARAMETER
from heedful.recorder.following.strides import Storage, place
from heedful.recorder.running import Modules

HALF = (torch.bfloat16, torch.float16)
LOOKED_AT = 16  # numbers that tell most copies apart from other tensors


class Parameters:
    """The parameters and buffers of a model's modules.

    homes: the addresses of their storages, which no others get where the model lets a buffer go.
    """

    def __init__(self, modules: Modules) -> None:
        self.homes, self._projections = Addresses(), set[int]()
        for one in modules:
            is_linear = isinstance(one, nn.Linear)
            for table in (one._parameters, one._buffers):
                for name, tensor in table.items():
                    if is_tensor(tensor):
                        key = self.homes.hold(tensor.untyped_storage())
                        if is_linear and name == "weight" and table is one._parameters:
                            self._projections.add(key)
        self._modules = modules
        self._wide: dict[int, list[Tensor]] | None = None

    def storage(self, tensor: Tensor) -> Storage | None:
        """The storage of a tensor that is of one of them, or a copy of one; None of any other."""
        key = tensor.untyped_storage()._cdata
        if key in self.homes.marks or isinstance(tensor, nn.Parameter):
            made = feature_rules.parameter(place(tensor), key in self._projections)
            return Storage(made, nature=PARAMETER)
        source = self._cast(tensor) if tensor.dtype in HALF else None
        if source is None:
            return None
        sizes, strides, _ = place(source)
        is_weight = source.untyped_storage()._cdata in self._projections
        made = feature_rules.parameter((sizes, strides, tensor.element_size()), is_weight)
        return Storage(made, nature=PARAMETER)

    def _cast(self, tensor: Tensor) -> Tensor | None:
        """The parameter of float32 that a tensor, or what it is a view of, is a copy of."""
        if self._wide is None:
            self._wide = defaultdict(list)
            for parameter in (one for part in self._modules for one in part._parameters.values()):
                if is_tensor(parameter) and parameter.dtype == torch.float32:
                    self._wide[parameter.numel()].append(parameter.detach())
        home = tensor.untyped_storage()
        likely = self._wide.get(home.nbytes() // tensor.element_size(), ())
        if not likely:
            return None
        copy = tensor.new_empty(0).set_(home)
        return next((one for one in likely if _is_copy(copy, one)), None)


def _is_copy(copy: Tensor, parameter: Tensor) -> bool:
    """Whether all numbers of a storage, (n,), are those of a parameter in its type."""
    if copy.device != parameter.device or not parameter.is_contiguous():
        return False
    numbers = parameter.view(-1)
    return all(
        torch.equal(copy[:many], numbers[:many].to(copy.dtype)) for many in (LOOKED_AT, len(copy))
    )
