"""1-bit Adam: after a warm-up, variances are frozen, and ranks exchange momenta with one bit per
element.

Adam's variance hardly changes once training has settled. From then on, Adam is momentum SGD with a
fixed preconditioner. Momenta tolerate coarse codecs with error feedback; gradients under Adam do
not (Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", algorithm 1).

    optimizer = thinwire.torch.OneBitAdam(model.parameters(), lr=1e-3)
    for batch in data:
        optimizer.zero_grad()
        loss(model(batch)).backward()
        optimizer.step()

Each rank has the whole model and its own part of the batch. Do not use DistributedDataParallel: it
would average gradients a second time.

- Warm-up: gradients are averaged as f32, and every step is AdamW's.
- The warm-up ends after `warm_up` steps. By default, it ends when the sum of all variances has
  changed by less than 4 % in 1 / (1 - beta2) steps, the rule of section 4. Elements without a
  gradient until then, such as the row of a token that has not occurred, get the largest variance of
  their parameter.
- Afterwards each rank updates the momentum with its own gradient, and the momenta of all ranks are
  averaged through `codec`.

Laws: all ranks have the same parameters and moments after every step. With codec "none", a step of
the warm-up equals AdamW's with the average gradient, and a later step equals AdamW's with a fixed
variance.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thinwire import arguments
from thinwire._core import Group, InvalidError, Synchronizer, is_settled, settling_updates
from thinwire.agreement import agree, together
from thinwire.arguments import Seconds, shown, whole
from thinwire.torch import group as groups
from thinwire.torch import state
from thinwire.torch.replica import broadcast, expect_whole
from thinwire.torch.state import Saved

MEAN, VARIANCE = "exp_avg", "exp_avg_sq"
EXCHANGE = "thinwire"
"""Key of the exchanges' state in the state dict."""


