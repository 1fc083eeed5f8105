"""Checks of what can be exported, before anything is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thinwire._core import InvalidError
from thinwire.model_file import check_file


def check(module: Any, examples: Any, path: Any, sequence: Any) -> None:
    """Refuses, in one line, an invalid module, example, path of a model file, or length."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidError(f"module is {type(module).__name__}, expected a torch.nn.Module")
    _check_norms(module)
    _check_examples(examples)
    check_file(path, sequence)


def _check_norms(module: torch.nn.Module) -> None:
    """Refuses batch norms that are in evaluation mode, with fixed running statistics, while the
    module around them is in training mode."""
    if not module.training:
        return
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and not part.training:
            raise InvalidError(
                f"batch norm '{name}' is in evaluation and the module in training, which is not supported "
                "(hint: a model file has batch norm as in training; module.train())"
            )


def _check_examples(examples: Any) -> None:
    hint = "(hint: export_graph(module, (tokens,), path))"
    if not isinstance(examples, Sequence) or isinstance(examples, (str, bytes)):
        kind = type(examples).__name__
        raise InvalidError(f"example_inputs is {kind}, expected a tuple of tensors {hint}")
    if not examples:
        raise InvalidError(f"example_inputs has 0 examples, expected 1 or more {hint}")
    first = examples[0]
    if not isinstance(first, torch.Tensor):
        kind = type(first).__name__
        raise InvalidError(f"the first example is {kind}, expected a tensor {hint}")
    if first.ndim == 0 or first.shape[0] == 0:
        shape = list(first.shape)
        raise InvalidError(
            f"the first example has shape {shape}, expected a batch of 1 or more as its first "
            "dimension"
        )
