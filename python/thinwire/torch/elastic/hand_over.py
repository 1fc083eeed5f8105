"""The hand-over of a job's state, from the state sources to the joiners of an epoch.

Rank 0 sends all small values: steps, positions, schedulers, and the dtypes and shapes of all
tensors. Parameters, moments and the factors of codecs are bit-identical on all state sources, and
each state source sends a part of them. Buffers differ between ranks; all ranks take those of rank
0, the oldest state source.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from thinwire._core import Epoch, InvalidError
from thinwire.elastic.hand_over import from_oldest, from_state_sources
from thinwire.torch.elastic import tree
from thinwire.torch.elastic.tree import Shapes, Tensors


def notice(epoch: Epoch, mine: Mapping[str, Any]) -> dict[str, Any]:
    """Returns rank 0's `mine` on all ranks; the `mine` of other ranks is ignored."""
    file = io.BytesIO()
    if epoch.rank == 0:
        torch.save(dict(mine), file)
    found = from_oldest(epoch, file.getvalue())
    said: dict[str, Any] = torch.load(io.BytesIO(found), weights_only=True)
    return said


def shapes(tensors: Tensors) -> dict[str, tuple[torch.dtype, list[int]]]:
    """Dtypes and shapes by path, in a form that `notice` can send."""
    return {path: (each.dtype, list(each.shape)) for path, each in tree.described(tensors).items()}


def taken(epoch: Epoch, state_sources: int, said: Mapping[str, Any], mine: Tensors) -> Tensors:
    """Returns the tensors that `said` describes, from the first `state_sources` ranks; these ranks get
    their own tensors back.

    # Errors

    InvalidError if a state source's tensors differ from rank 0's.
    """
    form: Shapes = {
        path: tree.Described(dtype, tuple(shape)) for path, (dtype, shape) in said.items()
    }
    if epoch.rank < state_sources and tree.described(mine) != form:
        differs = min(set(form.items()) ^ set(tree.described(mine).items()), key=str)
        raise InvalidError(f"this rank and rank 0 differ in {differs[0]}")
    if not form:
        return {}
    holds = epoch.rank < state_sources
    flat = from_state_sources(epoch, state_sources, tree.packed(mine).numpy() if holds else None)
    return mine if holds else tree.viewed(torch.from_numpy(flat), form)
