"""Networks of MindSpore as model files, for `thinwire model show` and `thinwire plan make`.

    thinwire.mindspore.export_graph(network, ids, path="model.json")

MindSpore compiles the network as `mindspore.export` does, for two batches; dimensions that grow
with the batch are marked as such. The only output is logits: the file gets a cross-entropy over its
last dimension.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import mindspore as ms
import numpy as np

import thinwire.mindspore.export.operators  # noqa: F401  (they register themselves)
from thinwire._core import InvalidError
from thinwire.mindspore.export.program import compiled
from thinwire.mindspore.export.walk import convert
from thinwire.model_file import check_file, write
from thinwire.model_file.sizes import merged

__all__ = ["export_graph"]


def export_graph(
    network: ms.nn.Cell, *inputs: Any, path: str | PathLike[str], sequence: int | None = None
) -> None:
    """Writes a network as a model file.

    `inputs` are example inputs, with which the network can be called. The first dimension of the
    first one is the batch; every other example whose first dimension has this length is batched,
    too. `sequence` is the number of tokens in a sequence; by default the second dimension of the
    first example if that is a tensor of integers, and otherwise 1. Values of parameters are not
    written. Dropouts are written only if the network is in training mode.

    Raises InvalidError, which names the operator and its place, if an operator is not supported, and
    if MindSpore cannot compile the network for these examples.
    """
    _check(network, inputs)
    check_file(path, sequence)
    first = inputs[0]
    length = first.shape[0]
    batch = max(2, length)
    try:
        graphs = []
        for size in (batch, 2 * batch):
            examples = [_repeated(value, length, size) for value in inputs]
            graphs.append(convert(compiled(network, examples), size))
        once, twice = graphs
        graph = merged(once, twice, batch)
    except ValueError as error:
        raise InvalidError(str(error)) from None
    if sequence is None:
        sequence = first.shape[1] if first.ndim > 1 and not first.is_floating_point() else 1
    write(path, type(network).__name__, sequence, graph)


def _check(network: Any, inputs: tuple[Any, ...]) -> None:
    """Refuses, in one line, anything but a network and examples."""
    hint = '(hint: export_graph(network, ids, path="model.json"))'
    if not isinstance(network, ms.nn.Cell):
        raise InvalidError(f"network is {type(network).__name__}, expected a mindspore.nn.Cell")
    if not inputs:
        raise InvalidError(f"there are 0 examples, expected 1 or more {hint}")
    if not isinstance(inputs[0], ms.Tensor):
        kind = type(inputs[0]).__name__
        raise InvalidError(f"the first example is {kind}, expected a tensor {hint}")
    if inputs[0].ndim == 0 or inputs[0].shape[0] == 0:
        raise InvalidError(
            f"the first example has shape {list(inputs[0].shape)}, expected a batch of 1 or more as "
            "its first dimension"
        )


def _repeated(value: Any, length: int, batch: int) -> Any:
    """An example for another batch."""
    if not isinstance(value, ms.Tensor) or value.ndim == 0 or value.shape[0] != length:
        return value
    times = -(-batch // length)
    return ms.Tensor(np.concatenate([value.asnumpy()] * times)[:batch])
