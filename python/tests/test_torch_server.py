"""Embeddings on parameter servers: they train as local ones do, and survive their servers."""

import copy
import json
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import launch
from servers import Job, client

pytestmark = pytest.mark.needs("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "torch_recommender.py"
ROWS, WIDTH, BATCH, STEPS = 40, 4, 12, 50
CLIP = 0.5


def batch(step):
    """Ids and labels of all workers together; some ids are there more than once."""
    import torch

    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, ROWS, (BATCH, 2), generator=generator)
    return ids, torch.randn(BATCH, 1, generator=generator)


def recommender(embedding):
    """A model of two ids."""
    import torch
    from torch import nn

    class Recommender(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.items = embedding
            self.top = nn.Linear(2 * WIDTH, 1)

        def forward(self, ids):
            return self.top(torch.tanh(self.items(ids)).flatten(1))

    return Recommender()


def train(optimizer, consistency, hybrid=False):
    """Trains as one of two workers, and returns its table and its dense parameters, before and after. A
    hybrid training has its dense parameters in DDP, and scales its loss and clips."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    torch.set_num_threads(1)
    embedding = thinwire.torch.ServerEmbedding(ROWS, WIDTH, initial="normal:0.5")
    model = whole = recommender(embedding)
    dense = torch.optim.SGD(model.parameters(), lr=0.3)
    if hybrid:
        dist.init_process_group("gloo")
        whole = DistributedDataParallel(model)
    server = thinwire.torch.ParameterServer(optimizer, consistency, seed=0, timeout_s=300.0)
    given = () if hybrid else model.parameters()
    stepper = thinwire.torch.ServerOptimizer(server, whole, given)
    scaler = torch.amp.GradScaler("cpu", enabled=hybrid)
    with server:
        seen, losses = [values(model)], []
        for step in range(STEPS):
            ids, labels = (part[server.rank :: server.world] for part in batch(step % 5))
            stepper.zero_grad()
            dense.zero_grad()
            loss = torch.nn.functional.mse_loss(whole(ids), labels)
            scaler.scale(loss).backward()
            if hybrid:
                scaler.unscale_(dense)
                torch.nn.utils.clip_grad_norm_(whole.parameters(), CLIP)
                scaler.step(dense)
            scaler.step(stepper)
            scaler.update()
            losses.append(loss.item())
        if hybrid:
            dist.destroy_process_group()
        return {"values": [*seen, values(model)], "losses": losses, "world": server.world}


def values(model):
    """All that the model has, as lists."""
    import torch

    with torch.no_grad():
        rows = model.items(torch.arange(ROWS))
    return [rows.tolist(), model.top.weight.tolist(), model.top.bias.tolist()]


@pytest.mark.parametrize("hybrid", [False, True])
def test_sync_with_sgd_is_training_by_all_reduce(ranks, tmp_path, hybrid):
    job = Job(tmp_path, workers=2)
    first, second = ranks(2, train, arguments=["sgd:lr=0.3", "sync", hybrid], env=job.environment)
    assert first["values"] == second["values"] and first["world"] == 2
    ranks(2, check_sgd, arguments=[*first["values"], CLIP if hybrid else 1e9])


def check_sgd(before, after, clip):
    """Checks, as one of two ranks, that SGD under DDP takes values from `before` to `after`."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = recommender(nn.Embedding(ROWS, WIDTH))
    with torch.no_grad():
        model.items.weight.copy_(torch.tensor(before[0]))
    assert values(model) == before
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(STEPS):
        ids, labels = (part[dist.get_rank() :: 2] for part in batch(step % 5))
        optimizer.zero_grad()
        nn.functional.mse_loss(replica(ids), labels).backward()
        # Of a table on servers, no rank knows the norm.
        nn.utils.clip_grad_norm_(model.top.parameters(), clip)
        optimizer.step()
    dist.destroy_process_group()
    for found, expected, began in zip(after, values(model), before):
        found, expected = torch.tensor(found), torch.tensor(expected)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert (expected - torch.tensor(began)).abs().max() > 1e-2


def learn_vertices():
    """Trains a layer of GraphSAGE and the rows of vertices without features, as one of two workers, on two
    blocks that their edges tell apart. Returns the accuracy on vertices that it has not trained on."""
    import torch
    from torch import nn

    import thinwire.torch
    from thinwire.torch.graph import Loader

    torch.manual_seed(0)
    torch.set_num_threads(1)
    vertices = torch.arange(400)
    near = (vertices[:, None] + 2 * torch.randint(1, 200, (400, 8))) % 400  # of the same block
    far = torch.randint(0, 400, (400, 2))
    ends = torch.cat([near, far], 1)
    edges = torch.stack([ends.flatten(), vertices.repeat_interleave(10)])
    data = SimpleNamespace(edge_index=edges, y=vertices % 2, num_nodes=400)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            rule = "lazyadam:lr=0.05"
            self.rows = thinwire.torch.ServerEmbedding(400, 8, optimizer=rule, initial="normal:0.1")
            self.own, self.others = nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, batch):
            rows, (source, end) = self.rows(batch.n_id), batch.edge_index
            count = torch.bincount(end, minlength=len(rows)).clamp(min=1)
            mean = torch.zeros_like(rows).index_add(0, end, rows[source]) / count[:, None]
            return (self.own(rows) + self.others(mean))[: batch.batch_size]

    network = Network()
    server = thinwire.torch.ParameterServer("adam:lr=0.02", "async", timeout_s=300.0)
    optimizer = thinwire.torch.ServerOptimizer(server, network, network.parameters())
    with server:
        training = vertices[vertices < 200][server.rank :: server.world]
        loader = Loader(data, [5], 20, training, shuffle=True)
        for batch in (batch for _ in range(12) for batch in loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(batch), batch.y[: batch.batch_size]).backward()
            optimizer.step()
        with torch.no_grad():
            (batch,) = Loader(data, [-1], 200, vertices[vertices >= 200])
            right = network(batch).argmax(1) == batch.y[: batch.batch_size]
        return float(right.float().mean())


