"""Gradients of tables on servers: what changes them between backward and step reaches them."""

import functools

import pytest

from servers import Job, client

pytestmark = pytest.mark.needs("torch")

MODELS, STEPS = 50, 4


def test_tables_train_as_local_ones_under_clipping_scaling_freezing_and_accumulation(
    ranks, tmp_path
):
    job = Job(tmp_path, servers=1)
    ranks(1, compare, arguments=[job.address])


def network(embedding, width):
    """A model that looks ids up twice in one forward pass."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.items, self.top = embedding, nn.Linear(2 * width, 1)

        def forward(self, ids):
            return self.top(torch.cat([self.items(ids[0]), self.items(ids[1])], -1)).tanh()

    return Network()


def drawn(seed):
    """A random model and how it is trained."""
    import random

    draw = random.Random(seed)
    return {
        "rows": draw.randint(2, 40),
        "width": draw.randint(1, 6),
        "rule": draw.choice(["sgd", "adagrad"]),
        "rate": draw.choice([0.25, 0.25, 0.1, 0.0]),
        "micro": draw.randint(1, 3),
        "clip": draw.choice(["none", "norm", "inf", "value", "late"]),
        "is_scaled": draw.random() < 0.5,
        "frozen": [draw.random() < 0.25 for _ in range(STEPS)],
        "huge": [draw.random() < 0.25 for _ in range(STEPS)],
        "decays": draw.random() < 0.5,
    }


def compare(address):
    """Trains random models beside equal ones with `nn.Embedding`, by the same loop."""
    import torch
    from torch import nn

    from thinwire.torch import ServerEmbedding, ServerOptimizer

    torch.set_num_threads(1)
    cases = [drawn(seed) for seed in range(MODELS)]
    tables = [
        ServerEmbedding(
            it["rows"], it["width"], initial="normal:0.5", optimizer=f"{it['rule']}:lr={it['rate']}"
        )
        for it in cases
    ]
    served = nn.ModuleList(network(table, it["width"]) for table, it in zip(tables, cases))
    server = client(address, servers=1)
    stepper = ServerOptimizer(server, served)
    exact = moved = 0
    with server:
        for seed, (case, model) in enumerate(zip(cases, served)):
            local = network(nn.Embedding(case["rows"], case["width"]), case["width"])
            local.top.load_state_dict(model.top.state_dict())
            with torch.no_grad():
                began = model.items(torch.arange(case["rows"]))
                local.items.weight.copy_(began)
            kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[case["rule"]]
            theirs = [
                kind(local.items.parameters(), case["rate"]),
                torch.optim.SGD(local.top.parameters()),
            ]
            train(local, theirs, case, seed)
            train(model, [stepper, torch.optim.SGD(model.top.parameters())], case, seed)
            with torch.no_grad():
                found, expected = model.items(torch.arange(case["rows"])), local.items.weight
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=f"{seed} {case}")
            torch.testing.assert_close(model.top.weight, local.top.weight, rtol=1e-5, atol=1e-6)
            exact += torch.equal(found, expected)
            moved += not torch.equal(found, began)
    assert exact > MODELS // 4 and moved > MODELS // 2, (exact, moved)


def train(model, optimizers, case, seed):
    """Makes steps as a user of torch does."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=case["is_scaled"])
    groups = optimizers[0].param_groups
    # The rates of other rules are constant on servers.
    factor = 0.5 if case["decays"] and case["rule"] == "sgd" else 1.0
    of_group = [factor if group.get("rule", "sgd").startswith("sgd") else 1.0 for group in groups]
    decay = [functools.partial(pow, each) for each in of_group]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizers[0], decay)
    for frozen, huge in zip(case["frozen"], case["huge"]):
        for each in optimizers:
            each.zero_grad()
        model.items.requires_grad_(not frozen)
        for _ in range(case["micro"]):
            ids = torch.randint(0, case["rows"], (2, 5), generator=draw)
            loss = (model(ids) - torch.randn(5, 1, generator=draw)).square().mean() / case["micro"]
            # Scaled, the loss of such a step overflows.
            scaler.scale(loss * (1e36 if huge and case["is_scaled"] else 10)).backward()
        if case["clip"] != "none":
            # Without gradients, a local optimizer has nothing to unscale.
            for each in optimizers:
                scaler.unscale_(each)
        if case["clip"] in ("norm", "inf", "late"):
            kind = float("inf") if case["clip"] == "inf" else 2.0
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, kind)
        if case["clip"] in ("value", "late"):
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
        for each in optimizers:
            has = any(p.grad is not None for group in each.param_groups for p in group["params"])
            if has:
                scaler.step(each)
        scaler.update()
        scheduler.step()
    for group in groups:
        group["lr"] = group["initial_lr"]


