"""Thinwire for PyTorch.

    import thinwire.torch

    thinwire.torch.attach(model, codec="auto")                     # DDP
    thinwire.torch.fsdp(model, codec="int8")                       # FSDP2, after fully_shard
    rounds = thinwire.torch.Rounds(model, "diloco:30,fragments=4,delay=5")  # rounds.step() after every step
    optimizer = thinwire.torch.OneBitAdam(model.parameters(), lr=1e-3)  # momenta of one bit travel
    adaptation = thinwire.torch.Adaptation(model, ["noise-scale:max=512"], batch=64, rows=10**6)
    elastic = thinwire.torch.Elastic(model, optimizer, batch=512)  # ranks come and go
    optimizer = thinwire.torch.ServerOptimizer(server, model)      # tables on parameter servers
    torch.distributed.init_process_group("thinwire")               # everything else
    log = thinwire.torch.tensorboard(SummaryWriter())              # log(hook) after every step
    thinwire.torch.export_graph(model, (tokens,), "model.json")    # for thinwire plan make

Importing this registers the c10d backend "thinwire".
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"thinwire.torch needs PyTorch ({error}) (hint: pip install torch)") from None

from thinwire.records import tensorboard, tracker
from thinwire.server.job import ParameterServer
from thinwire.torch.adaptation import Adaptation
from thinwire.torch.attach import attach
from thinwire.torch.backend import ProcessGroup
from thinwire.torch.elastic.job import Elastic
from thinwire.torch.export import export_graph
from thinwire.torch.fsdp import fsdp
from thinwire.torch.hook import Hook, hook
from thinwire.torch.local import DiLoCo, LocalSGD
from thinwire.torch.onebit import OneBitAdam
from thinwire.torch.pairs import PairAveraging
from thinwire.torch.resharded import resharded
from thinwire.torch.rounds import Rounds
from thinwire.torch.server.embedding import ServerEmbedding
from thinwire.torch.server.optimizer import ServerOptimizer

__all__ = [
    "Adaptation",
    "DiLoCo",
    "Elastic",
    "Hook",
    "LocalSGD",
    "OneBitAdam",
    "PairAveraging",
    "ParameterServer",
    "ProcessGroup",
    "Rounds",
    "ServerEmbedding",
    "ServerOptimizer",
    "attach",
    "export_graph",
    "fsdp",
    "hook",
    "resharded",
    "tensorboard",
    "tracker",
]

# These need other frameworks, or take a while.
_SUBMODULES = ("accelerate", "graph", "lightning", "ray", "transformers")


def __getattr__(name: str) -> object:
    if name not in _SUBMODULES:
        raise AttributeError(f"module 'thinwire.torch' has no attribute '{name}'")
    from importlib import import_module

    return import_module(f"thinwire.torch.{name}")