def test_vertices_without_features_have_rows_on_servers(ranks, tmp_path):
    job = Job(tmp_path, workers=2)
    assert min(ranks(2, learn_vertices, env=job.environment)) > 0.9


def test_async_with_adagrad_learns(ranks, tmp_path):
    job = Job(tmp_path, workers=2)
    found = ranks(2, train, arguments=["adagrad:lr=0.1", "async"], env=job.environment)
    # How far each has come depends on who was first.
    first, last = (
        sum(sum(it["losses"][part]) for it in found) for part in (slice(5), slice(-5, None))
    )
    assert last < 0.85 * first


def test_the_recommender_learns(tmp_path):
    job = Job(tmp_path, workers=2)
    arguments = ["--rows", "1000", "--steps", "150"]
    outcomes = launch.run(2, EXAMPLE, arguments=arguments, env=job.environment)
    launch.results(outcomes)
    (found,) = re.findall(r"AUC ([\d.]+) of at most ([\d.]+)", "".join(e.stdout for e in outcomes))
    assert float(found[0]) > float(found[1]) - 0.05 > 0.65


def count(folder):
    """Adds one to every row in every step of two workers; waits after step 10 until a server is dead."""
    import torch

    import thinwire.torch

    model = thinwire.torch.ServerEmbedding(ROWS, WIDTH, initial="zeros")
    server = thinwire.torch.ParameterServer("sgd:lr=1", servers=3, timeout_s=300.0)
    optimizer = thinwire.torch.ServerOptimizer(server, model, weight=-1.0)
    everything = torch.arange(ROWS)
    with server:
        for step in range(STEPS):
            if step == 10:
                Path(folder, f"reached-{os.getpid()}").touch()
                waited(lambda: Path(folder, "killed").exists())
            model(everything).sum().backward()
            optimizer.step()
        return model(everything).unique().tolist()


def waited(is_so, timeout=launch.PATIENCE_S):
    """Waits until something is so."""
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline, f"not so within {timeout} s"
        time.sleep(0.01)