class OneBitAdam(torch.optim.Optimizer):
    """AdamW whose ranks exchange gradients during a warm-up, and compressed momenta afterwards.

    Creating one is a collective call: all ranks begin with rank 0's parameters.

    Args:
        params: parameters or groups of them, as for `torch.optim.AdamW`; f32, f16 or bf16.
        lr, betas, eps, weight_decay: as for `torch.optim.AdamW`.
        warm_up: steps of the warm-up; None ends it when the variance has settled.
        codec: codec of momenta after the warm-up, as in `thinwire.torch.hook`.
        group: the ranks, as in `thinwire.torch.hook`.
        bucket_bytes, seed, unchecked, timeout_s, heartbeat_timeout_s: as in `thinwire.torch.hook`.
    """

    _step_supports_amp_scaling = True
    """Makes `GradScaler.step` call `step` even after an overflow on this rank alone, because the
    other ranks exchange in this step."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        warm_up: int | None = None,
        codec: str = "onebit",
        group: Any = None,
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
        unchecked: bool = False,
        timeout_s: Seconds | None = None,
        heartbeat_timeout_s: Seconds | None = None,
    ) -> None:
        """Forms the group and gives all ranks the parameters of rank 0."""
        options: dict[str, Any] = {
            "bucket_bytes": bucket_bytes,
            "seed": seed,
            "unchecked": unchecked,
        }
        arguments.options(codec=codec, **options)
        if warm_up is not None:
            whole("warm_up is", warm_up, 1)
        for name, beta in zip(("beta1", "beta2"), betas):
            if not 0.0 <= beta < 1.0:
                raise InvalidError(f"{name} is {beta}, expected a number from 0 to below 1")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self._warm_up = warm_up
        self._options: dict[str, Any] = {"codec": codec, **options}
        for index, (_, each) in enumerate(self._places):
            expect_whole(f"parameter {index}", each)
        self._connection = groups.of(group, timeout_s, heartbeat_timeout_s)
        shapes = [
            f"parameter {index} {each.dtype} {list(each.shape)}" for index, each in self._numbered()
        ]
        settings = [f"{name} {value}" for name, value in self._options.items()]
        agree([f"warm_up {warm_up}", *settings, *shapes], self.group)
        broadcast(self.group, [each for _, each in self._places])
        self._steps = 0
        self._frozen = False
        self._variances: collections.deque[float] = collections.deque()
        self._raw = self._synchronizer("none")
        self._momenta = self._synchronizer(codec)

    @property
    def group(self) -> Group:
        """The ranks."""
        return self._connection.group

    @property
    def is_warm(self) -> bool:
        """Whether the warm-up is over, so that momenta are exchanged and the variance is frozen."""
        return self._frozen

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Takes parameter groups when the optimizer is created.

        # Errors

        InvalidError for a parameter group that is added later.
        """
        if hasattr(self, "_momenta"):
            raise InvalidError(
                "a OneBitAdam takes no more parameters, expected all of them when it is made "
                "(hint: call requires_grad_(False) on parameters that are trained later)"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step with the gradients of all ranks; a collective call.

        A step in which some rank's gradient is not finite changes nothing on any rank, also under
        `torch.amp.GradScaler`. Parameters that require no gradient stay as they are.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [flat(each.grad, each) for _, each in self._places]
        # Of a GradScaler, unless `unscale_` was called.
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for each in gradients:
                each.div_(float(scale))
        if self._frozen:
            self._step_with_momenta(gradients)
        else:
            self._step_with_gradients(gradients)
        return loss

    def _step_with_gradients(self, gradients: list[torch.Tensor]) -> None:
        """A step of the warm-up: AdamW's, with the average of all gradients."""
        if not self._average(self._raw, gradients):
            return
        self._steps += 1
        for (group, each), gradient in zip(self._places, gradients):
            kept = self._kept(each)
            beta1, beta2 = group["betas"]
            kept[MEAN].lerp_(gradient, 1 - beta1)
            kept[VARIANCE].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        self._update()
        self._end_warm_up()

    def _step_with_momenta(self, gradients: list[torch.Tensor]) -> None:
        """A step after the warm-up: exchanges the momenta, which each rank has updated with its own
        gradient."""
        momenta = [
            torch.lerp(self._kept(each)[MEAN], gradient, 1 - group["betas"][0])
            for (group, each), gradient in zip(self._places, gradients)
        ]
        if not self._average(self._momenta, momenta):
            return
        self._steps += 1
        for (_, each), momentum in zip(self._places, momenta):
            self._kept(each)[MEAN].copy_(momentum)
        self._update()

    def _update(self) -> None:
        """Updates the trained parameters by their moments, as AdamW does, with the variance after
        the last step that changed it."""
        for group, each in self._places:
            kept = self._kept(each)
            beta1, beta2 = group["betas"]
            kept["step"] += 0 if self._frozen else 1
            if not each.requires_grad:
                continue
            root = (kept[VARIANCE] / (1 - beta2 ** kept["step"].item())).sqrt_().add_(group["eps"])
            rate = group["lr"] / (1 - beta1**self._steps)
            values = each.detach().float().cpu() * (1 - group["lr"] * group["weight_decay"])
            each.copy_(values.reshape(-1).addcdiv_(kept[MEAN], root, value=-rate).view(each.shape))

    def _end_warm_up(self) -> None:
        """Ends the warm-up after its number of steps, or when the variance has settled; in the same
        step on all ranks."""
        variances = [self._kept(each)[VARIANCE] for _, each in self._places]
        if self._warm_up is not None:
            self._frozen = self._steps >= self._warm_up
        else:
            total = sum(each.double().sum().item() for each in variances)
            self._variances.append(total)
            slowest = max(group["betas"][1] for group in self.param_groups)
            if len(self._variances) > settling_updates(slowest):
                self._frozen = is_settled(self._variances.popleft(), total)
        if self._frozen:
            # Over epsilon alone, momenta as a codec gives them would throw these elements far away.
            largest = [each.max().item() if each.numel() else 0.0 for each in variances]
            for variance, most in zip(variances, largest):
                variance[variance == 0] = most or max(largest)

    def _average(self, sync: Synchronizer | None, values: list[torch.Tensor]) -> bool:
        """Averages values of all ranks in place; returns False if some are not finite."""
        if sync is None:
            return all(bool(each.isfinite().all()) for each in values)
        addresses = [each.data_ptr() for each in values]
        return sync.exchange(addresses, addresses)

    def _kept(self, each: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the moments of a parameter, each a row of f32 in host memory that begins as
        zeros."""
        kept: dict[str, torch.Tensor] = self.state[each]
        if not kept:
            zeros = torch.zeros(each.numel())
            kept.update({"step": torch.tensor(0.0), MEAN: zeros, VARIANCE: zeros.clone()})
        return kept

    @property
    def _places(self) -> list[tuple[dict[str, Any], torch.Tensor]]:
        """Pairs of parameter group and parameter. They are looked up each time, because loading a
        state replaces the groups."""
        return [(group, each) for group in self.param_groups for each in group["params"]]

    def _numbered(self) -> list[tuple[int, torch.Tensor]]:
        return [(index, each) for index, (_, each) in enumerate(self._places)]

    def _synchronizer(self, codec: str) -> Synchronizer | None:
        if self.group.world == 1:
            return None
        shapes = [(str(index), list(each.shape), "f32", 0) for index, each in self._numbered()]
        options = {**self._options, "codec": codec}
        return Synchronizer(self.group, shapes, **options)

    def state_dict(self) -> dict[str, Any]:
        """Returns AdamW's state dict, with steps, the end of the warm-up and this rank's residuals under
        "thinwire". Save it on every rank."""
        entries = super().state_dict()
        saved = None
        if self._momenta is not None:
            names = [[str(index) for index, _ in self._numbered()]]
            saved = Saved(*state.read(self._momenta), names)
        progress = (self._steps, self._frozen, list(self._variances))
        return {**entries, EXCHANGE: {"progress": progress, **state.of_rank(self.group, saved)}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned on this rank or, if a different number of ranks
        saved, on all of them; a collective call.

        # Errors

        InvalidError on all ranks if the state of any rank is of a different optimizer or codec, or
        if the states were not saved together.
        """
        entries = together(self.group, lambda: self._entries(state_dict))
        steps, frozen, variances = entries.pop("progress")
        agree(
            [f"steps {steps} in the state", f"end of the warm-up {frozen} in the state"], self.group
        )
        options = {"codec": self._options["codec"]}
        saved = state.for_ranks(self.group, entries, options)
        super().load_state_dict(
            {name: each for name, each in state_dict.items() if name != EXCHANGE}
        )
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, (_, each) in zip(indices, self._places):
            # torch.optim has rounded moments to the dtype of their parameter.
            kept = state_dict["state"].get(index, {})
            self.state[each] = {
                name: value.detach().to("cpu", torch.float32, copy=True)
                for name, value in kept.items()
            }
        if self._momenta is not None and saved is not None:
            state.write(self._momenta, saved.plan, saved.tensors)
        self._steps, self._frozen = steps, frozen
        self._variances = collections.deque(variances)

    def _entries(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns the part of a state that belongs to the exchanges.

        # Errors

        InvalidError if the state is of another optimizer.
        """
        if EXCHANGE not in state_dict:
            raise InvalidError(
                f"the state has no {EXCHANGE}, expected the result of state_dict of a OneBitAdam"
            )
        both = (state_dict["param_groups"], self.param_groups)
        found, expected = ([len(group["params"]) for group in groups] for groups in both)
        if found != expected:
            raise InvalidError(
                f"the state has groups of {found} parameters, this optimizer of {expected}"
            )
        return dict(state_dict[EXCHANGE])


def flat(gradient: torch.Tensor | None, each: torch.Tensor) -> torch.Tensor:
    """A gradient as one row of f32 in newly allocated host memory; zeros if there is none."""
    if gradient is None:
        return torch.zeros(each.numel())
    if gradient.is_sparse:
        raise InvalidError(
            f"a gradient is sparse, of shape {shown(gradient)}, expected a dense one"
        )
    return gradient.detach().float().cpu().reshape(-1).clone()
