"""Tables on servers and files: they begin with checkpoints and snapshots, and go back to torch."""

import pytest

from servers import Job, client

pytestmark = pytest.mark.needs("torch")

ROWS, WIDTH = 40, 4


def model(embedding):
    """An embedding and a layer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.ModuleDict({"users": embedding, "top": nn.Linear(WIDTH, 1)})


def train(server, network, steps):
    """Pushes ones to some rows in each step, by `sgd:lr=1`; returns the state of the whole model."""
    import torch

    import thinwire.torch

    optimizer = thinwire.torch.ServerOptimizer(server, network, network.parameters(), weight=1.0)
    with server:
        for step in range(steps):
            optimizer.zero_grad()
            network["users"](torch.tensor([step, step, ROWS - 1])).sum().backward()
            optimizer.step()
        return optimizer.full_state_dict()


def test_a_table_begins_with_a_checkpoint_and_goes_back_to_torch(ranks, tmp_path):
    path = tmp_path / "model.safetensors"
    ranks(1, save, arguments=[str(path)])
    job = Job(tmp_path, workers=2, servers=2, restore=path)
    ranks(2, warm, arguments=[job.address, str(path)])
    ranks(1, mistake, arguments=[str(path)])


def save(path):
    """Saves a model with nn.Embedding, in two types of numbers."""
    import torch
    from safetensors.torch import save_file

    plain = model(torch.nn.Embedding(ROWS, WIDTH)).state_dict()
    save_file({**plain, "users.weight": plain["users.weight"].to(torch.bfloat16)}, path)


def warm(address, path):
    """Trains from a saved model as one of two workers."""
    import torch
    from safetensors.torch import load_file

    import thinwire.torch

    began = load_file(path)
    network = model(thinwire.torch.ServerEmbedding(ROWS, WIDTH, initial="checkpoint"))
    network["top"].load_state_dict({"weight": began["top.weight"], "bias": began["top.bias"]})
    server = client(address, restore=path)
    ended = train(server, network, 3)
    expected = began["users.weight"].float()
    # Both workers push alike, a repeated row twice.
    for step in range(3):
        expected[step] -= 4
    expected[ROWS - 1] -= 6
    torch.testing.assert_close(ended["users.weight"], expected)
    plain = model(torch.nn.Embedding(ROWS, WIDTH))
    plain.load_state_dict(ended)
    assert torch.equal(plain["users"].weight, ended["users.weight"])
    assert torch.equal(plain["top"].weight, network["top"].weight)


def mistake(path):
    """Names files that are none, or of another model."""
    import thinwire
    from thinwire.torch import ServerEmbedding

    def said(embedding, **options):
        network = model(embedding)
        with pytest.raises(thinwire.InvalidError) as caught:
            train(client("127.0.0.1:9", **options), network, 0)
        return str(caught.value)

    begins = {"initial": "checkpoint"}
    found = said(ServerEmbedding(ROWS, WIDTH, **begins))
    assert found.startswith(
        "table 'users' begins with a checkpoint, but the job has none (hint: give"
    )
    found = said(ServerEmbedding(ROWS, WIDTH + 1, **begins), restore=path)
    assert found.endswith("model.safetensors is [40, 4], expected [40, 5]")
    found = said(ServerEmbedding(ROWS, WIDTH), restore=path)
    assert found.startswith("no table begins with ")
    found = said(ServerEmbedding(ROWS, WIDTH), restore="nowhere")
    assert found.startswith("no snapshot at nowhere: nowhere/manifest.json: No such file")


def test_a_snapshot_has_all_pushes_and_is_restored(ranks, tmp_path):
    folder = tmp_path / "snapshots"
    job = Job(tmp_path, workers=2, servers=2, snapshots=folder)
    states = ranks(2, snap, arguments=[job.address])
    # Whoever joined first is the job's rank 0, whichever process that is.
    ((name, state),) = [taken for taken in states if taken[0] is not None]
    assert name == "snapshot-000001"
    # A server ends as its object does.
    job.servers.clear()
    again = Job(tmp_path / "again", servers=1, restore=folder)
    assert ranks(1, go_on, arguments=[again.address, str(folder)]) == [state]


def snap(address):
    """Trains as one of two workers, the first of which takes a snapshot between two steps."""
    import torch

    import thinwire.torch

    network = thinwire.torch.ServerEmbedding(ROWS, WIDTH)
    server = client(address)
    optimizer = thinwire.torch.ServerOptimizer(server, network, weight=1.0)
    rank = server.rank
    with server:
        network(torch.arange(5)).sum().backward()
        optimizer.step()
        name = server.snapshot() if rank == 0 else None
        state = network(torch.arange(ROWS)).tolist()
        network(torch.arange(7)).sum().backward()
        optimizer.step()
        return name, state


def go_on(address, folder):
    """The values of a job that begins with a snapshot."""
    import torch

    import thinwire.torch

    network = thinwire.torch.ServerEmbedding(ROWS, WIDTH)
    server = client(address, restore=folder, servers=1)
    thinwire.torch.ServerOptimizer(server, network)
    with server:
        return network(torch.arange(ROWS)).tolist()
