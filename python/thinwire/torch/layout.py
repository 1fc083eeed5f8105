"""The assignment of parameters to DDP's buckets, in order.

DDP passes no names: parameters are named by their position in the model, unless the user gave
names. Law: names do not depend on the buckets. So a state that was saved under one layout can be
loaded under another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch

from thinwire._core import Cuda, InvalidError
from thinwire.arguments import shown
from thinwire.torch.device import Device
from thinwire.torch.reduction import NATIVE

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Names of the modules that torch.compile and activation checkpointing put around another
module."""
DDP = "module."
"""Prefix that DDP adds to all names."""
Target = tuple[int, int, int] | tuple[int, int, int, Cuda]
"""Number of a bucket or parameter, address and elements of its gradient, and the device that has it."""


def real_shape(parameter: torch.Tensor) -> list[int]:
    """Returns the shape of a parameter's gradient in a bucket, which stores a complex number as two
    real ones."""
    return [*parameter.shape, 2] if parameter.is_complex() else list(parameter.shape)


@dataclasses.dataclass(frozen=True)
class Flat:
    """One bucket of a step: its parameters, and their concatenated gradients. These are in host
    memory in `dtype`, or on `device` in f32.
    """

    parameters: Sequence[torch.Tensor]
    gradients: torch.Tensor
    dtype: str
    device: Device | None = None

    def target(self, number: int, start: int = 0, elements: int | None = None) -> Target:
        """Returns the memory of the gradients from `start` on, for the core, with the number of a
        bucket or parameter."""
        address = self.gradients.data_ptr() + start * self.gradients.element_size()
        count = self.gradients.numel() if elements is None else elements
        if self.device is None:
            return number, address, count
        return number, address, count, self.device.core

    def zero(self) -> None:
        """Sets all gradients to zero."""
        with torch.no_grad(), self.device.stream() if self.device else contextlib.nullcontext():
            self.gradients.zero_()


