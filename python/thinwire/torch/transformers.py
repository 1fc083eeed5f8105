"""Hugging Face's Trainer with gradients averaged by Thinwire.

    trainer = Trainer(model, arguments, train_dataset=data)
    thinwire.torch.transformers.attach(trainer, codec="int8")
    trainer.train()

The hook is registered for every `train()`, including later ones. Each checkpoint of the trainer has
one file per rank with the state of that rank's codec, and `train(resume_from_checkpoint=...)` reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thinwire.torch.attached import Attached
from thinwire.torch.hook import hook
from thinwire.torch.signature import options_of

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ImportError as error:
    raise ImportError(
        f"thinwire.torch.transformers needs transformers ({error}) "
        "(hint: pip install transformers accelerate)"
    ) from None


@options_of(hook)
def attach(trainer: Trainer, codec: str = "auto", group: Any = None, **options: Any) -> Attached:
    """Lets Thinwire average the gradients of `trainer`; every rank calls it before `train`.

    `codec` and `options` are those of `thinwire.torch.hook`. With one process nothing changes. The
    result's `hook` has the plan and the record once a training has begun.

    # Errors

    InvalidError for an unknown codec or algorithm, or a factor out of range; from `train`, the errors of
    the hook, and InvalidError if the trainer uses FSDP or DeepSpeed.
    """
    attached = Attached({"codec": codec, "group": group, **options})
    trainer.add_callback(Callback(trainer, attached))
    return attached


class Callback(TrainerCallback):
    """The callback that `attach` adds to a trainer.

    The trainer passes the checkpoint to resume from to `train`, not to callbacks, so `train` is wrapped.
    """

    def __init__(self, trainer: Trainer, attached: Attached) -> None:
        """Wraps `trainer.train` to read its arguments."""
        self._trainer, self._attached = trainer, attached
        self._checkpoint: str | bool | None = None
        self._train = trainer.train
        trainer.train = self.train

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> Any:
        """Trains, and remembers the checkpoint to resume from."""
        self._checkpoint = resume_from_checkpoint
        return self._train(resume_from_checkpoint, *arguments, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Registers the hook and loads its state, now that the trainer has wrapped and loaded its model."""
        self._attached.follow(self._trainer.model_wrapped)
        last = self._checkpoint is True and get_last_checkpoint(args.output_dir)
        found: Any = last or self._checkpoint
        if found:
            self._attached.load(found)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Adds the state to a new checkpoint; checkpoints of a hyperparameter search are never resumed."""
        if not (args.save_only_model or state.is_hyper_param_search):
            name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            self._attached.save(Path(args.output_dir, name))
