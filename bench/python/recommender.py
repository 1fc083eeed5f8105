"""One training of the recommender of examples/python/torch_recommender.py, by one method.

    recommender.py server|ddp|torchrec|single [--workers N] [--servers N] [--rows N] [--width N] ...

Run once per rank (RANK, MASTER_ADDR and MASTER_PORT say where): ranks below `--workers` train, the others
are servers. `ddp` has `nn.Embedding(sparse=True)` in every rank under DistributedDataParallel over gloo,
`torchrec` has the rows of an `EmbeddingCollection` split among the workers, over gloo too, and `single`
is one process with the batches of all. All follow the same rule, Adagrad (that of torchrec's tables has
one state per row), and see the same samples. Rank 0 prints one JSON object: samples per second of all
workers together in the median of its windows, and the area under the ROC curve.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/python"))
import torch_recommender as example

RATE = 0.05
DEVIATION = 0.1
TOKEN = os.environ.get("THINWIRE_TOKEN", "measured between namespaces")
WINDOWS = 5


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    options.table_rows = options.fields * options.rows
    if rank >= options.workers:
        return serve()
    method = {
        "server": train_server,
        "ddp": train_ddp,
        "torchrec": train_torchrec,
        "single": train_single,
    }
    found = method[options.method](options, rank)
    if rank == 0:
        settings = {
            name: getattr(options, name)
            for name in ("method", "workers", "servers", "batch", "steps", "width")
        }
        place = {"network": os.environ.get("NETWORK", "loopback"), "rows": options.table_rows}
        settings["method"] += options.label
        print(json.dumps({**settings, **place, **found}), flush=True)


def serve() -> None:
    """Serves until the coordinator has gone."""
    from thinwire._core import Server

    host, port = coordinator().split(":")
    attempt(lambda: socket.create_connection((host, port)).close())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((host, int(port)))
        own = towards.getsockname()[0]
    _server = Server(coordinator(), TOKEN, listen=f"{own}:0")
    while True:
        time.sleep(0.5)
        try:
            socket.create_connection((host, port)).close()
        except OSError:
            return


def coordinator() -> str:
    return f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"


def attempt(call):
    """Calls until it does not fail, for a minute at most."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def train_server(options, rank: int) -> dict:
    import thinwire.torch
    from thinwire._core import Coordinator

    state = Path(os.environ.get("TMPDIR", "/tmp")) / f"recommender-{os.getpid()}"
    if rank == 0:
        # It lives as long as this process.
        host = Coordinator(coordinator(), TOKEN, options.workers, state=state, servers=True)
    os.environ |= {
        "THINWIRE_COORDINATOR": coordinator(),
        "THINWIRE_TOKEN": TOKEN,
        "THINWIRE_MEMBER": "new",
    }
    extra = {"cache": options.cache, "staleness": options.staleness} if options.cache else {}
    extra |= {"values": options.values} if options.values else {}
    initial = f"normal:{DEVIATION}"
    table = thinwire.torch.ServerEmbedding(
        options.table_rows, options.width, initial=initial, **extra
    )
    model = made(options, table)
    server = attempt(
        lambda: thinwire.torch.ParameterServer(
            f"adagrad:lr={RATE}",
            options.consistency,
            servers=options.servers,
            replicas=options.backups,
        )
    )
    optimizer = thinwire.torch.ServerOptimizer(server, model, model.parameters())
    with server:
        found = measured(options, model, optimizer, (server.rank, server.world))
    if rank == 0:
        del host
        state.unlink(missing_ok=True)
    return found


def train_ddp(options, rank: int) -> dict:
    from torch.nn.parallel import DistributedDataParallel

    with workers(options, rank):
        model = made(options, local_table(options))
        optimizer = torch.optim.Adagrad(model.parameters(), RATE)
        # Rank 0 alone tests, and buffers are constants.
        whole = DistributedDataParallel(model, broadcast_buffers=False)
        return measured(options, whole, optimizer, (rank, options.workers))