@dataclasses.dataclass(frozen=True)
class Layout:
    """Buckets of parameters in the order of their exchange, with each bucket's dtype."""

    buckets: tuple[tuple[torch.Tensor, ...], ...]
    dtypes: tuple[str, ...]

    @staticmethod
    def of(flats: Iterable[Flat]) -> Layout:
        """The layout of the buckets of a step."""
        flats = tuple(flats)
        buckets = tuple(tuple(flat.parameters) for flat in flats)
        return Layout(buckets, tuple(flat.dtype for flat in flats))

    def has(self, index: int, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether bucket `index` consists of exactly these parameters in this order."""
        if index >= len(self.buckets):
            return False
        mine = self.buckets[index]
        return len(mine) == len(parameters) and all(map(operator.is_, mine, parameters))

    def expect(self, index: int, kind: str) -> None:
        """Refuses a bucket that has changed its dtype."""
        if kind != self.dtypes[index]:
            raise InvalidError(
                f"bucket {index} is {kind}, was {self.dtypes[index]} in earlier steps"
            )

    def same(self, other: Layout) -> bool:
        """Whether both layouts are the same."""
        return len(self.buckets) == len(other.buckets) and all(
            self.has(index, bucket) for index, bucket in enumerate(other.buckets)
        )

    @property
    def parameters(self) -> list[torch.Tensor]:
        """All parameters, in the order of the core's numbers for them."""
        return [parameter for bucket in self.buckets for parameter in bucket]

    def described(
        self,
        names: Mapping[int, str],
        shape: Callable[[torch.Tensor], list[int]] = real_shape,
    ) -> list[tuple[str, list[int], str, int]]:
        """The core's description of each parameter: name, shape, dtype, bucket.

        `shape` is the shape of the part of the gradient that this rank exchanges.
        """
        return [
            (names[id(parameter)], shape(parameter), self.dtypes[index], index)
            for index, bucket in enumerate(self.buckets)
            for parameter in bucket
        ]

    def named(self, names: Mapping[int, str]) -> list[list[str]]:
        """The names of the parameters in each bucket."""
        return [[names[id(parameter)] for parameter in bucket] for bucket in self.buckets]

    def arranged(self, buckets: Sequence[Sequence[str]], names: Mapping[int, str]) -> Layout:
        """Returns the layout of the same parameters in the buckets that an earlier `named`
        returned."""
        by_name = {names[id(parameter)]: parameter for parameter in self.parameters}
        known = {
            id(parameter): dtype
            for bucket, dtype in zip(self.buckets, self.dtypes)
            for parameter in bucket
        }
        saved = {name for bucket in buckets for name in bucket}
        for name in sorted(saved ^ by_name.keys()):
            is_nameless = len(saved) == len(by_name) and any(map(is_place, saved ^ by_name.keys()))
            hint = " (hint: the same named_parameters as when it was saved; attach gives them all)"
            raise InvalidError(
                f"the state is of another model: it has {len(saved)} parameters, "
                f"this model {len(by_name)}, and {name} is in one of them only"
                f"{hint if is_nameless else ''}"
            )
        arranged = tuple(tuple(by_name[name] for name in bucket) for bucket in buckets)
        return Layout(arranged, tuple(known[id(bucket[0])] for bucket in arranged))


def is_place(name: str) -> bool:
    """Whether this is the placeholder of a name that was not given."""
    return re.fullmatch(r"parameter\.\d+", name) is not None


def raw_bytes(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    """The bytes of a tensor of any dtype, in host memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def memory_order(parameter: torch.Tensor) -> list[int] | None:
    """Returns the dimensions of a gradient, from the slowest to the fastest in a bucket; None if
    they already are in this order.

    DDP lays out a gradient like its parameter. For a channels-last or transposed parameter, this is
    the parameter's order of memory.
    """
    dimensions = range(parameter.dim())
    order = sorted(dimensions, key=parameter.stride, reverse=True)
    if parameter.is_contiguous() or not parameter.permute(order).is_contiguous():
        return None
    return [*order, len(order)] if parameter.is_complex() else order


def of_memory(values: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Converts values from the order of memory to the order of dimensions. `order` lists the
    dimensions as they are in memory."""
    found = values.reshape([values.shape[each] for each in order])
    return found.permute([list(order).index(each) for each in range(len(order))]).contiguous()


def to_memory(values: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Does the reverse of `of_memory`."""
    return values.permute(list(order)).contiguous().reshape(values.shape)


def dtype(gradients: torch.Tensor, of: str = "") -> str:
    """Returns the core's name for a gradient's dtype; `of` names the gradient in errors.

    # Errors

    InvalidError for sparse gradients, for gradients on devices other than the CPU and CUDA, and for
    dtypes that the core does not know.
    """
    if gradients.layout is not torch.strided:
        raise InvalidError(
            f"a gradient{of} is {gradients.layout}, expected torch.strided "
            "(hint: nn.Embedding(..., sparse=False))"
        )
    if gradients.device.type not in ("cpu", "cuda"):
        raise InvalidError(f"gradients{of} are on device {gradients.device}, expected cpu or cuda")
    name = NATIVE.get(gradients.dtype)
    if name is None:
        known = ", ".join(str(dtype) for dtype in NATIVE)
        # DDP before PyTorch 2.15 hands complex gradients on as they are, later ones as real numbers.
        way = "PyTorch 2.15" if gradients.is_complex() else "model.to(torch.complex64)"
        raise InvalidError(
            f"gradients{of} are {gradients.dtype}, expected one of {known} (hint: model.float(), or {way})"
        )
    return name


def said(parameter: torch.Tensor, given: Mapping[int, str]) -> str:
    """Returns a parameter's name in messages before the first step: the given name, or a
    description."""
    seen = f"a parameter {list(parameter.shape)} ({parameter.dtype})"
    return given.get(id(parameter), seen)


def same_model(found: Collection[int], known: Collection[int]) -> None:
    """Refuses a step whose parameters, compared by identity, differ from those of earlier steps."""
    if set(found) != set(known):
        raise InvalidError(
            f"the buckets of this step have {len(found)} parameters, of which "
            f"{len(set(found) - set(known))} are not among the {len(known)} of earlier steps "
            "(hint: use a separate hook for each model)"
        )


def plain_names(names: Iterable[str], prefix: str = "") -> dict[str, str]:
    """Returns the names of a model's parameters, without the parts that wrappers add, by their full
    names.

    torch.compile and activation checkpointing add a module to the path of a parameter. With plain
    names, a model that is not wrapped can load the state of a wrapped one, as with
    `torch.distributed.checkpoint.state_dict`. `prefix` is removed if all names have it.
    """
    found = {
        name: ".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names
    }
    if all(name.startswith(prefix) for name in found.values()):
        found = {name: bare.removeprefix(prefix) for name, bare in found.items()}
    # Two parameters of one name would share a residual.
    return found if len(set(found.values())) == len(found) else {name: name for name in found}


def plain(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns parameters, or other parts of a model, by their plain names."""
    named = dict(pairs)
    bare = plain_names(named)
    return {bare[name]: each for name, each in named.items()}


def given_names(pairs: Any) -> dict[int, str]:
    """Returns the plain names of parameters by their identity, from pairs such as those of
    `model.named_parameters()`.

    # Errors

    InvalidError for anything but pairs, and for two parameters with the same name.
    """
    named: dict[str, torch.Tensor] = {}
    for pair in pairs if isinstance(pairs, Iterable) else [pairs]:
        # A tensor may have two rows, and so look like a pair.
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not is_pair or not isinstance(pair[0], str) or not isinstance(pair[1], torch.Tensor):
            found = [*map(shown, pair)] if is_pair else shown(pair)
            raise InvalidError(
                f"named_parameters has {found}, expected pairs of name and parameter "
                "(hint: model.named_parameters())"
            )
        name, parameter = pair
        if named.setdefault(name, parameter) is not parameter:
            raise InvalidError(f"named_parameters has two parameters called {shown(name)}")
    bare = plain_names(named, DDP)
    return {id(parameter): bare[name] for name, parameter in named.items()}


def names(layout: Layout, given: Mapping[int, str]) -> dict[int, str]:
    """Returns a name for each parameter, by the parameter's identity: the given name, or the
    position in the model.

    DDP's first buckets hold the model's parameters in order, the last ones first.
    """
    ordered = [parameter for bucket in reversed(layout.buckets) for parameter in bucket]
    return {
        id(parameter): given.get(id(parameter), f"parameter.{place}")
        for place, parameter in enumerate(ordered)
    }