def test_tables_are_parameters_among_others(ranks, tmp_path):
    job = Job(tmp_path, servers=1)
    ranks(1, behave, arguments=[job.address])


def tied(embedding):
    """A model with one embedding under two names."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.ModuleDict({"a": embedding, "top": nn.Linear(4, 1)})
    model["b"] = model["a"]
    return model


def behave(address):
    """Treats one model as users treat theirs."""
    import copy
    import io

    import torch
    from torch import nn

    import thinwire
    from thinwire.torch import ServerEmbedding, ServerOptimizer

    def said(call, *arguments):
        with pytest.raises(thinwire.InvalidError) as caught:
            call(*arguments)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    ids = torch.tensor([1, 2, 2])
    model = tied(ServerEmbedding(10, 4, initial="zeros"))
    table = model["a"]
    copy.deepcopy(model)  # before it has servers
    server = client(address, servers=1)
    stepper = ServerOptimizer(server, torch.compile(model, backend="eager"))
    assert table.served.name == "a"
    # A worker that does not compile has the same tables.
    with client(address, servers=1) as other:
        ServerOptimizer(other, tied(ServerEmbedding(10, 4, initial="zeros")))

    def moved(number=2):
        return -table(torch.tensor(number)).detach().unique().item()

    with server:
        local = tied(nn.Embedding(10, 4))
        assert local.load_state_dict(stepper.full_state_dict()) and not local["a"].weight.any()
        assert list(stepper.full_state_dict()) == ["top.weight", "top.bias", "a.weight", "b.weight"]
        assert model.state_dict().keys() == {"top.weight", "top.bias"}
        assert sum(each.numel() for each in model.parameters()) == 5
        for call in (copy.deepcopy, torch.optim.swa_utils.AveragedModel):
            assert said(call, model).startswith("table 'a' is on servers, so its module cannot")
        assert said(torch.save, model, io.BytesIO()).startswith("table 'a' is on servers")

        # An optimizer of all parameters neither applies gradients of tables nor remembers them.
        adam = torch.optim.Adam(model.parameters())
        for count in range(3):
            (table(ids[count:]).sum() + model["top"](torch.ones(4))).sum().backward()
            adam.step()
            stepper.step()
            adam.zero_grad()
        assert moved() == 2 + 2 + 1 and moved(1) == 1 and table.batch not in adam.state
        # Hooks of the parameter see gradients of lookups, compiled as well.
        handle = table.batch.register_hook(lambda gradient: gradient * 10)
        torch.compile(table, backend="aot_eager")(ids).sum().backward()
        assert table.batch.grad.tolist() == [[10.0] * 4, [20.0] * 4]
        handle.remove()
        model.zero_grad()  # drops gradients, as of any parameter
        stepper.step()
        assert moved() == 5
        # Frozen before the lookup, or before the step.
        model.requires_grad_(False)
        assert not table(ids).requires_grad
        stepper.step()
        model.requires_grad_(True)
        table(ids).sum().backward()
        table.requires_grad_(False)
        stepper.step()
        table.requires_grad_(True)
        assert moved() == 5

        # A step of infinity counts, and pushes nothing.
        assert stepper.other_parameters() == [*model["top"].parameters()]
        scaler = torch.amp.GradScaler("cpu")
        steps, scale = stepper.steps, scaler.get_scale()
        for factor in (1e38, 1):
            scaler.scale(table(ids).sum() * factor).backward()
            scaler.step(stepper)
            scaler.update()
        assert moved() == 7 and stepper.steps == steps + 2 and scaler.get_scale() == scale / 2
        scaler.scale(table(ids).sum() + model["top"](torch.ones(4)).sum()).backward()
        assert said(scaler.step, adam).startswith("Adam has the parameters of tables, so that a Gr")