@contextlib.contextmanager
def workers(options, rank: int):
    """A gloo group of the workers, without the servers."""
    import torch.distributed as dist

    if interface := os.environ.get("NETWORK_INTERFACE"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group("gloo", rank=rank, world_size=options.workers)
    yield
    dist.barrier()
    dist.destroy_process_group()


class Collection(nn.Module):
    """The rows of one table as torchrec keeps them, in the shape of `nn.Embedding`."""

    def __init__(self, options) -> None:
        import torchrec

        super().__init__()
        normal = lambda weight: nn.init.normal_(weight, std=DEVIATION)  # noqa: E731
        config = torchrec.EmbeddingConfig(
            name="ids",
            num_embeddings=options.table_rows,
            embedding_dim=options.width,
            feature_names=["ids"],
            init_fn=normal,
        )
        self.tables = torchrec.EmbeddingCollection(tables=[config], device=torch.device("meta"))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        import torchrec

        values = ids.flatten()
        lengths = torch.ones(len(values), dtype=torch.int32)
        jagged = torchrec.KeyedJaggedTensor(keys=["ids"], values=values, lengths=lengths)
        return self.tables(jagged)["ids"].values().view(*ids.shape, -1)


def train_torchrec(options, rank: int) -> dict:
    import torch.distributed as dist
    import torchrec.distributed as distributed
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.optim import RowWiseAdagrad, apply_optimizer_in_backward

    with workers(options, rank):
        model = made(options, Collection(options))
        apply_optimizer_in_backward(RowWiseAdagrad, model.ids.parameters(), {"lr": RATE})
        rows = {"ids": ParameterConstraints(sharding_types=["row_wise"])}
        topology = Topology(options.workers, "cpu", local_world_size=options.workers)
        sharders = [EmbeddingCollectionSharder()]
        planner = EmbeddingShardingPlanner(topology, constraints=rows)
        plan = planner.collective_plan(model, sharders, dist.group.WORLD)
        whole = distributed.DistributedModelParallel(
            model, device=torch.device("cpu"), plan=plan, sharders=sharders
        )
        dense = [p for name, p in whole.named_parameters() if "tables" not in name]
        optimizer = torch.optim.Adagrad(dense, RATE)
        return measured(options, whole, optimizer, (rank, options.workers))


def train_single(options, rank: int) -> dict:
    model = made(options, local_table(options))
    return measured(options, model, torch.optim.Adagrad(model.parameters(), RATE), (0, 1))


def local_table(options) -> nn.Module:
    table = nn.Embedding(options.table_rows, options.width, sparse=True)
    nn.init.normal_(table.weight, std=DEVIATION)
    return table


def made(options, table: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return example.Recommender(options.fields, options.width, table)


def measured(options, model, optimizer, place) -> dict:
    """Trains, and returns speed and quality. One process alone takes the batches of all workers."""
    rank, world = place
    log = example.Log(options.fields, options.rows)
    alone = options.workers // world
    times = []
    for step in range(options.steps):
        parts = [
            log.read(1 + step * options.workers + rank * alone + it, options.batch)
            for it in range(alone)
        ]
        ids, numbers, clicks = (torch.cat([part[at] for part in parts]) for at in range(3))
        begun = time.perf_counter()
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(ids, numbers), clicks).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    size = -(-len(times) // WINDOWS)
    windows = [times[at : at + size] for at in range(0, len(times), size)]
    # The first window has the first touch of memory and connections.
    speeds = [len(it) * options.batch * options.workers / sum(it) for it in windows[1:] or windows]
    result = {"samples_per_s": statistics.median(speeds)}
    # A forward of torchrec is one of all workers.
    if rank == 0 or options.method == "torchrec":
        ids, numbers, clicks, truth = log.read(0, options.test)
        with torch.no_grad():
            parts = [
                model(i, n) for i, n in zip(ids.split(options.batch), numbers.split(options.batch))
            ]
        result |= {
            "auc": example.area(torch.cat(parts), clicks),
            "auc_truth": example.area(truth, clicks),
        }
    return result


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("method", choices=["server", "ddp", "torchrec", "single"])
    texts = {"consistency": "sync", "cache": "", "values": "", "label": ""}
    numbers = {"workers": 2, "servers": 2, "backups": 0, "staleness": 0}
    numbers |= {
        "fields": 10,
        "rows": 1_000_000,
        "width": 16,
        "batch": 1024,
        "steps": 60,
        "test": 50_000,
    }
    for name, value in {**texts, **numbers}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
