"""States that version 0.1 wrote continue as they did there.

`torchrun --nproc-per-node 2 python/tests/test_compatibility.py`, under that version, wrote them.
"""

from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("torch")

FILES = Path(__file__).parent / "testdata" / "version-0.1"
CODECS = ("int8", "topk:0.2", "powersgd:2")


def file(codec, what):
    """The file of a rank's state, or of the parameters `after` all steps."""
    return FILES / f"{codec.replace(':', '-')}.{what}.pt"


def training(codec):
    """A small DDP model with the hook, and its optimizer."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)))
    hook = thinwire.torch.hook(codec)
    model.register_comm_hook(*hook)
    return model, hook[0], torch.optim.SGD(model.parameters(), lr=0.1)


def run(model, optimizer, steps):
    """Makes steps, numbered from 0 on, on this rank's data."""
    import torch
    import torch.distributed as dist

    for step in steps:
        draw = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=draw)).square().sum().backward()
        optimizer.step()


def write():
    """Writes a state after three steps and the parameters after three more."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for codec in CODECS:
        model, hook, optimizer = training(codec)
        run(model, optimizer, range(3))
        saved = {"model": model.state_dict(), "hook": hook.state_dict()}
        torch.save(saved, file(codec, dist.get_rank()))
        run(model, optimizer, range(3, 6))
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), file(codec, "after"))
    dist.destroy_process_group()


def go_on():
    """Largest difference of the parameters that a state of version 0.1 leads to, by codec."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    differences = {}
    for codec in CODECS:
        saved = torch.load(file(codec, dist.get_rank()), weights_only=True)
        model, hook, optimizer = training(codec)
        model.load_state_dict(saved["model"])
        hook.load_state_dict(saved["hook"])
        run(model, optimizer, range(3, 6))
        after = torch.load(file(codec, "after"), weights_only=True)
        pairs = [(after[name], value) for name, value in model.state_dict().items()]
        differences[codec] = max(float((one - other).abs().max()) for one, other in pairs)
    dist.destroy_process_group()
    return differences


def test_states_of_version_0_1_go_on(ranks):
    for differences in ranks(2, go_on):
        assert all(difference < 1e-5 for difference in differences.values()), differences


if __name__ == "__main__":
    write()
