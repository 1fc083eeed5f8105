"""Copies of the state, other than parameters and moments, that a step changes; they undo a void step.

A void step has gone through forward and backward: it has changed running statistics and drawn
random numbers, and a scheduler or a GradScaler may have counted it. All of that is restored before
the step is repeated. Parameters and moments need no copy, since `optimizer.step` did nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from thinwire.torch.elastic.carried import carried


class Stateful(Protocol):
    """An object with a small state, such as a scheduler or a scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Continues from a state."""


class Rollback:
    """Copies of a model's buffers, an optimizer's rates, random state, and `followed` objects."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        followed: Mapping[str, Stateful],
    ) -> None:
        """Creates it without copies; `followed` may grow later."""
        self._model = model
        self._optimizer = optimizer
        self._followed = followed
        self._buffers: dict[str, torch.Tensor] = {}
        self._rates: list[dict[str, Any]] = []
        self._random: list[torch.Tensor] = []
        self.states: dict[str, dict[str, Any]] = {}
        """Copies of the states of followed objects."""

    @torch.no_grad()
    def remember(self) -> None:
        """Copies the present state.

        # Errors

        InvalidError for a state that other ranks could not take over.
        """
        buffers = dict(self._model.named_buffers())
        if self._buffers.keys() != buffers.keys():
            self._buffers = {name: each.detach().clone() for name, each in buffers.items()}
        for name, buffer in buffers.items():
            self._buffers[name].copy_(buffer)
        self._rates = copy.deepcopy([rates(group) for group in self._optimizer.param_groups])
        self._random = [torch.get_rng_state(), *random_of_devices()]
        carried(self._rates, "optimizer/param_groups")
        states = {name: each.state_dict() for name, each in self._followed.items()}
        for name, each in states.items():
            carried(each, name)
        self.states = copy.deepcopy(states)

    def add(self, name: str) -> None:
        """Copies the state of an object that is followed from now on."""
        self.states[name] = copy.deepcopy(self._followed[name].state_dict())

    @torch.no_grad()
    def restore(self) -> None:
        """Restores the state that `remember` has copied, if it was called."""
        for name, buffer in self._model.named_buffers():
            if name in self._buffers:
                buffer.copy_(self._buffers[name])
        for group, kept_rates in zip(self._optimizer.param_groups, self._rates):
            group.update(copy.deepcopy(kept_rates))
        if self._random:
            torch.set_rng_state(self._random[0])
            for device, state in enumerate(self._random[1:]):
                torch.cuda.set_rng_state(state, device)
        for name, kept in self.states.items():
            self._followed[name].load_state_dict(copy.deepcopy(kept))


def rates(group: Mapping[str, Any]) -> dict[str, Any]:
    """Learning rate and other options of a parameter group that schedulers change."""
    return {name: value for name, value in group.items() if name != "params"}


def random_to_hand_over(model: torch.nn.Module) -> list[torch.Tensor]:
    """The random state of the CPU, and of the GPUs on which a model is."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus_of(model))]


def take_random(states: list[torch.Tensor], model: torch.nn.Module) -> None:
    """Continues from the random state of another rank; the GPUs of that rank may be numbered
    differently."""
    torch.set_rng_state(states[0])
    for state, device in zip(states[1:], gpus_of(model)):
        torch.cuda.set_rng_state(state, device)


def gpus_of(model: torch.nn.Module) -> list[torch.device]:
    """The GPUs that hold parameters of a model, in the order of its parameters."""
    devices = dict.fromkeys(each.device for each in model.parameters())
    return [device for device in devices if device.type == "cuda"]


def random_of_devices() -> list[torch.Tensor]:
    """The random state of every GPU, if this process has used one."""
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
