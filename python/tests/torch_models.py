"""Small models for the tests of PyTorch, with data that each rank draws for itself, and training loops."""

import contextlib
import functools
import hashlib
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, CONTEXT, WIDTH = 32, 16, 32


def holder(kind: str) -> type:
    """What holds the tensors of a graph: PyG's `Data` for "pyg", else a plain object."""
    if kind != "pyg":
        return SimpleNamespace
    return pytest.importorskip("torch_geometric.data", reason="pip install torch-geometric").Data


def mlp() -> nn.Module:
    """Three layers; DDP makes several buckets of them with a small `bucket_cap_mb`."""
    return nn.Sequential(
        nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 10)
    )


def cnn() -> nn.Module:
    """Convolutions with batch normalisation: parameters of four dimensions, and buffers."""
    return nn.Sequential(
        *[nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()],
        *[nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)],
    )


class GPT(nn.Module):
    """A transformer of two blocks over characters, with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(tokens) + self.places(torch.arange(length))
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(self.norm(hidden)).transpose(1, 2)


class Experts(nn.Module):
    """Parameters and modules of such, of which each step uses some; the gradient of one is what it is
    multiplied with."""

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], blocks: dict[str, "Experts"] | None = None
    ) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        self.blocks = nn.ModuleDict(blocks or {})

    def forward(self, factors: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = [
            (getattr(self, name) * factor).sum()
            for name, factor in factors.items()
            if "." not in name
        ]
        for name, block in self.blocks.items():
            prefix = f"blocks.{name}."
            names = [each for each in factors if each.startswith(prefix)]
            if names:
                parts.append(block({each.removeprefix(prefix): factors[each] for each in names}))
        return torch.stack(parts).sum()


class Mixed(nn.Module):
    """Layers of two dtypes: DDP puts each dtype in buckets of its own, also in a first step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 10).bfloat16()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs).tanh().bfloat16())


class Branches(nn.Module):
    """Two layers of which each step uses one only, and one that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(16, 10), nn.Linear(16, 10)])
        self.never = nn.Linear(16, 10)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.branches[(self.calls + dist.get_rank()) % 2](inputs)


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": GPT, "mixed": Mixed, "branches": Branches}


def batch(name: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes, learnable: the class is a function of the input."""
    if name == "gpt":
        start = torch.randint(VOCABULARY, (4, 1), generator=generator)
        tokens = (start + 3 * torch.arange(CONTEXT + 1)) % VOCABULARY
        return tokens[:, :-1], tokens[:, 1:]
    shape = (8, 3, 8, 8) if name == "cnn" else (8, 16)
    inputs = torch.randn(shape, generator=generator)
    return inputs, inputs.flatten(1)[:, :10].argmax(1)


def wrapped(name: str, hook=None, dtype=None, **options) -> DistributedDataParallel:
    """The model called `name` in DDP, in several small buckets, with `hook` if one is given."""
    torch.manual_seed(7)
    options = {"bucket_cap_mb": 0.02, **options}
    model = MODELS[name]().to(options.pop("device", "cpu"))
    model = DistributedDataParallel(model if dtype is None else model.to(dtype), **options)
    if hook is not None:
        model.register_comm_hook(*hook)
    return model


class Training:
    """A training loop that can be continued: model, optimizer, and this rank's data."""

    def __init__(
        self, name: str, model: nn.Module, rate: float = 0.05, momentum: float = 0.9
    ) -> None:
        self.name, self.model = name, model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.data = torch.Generator().manual_seed(1000 + rank)
        self.losses: list[float] = []

    def run(self, steps: int, accumulate: int = 1) -> "Training":
        """Trains on; with `accumulate`, gradients of so many batches make one step."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            for part in range(accumulate):
                quiet = part + 1 < accumulate
                with self.model.no_sync() if quiet else contextlib.nullcontext():
                    loss = self.loss()
                    loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
        return self

    def loss(self) -> torch.Tensor:
        """The loss of the next batch."""
        inputs, classes = batch(self.name, self.data)
        first = next(self.model.parameters())
        inputs = inputs.to(first.device, first.dtype if inputs.is_floating_point() else None)
        return cross_entropy(self.model(inputs).float(), classes.to(first.device))

    def fell(self) -> bool:
        """Whether the loss at the end is clearly lower than at the beginning."""
        few = max(1, len(self.losses) // 5)
        return sum(self.losses[-few:]) < 0.8 * sum(self.losses[:few])


def weights(model: nn.Module) -> torch.Tensor:
    """All parameters and buffers in one row."""
    return torch.cat([value.detach().double().reshape(-1) for value in model.state_dict().values()])


def digest(model: nn.Module) -> str:
    """A hash of all parameters, bit for bit."""
    content = b"".join(
        value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for value in model.parameters()
    )
    return hashlib.sha256(content).hexdigest()


def past_a_barrier() -> None:
    """A barrier that every rank has come back from when this returns, once in a process.

    After a plain barrier the last messages may be on their way yet, and what ends a rank then ends
    the others' barrier, not what they do next.
    """
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"past the barrier {dist.get_rank()}", "")
    store.wait([f"past the barrier {rank}" for rank in range(dist.get_world_size())])


@functools.cache
def without_hook(name, steps, accumulate, dtype, **options):
    """The parameters after a training with DDP alone."""
    model = wrapped(name, dtype=dtype, **options)
    Training(name, model).run(steps, accumulate)
    return weights(model)