def test_training_goes_on_without_a_server_that_has_a_backup(ranks, tmp_path):
    job = Job(tmp_path, workers=2, servers=3)

    def kill():
        waited(lambda: len(list(tmp_path.glob("reached-*"))) == 2)
        job.servers.pop()
        (tmp_path / "killed").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    found = ranks(2, count, arguments=[str(tmp_path)], env=job.environment)
    killer.join()
    assert found == [[2 * STEPS], [2 * STEPS]]


def test_gradients_add_up_until_a_step(ranks, tmp_path):
    job = Job(tmp_path)
    ranks(1, add_up, arguments=[job.address])
    figures = [json.loads(each.figures()) for each in job.servers]
    assert sum(each["primaries"] for each in figures) == 16


def add_up(address):
    """Pushes sums of several backward passes."""
    import torch

    import thinwire.torch

    model = thinwire.torch.ServerEmbedding(ROWS, WIDTH, initial="zeros")
    server = client(address)
    optimizer = thinwire.torch.ServerOptimizer(server, model)

    def row(number):
        return -model(torch.tensor(number)).detach().unique().item()

    with server:
        model(torch.tensor([[1, 2], [2, 2]])).sum().backward()
        model(torch.tensor([2, 3], dtype=torch.int32)).sum().backward()
        assert row(2) == 0
        optimizer.step()
        assert [row(number) for number in range(5)] == [0, 1, 4, 1, 0]
        out = model(torch.tensor([4]))
        optimizer.zero_grad()  # after the forward pass, as some loops have it
        out.sum().backward()
        optimizer.step()
        assert row(4) == 1
        model(torch.tensor([4])).sum().backward()
        optimizer.zero_grad()
        model(torch.tensor([], dtype=torch.int64)).sum().backward()
        optimizer.step()
        assert row(4) == 1 and optimizer.steps == 3
    assert [*model.parameters()] == [model.batch] and not model.state_dict()


def test_mistakes_are_named_in_one_line(ranks, tmp_path):
    job = Job(tmp_path)
    ranks(1, err, arguments=[job.address])


def err(address):
    """Makes mistakes."""
    import torch

    import thinwire.torch
    from thinwire.torch import ParameterServer, ServerEmbedding, ServerOptimizer

    def said(call, *arguments, **options):
        with pytest.raises(thinwire.Error) as caught:
            call(*arguments, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    model = torch.nn.ModuleDict({"users": ServerEmbedding(ROWS, WIDTH)})
    users = model["users"]
    assert "has no servers (hint: make a" in said(users, torch.tensor(0))
    assert (
        said(ParameterServer, "sgd:lr=1", replicas=2) == "2 replicas with 2 servers, expected fewer"
    )
    alone = ParameterServer("sgd:lr=1")
    assert said(ServerOptimizer, alone, model).startswith("this process belongs to no elastic job")
    assert "has not joined the job" in said(lambda: alone.world)
    assert "has no thinwire.torch.ServerEmbedding" in said(
        ServerOptimizer, alone, torch.nn.Linear(1, 1)
    )

    server = client(address, "adam:lr=1")
    optimizer = ServerOptimizer(server, model)
    assert said(users, torch.tensor([1, ROWS])) == "row 40 of table 'users', expected below 40"
    assert said(users, torch.tensor([-1, 1])) == "row -1 of table 'users', expected 0 or more"
    assert said(users, torch.tensor(0.5)).endswith("are torch.float32, expected torch.int64")
    users(torch.tensor([3])).sum().backward()
    assert said(optimizer.step).startswith("1 rows of table 'users', expected all 40")
    assert "has joined already" in said(ServerOptimizer, server, model)
    other = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0).state_dict()
    found = said(optimizer.load_state_dict, other)
    assert found.startswith("the state has rules None, expected adam:lr=1 (hint: ")
    optimizer.load_state_dict(optimizer.state_dict())
    assert said(copy.deepcopy, optimizer).startswith("a ServerOptimizer cannot be copied")

    wide = torch.nn.ModuleDict({"users": ServerEmbedding(ROWS, WIDTH + 1)})
    found = said(ServerOptimizer, client(address, "adam:lr=1"), wide)
    assert found.startswith("table 'users' with width 5, in the job 4 (hint: ")
    found = said(ServerOptimizer, client(address, "sdg:lr=1"), model)
    assert found.startswith("table 'users': no optimiser 'sdg', expected")
    server.leave()
    assert said(optimizer.step).startswith("this worker has left the job of its servers")


