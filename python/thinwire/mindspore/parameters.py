"""MindSpore's parameters as the core describes them, each by a name, a shape and a dtype.

The core gets them in the order in which backward computes gradients, the reverse of the optimizer's order.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import mindspore as ms
from mindspore import nn

import thinwire

DTYPES = {ms.float32: "f32", ms.float16: "f16", ms.bfloat16: "bf16"}
BUCKET = 0
"""The bucket of all gradients. MindSpore has no buckets, so the core gets one, and divides it."""

Description = tuple[str, list[int], str, int]


def bucket_bytes(parameters: Iterable[ms.Parameter]) -> int:
    """The approximate size of a bucket of gradients, in bytes.

    Buckets are so small that the last one, whose exchange does not overlap with backward, is a
    small part of all gradients, and large enough to be worth a message and an operator.
    """
    elements = sum(parameter.size for parameter in parameters)
    return min(max(4 * elements // 16, 64 << 10), 4 << 20)


def describe(parameters: Iterable[ms.Parameter]) -> list[Description]:
    """Name, shape, dtype and bucket of each parameter, in reverse order.

    Raises InvalidError for parameters of dtypes other than float32, float16 and bfloat16, for
    tables of sparse lookups, and if there are no parameters.
    """
    parameters = list(parameters)
    expect_dense(parameters)
    described = [described_one(parameter) for parameter in reversed(parameters)]
    if not described:
        raise thinwire.InvalidError(
            "no parameters to exchange (hint: network.trainable_params() lists those of a network)"
        )
    return described


def expect_dense(parameters: Iterable[ms.Parameter]) -> None:
    """Raises InvalidError for the table of a lookup with sparse gradients.

    In PyNative mode such a gradient consists only of its values, without row numbers, and the values may
    have the table's shape. In Graph mode the gradient has no type yet when the exchange is
    compiled. So this function searches all Python objects for the lookups themselves, which takes
    less than a tenth of a second.
    """
    kinds: list[type] = [nn.EmbeddingLookup]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = (each for each in gc.get_referrers(*kinds) if isinstance(each, nn.EmbeddingLookup))
    tables = {id(each.embedding_table) for each in found if each.sparse}
    for parameter in parameters:
        if id(parameter) in tables:
            raise thinwire.InvalidError(
                f"{parameter.name} has sparse gradients, expected dense ones (hint: "
                "nn.EmbeddingLookup(..., target='DEVICE', sparse=False), or nn.Embedding)"
            )


def described_one(parameter: ms.Parameter) -> Description:
    """The core's description of one parameter."""
    dtype = DTYPES.get(parameter.dtype)
    if dtype is None:
        raise thinwire.InvalidError(
            f"{parameter.name} is {parameter.dtype}, not float32, float16 or bfloat16 "
            "(hint: leave it out of the optimizer's parameters)"
        )
    return parameter.name, list(parameter.shape), dtype, BUCKET
