"""A DDP training that resumes from its last checkpoint after a rank has died.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/python/torch_restart.py --folder /tmp/restart

With `--kill 25`, rank 1 kills itself in that step, once. Within seconds the other ranks get an error: from
the hook in the exchange of gradients, and from the backend "thinwire" in any other call of
torch.distributed, checkpoints included. torchrun then starts all ranks again, as many as there are.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch


class Training:
    """The content of a checkpoint: the model, its optimizer, and the number of steps made."""

    def __init__(self) -> None:
        """Makes a new model and its optimizer, at step 0."""
        torch.manual_seed(0)
        layers = [nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)]
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step = 0

    def state_dict(self) -> dict:
        """The states of model and optimizer, and the step."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        """Continues from a `state_dict`."""
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts)
        self.step = state["step"]

    def run(self) -> torch.Tensor:
        """Makes a step on this rank's batch, which is a function of the step, and returns the loss."""
        seed = self.step * dist.get_world_size() + dist.get_rank()
        inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))
        loss = mse_loss(self.model(inputs), inputs.sum(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach()


def main() -> None:
    """Trains on every rank of the job."""
    options = parsed()
    dist.init_process_group("thinwire")
    training = Training()
    hook = thinwire.torch.attach(training.model, codec=options.codec)
    if last := newest(options.folder):
        parts = {"training": training, "hook": thinwire.torch.resharded(hook, last)}
        checkpoint.load(parts, checkpoint_id=last)
        say(f"going on from step {training.step}")
    while training.step < options.steps:
        loss = training.run()
        if training.step % options.every == 0:
            folder = options.folder / f"step{training.step:08}"
            checkpoint.save({"training": training, "hook": hook}, checkpoint_id=folder)
        if training.step == options.kill and dist.get_rank() == 1 and not restarted():
            os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    say(f"step {training.step} loss {loss.item():.6f}")
    dist.destroy_process_group()


def newest(folder: Path) -> Path | None:
    """The last complete checkpoint, one with a .metadata; all ranks find the same one."""
    return max((file.parent for file in folder.glob("step*/.metadata")), default=None)


def restarted() -> bool:
    """Whether torchrun has started the ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def say(text: str) -> None:
    """Prints on rank 0."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints are kept")
    parser.add_argument("--codec", default="int8", help="none, int8, int4, powersgd:4, auto, ...")
    numbers = {"steps": 60, "every": 10, "kill": 0}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