def test_dense_parameters_begin_alike_and_follow_gradients_alone(ranks, tmp_path):
    job = Job(tmp_path)
    ranks(1, follow, arguments=[job.address])


def follow(address):
    """Trains dense parameters on servers, and begins in ways that are refused."""
    import torch

    import thinwire.torch
    from thinwire.torch import ServerOptimizer

    torch.manual_seed(0)
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    with pytest.raises(thinwire.InvalidError, match="adamw for dense parameters"):
        ServerOptimizer(client(address, "adamw:lr=1"), model, model.parameters())
    with pytest.raises(thinwire.InvalidError, match="does not belong to Linear"):
        ServerOptimizer(client(address), model, other.parameters())
    server = client(address, "adam:lr=0.1")
    with server:
        optimizer = ServerOptimizer(server, model, model.parameters())
        with pytest.raises(thinwire.InvalidError, match="initial values of dense parameters"):
            ServerOptimizer(client(address, "adam:lr=0.1"), other, other.parameters())
        began = model.weight.detach().clone()
        model.weight.sum().backward()
        optimizer.step()
        torch.testing.assert_close(model.weight, began - 0.1)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rows": "5"}, 'rows "5", expected a whole number of at least 1'),
        ({"width": 2.5}, "width 2.5, expected a whole number of at least 1"),
        ({"initial": 5}, "initial is 5, expected str"),
        ({"optimizer": 5}, "optimizer is 5, expected str or None"),
        ({"cache": "64 apples"}, 'cache "64 apples", expected bytes, or text such as "64MB"'),
        ({"staleness": -1}, "staleness -1, expected a whole number of at least 0"),
        ({"staleness": "1"}, 'staleness "1", expected a whole number of at least 0'),
        ({"ids": [1, 2]}, "ids of '' are list, expected torch.int64"),
        ({"ids": 0.5}, "ids of '' are 0.5, expected torch.int64"),
    ],
)
def test_what_is_no_embedding_is_named(change, message):
    import thinwire
    from thinwire.torch import ServerEmbedding

    arguments = {"rows": ROWS, "width": WIDTH, "ids": None} | change
    ids = arguments.pop("ids")
    with pytest.raises(thinwire.InvalidError, match=message):
        ServerEmbedding(**arguments)(ids)


def test_rows_are_kept_for_some_steps_and_never_lack_own_gradients(ranks, tmp_path):
    job = Job(tmp_path)
    ranks(1, keep, arguments=[job.address])


def keep(address):
    """Looks rows up through a cache, with values rounded on their way."""
    import torch

    import thinwire
    from thinwire.torch import ServerEmbedding, ServerOptimizer

    for wrong in ("64 apples", "MB", "-1"):
        with pytest.raises(thinwire.InvalidError, match="expected bytes, or text such as"):
            ServerEmbedding(ROWS, WIDTH, cache=wrong)
    model = ServerEmbedding(ROWS, WIDTH, initial="zeros", codec="f16", cache="64kB", staleness=1)
    assert model.served.cache_bytes == 64_000 and model.cache_stats == {}
    server = client(address)
    optimizer = ServerOptimizer(server, model)
    with server:
        for step in range(3):
            # Row 1 is pushed in each step, row 2 is only read.
            out = model(torch.tensor([1, 1]))
            with torch.no_grad():
                assert model(torch.tensor([1, 2]))[:, 0].tolist() == [-2.0 * step, 0.0]
            out.select(1, 0).sum().backward()
            optimizer.step()
        stats = model.cache_stats
    assert (stats["lookups"], stats["hits"], stats["misses"]) == (6, 4, 5), stats
