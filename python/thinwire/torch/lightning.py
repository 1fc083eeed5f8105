"""Lightning with gradients averaged by Thinwire.

    trainer = lightning.Trainer(
        strategy="ddp", callbacks=[thinwire.torch.lightning.GradExchange(codec="int8")]
    )

The hook is registered for every `fit`, including later ones. This also works on the CPU, where
Lightning ignores the strategy's own `ddp_comm_hook`. A checkpoint has the codec state of every
rank.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from thinwire.lifetime import raised
from thinwire.torch.attached import Attached
from thinwire.torch.hook import Hook, hook
from thinwire.torch.signature import options_of

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        f"thinwire.torch.lightning needs lightning ({error}) (hint: pip install lightning)"
    ) from None


class GradExchange(Callback):
    """Lets Thinwire average the gradients of the model that the trainer wraps in DDP.

    Arguments are those of `thinwire.torch.hook`. With one device nothing changes. Checkpoints
    gather the residuals of all ranks on rank 0, because Lightning writes one file: four bytes per
    parameter and rank.

    # Errors

    InvalidError for an unknown codec or algorithm, or a factor out of range; from `fit`, the errors of
    the hook, and InvalidError if the strategy is not DDP.
    """

    @options_of(hook)
    def __init__(self, codec: str = "auto", group: Any = None, **options: Any) -> None:
        """Checks the arguments. Ranks connect in `fit`."""
        self._attached = Attached({"codec": codec, "group": group, **options})
        self._resumed: dict[str, Any] = {}
        self._trainer: Trainer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process needs: all but the trainer."""
        return {**vars(self), "_trainer": None}

    @property
    def hook(self) -> Hook | None:
        """The handle of the hook, with the plan and the record; None before `fit`, or on one device.

        Processes that `ddp_spawn` starts have their own handles, which do not come back to this
        process.
        """
        return self._attached.hook

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Registers the hook, now that the strategy has wrapped the model."""
        self._trainer = trainer
        self._attached.follow(trainer.strategy.model)
        resumed, self._resumed = self._resumed, {}
        if resumed:
            self._attached.resume(resumed)

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, on rank 0 only; a collective call.

        After an exception it is empty, with a warning, since other ranks might not make this call.
        """
        if self.hook is None or not self._failed():
            return {} if self.hook is None else self.hook.state_of_all()
        warnings.warn(
            "training was interrupted: the checkpoint has no state of Thinwire, and codecs begin without "
            "residuals after it",
            stacklevel=2,
        )
        return {}

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Reports an exception to the other ranks, before other callbacks wait for these ranks."""
        self._failed()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the state until the model is wrapped."""
        self._resumed = state_dict

    def _failed(self) -> bool:
        """Returns whether an exception ended the training. If the exception is being handled now,
        tells the other ranks about it."""
        if self._trainer is None or not self._trainer.interrupted:
            return False
        error = sys.exc_info()[1]
        if self.hook is not None and error is not None:
            self.hook.group.abort(raised(self.hook.group.rank, error))
        return True
