"""The hook of a DDP model over its own ranks, in every way of calling backward; and what is refused."""

import functools
import inspect

import pytest

pytestmark = pytest.mark.needs("torch")

LINE_MAX = 400


def said(action):
    """What an action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def over_groups():
    """Gradients of models over two pairs, groups that overlap, one rank each, and a dimension of a mesh."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def groups(*lists):
        made = [(each, dist.new_group(each)) for each in lists]
        return [group for each, group in made if rank in each]

    def gradient(**where):
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False), **where)
        hook = thinwire.torch.attach(model, "none")
        for _ in range(2):
            model.zero_grad()
            model(torch.full((1, 1), rank + 1.0)).sum().backward()
        assert hook.group.world == dist.get_world_size(model.process_group)
        return model.module.weight.grad.item()

    (pair,) = groups([0, 1], [2, 3])
    (alone,) = groups([0], [1], [2], [3])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    seen = {
        "all": gradient(),
        "pairs": gradient(process_group=pair),
        "overlapping": [gradient(process_group=each) for each in groups([0, 1, 2], [1, 3])],
        "alone": gradient(process_group=alone),
        "mesh": gradient(device_mesh=mesh["replicate"]),
    }
    hooked = DistributedDataParallel(nn.Linear(1, 1), process_group=pair)
    hooked.register_comm_hook(*thinwire.torch.hook("none"))
    dist.barrier()  # The error of one rank reaches others before what it sent earlier.
    seen["hook"] = said(lambda: hooked(torch.ones(1, 1)).sum().backward())
    dist.barrier()
    model = DistributedDataParallel(nn.Linear(1, 1), process_group=pair)
    seen["attach"] = said(lambda: thinwire.torch.attach(model, group=dist.group.WORLD))
    dist.destroy_process_group()
    return seen


def test_gradients_are_averaged_over_the_ranks_of_the_model(ranks):
    seen = ranks(4, over_groups)
    by_case = {case: [each[case] for each in seen] for case in seen[0]}
    assert by_case["all"] == [2.5] * 4
    assert by_case["pairs"] == [1.5, 1.5, 3.5, 3.5]
    assert by_case["overlapping"] == [[2.0], [2.0, 3.0], [2.0], [3.0]]
    assert by_case["alone"] == [1.0, 2.0, 3.0, 4.0]
    assert by_case["mesh"] == [2.0, 3.0, 2.0, 3.0]
    for rank, each in enumerate(seen):
        own = "0, 1" if rank < 2 else "2, 3"
        line = f"the model averages over ranks {own}, but its hook over ranks 0, 1, 2, 3 (hint: "
        assert each["hook"].startswith(("InvalidError: the model averages over ranks", "PeerError"))
        assert "hint: thinwire.torch.attach(model)" in each["hook"]
        assert each["attach"].startswith(f"InvalidError: {line}")


def network(way):
    """Six layers that call backward inside backward in some way."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Again(torch.autograd.Function):
        """A layer whose backward computes it again."""

        @staticmethod
        def forward(context, layer, inputs):
            context.layer = layer
            context.save_for_backward(inputs)
            return layer(inputs)

        @staticmethod
        def backward(context, gradient):
            inputs = context.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                context.layer(inputs).backward(gradient)
            return None, inputs.grad

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 96)
            self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(6))
            self.phases = nn.Parameter(torch.randn(96, dtype=torch.complex64))

        def forward(self, inputs):
            hidden = (self.first(inputs) * self.phases).abs()
            return self.nested(hidden, 0) if way == "nested" else self.chained(hidden)

        def chained(self, hidden):
            for place, layer in enumerate(self.layers):
                if way == "function":
                    hidden = Again.apply(layer, hidden)
                else:
                    inner = way == "reentrant" or place % 2 == 0
                    hidden = checkpoint(layer, hidden, use_reentrant=inner)
            return hidden

        def nested(self, hidden, place):
            if place == len(self.layers):
                return hidden
            hidden = checkpoint(self.layers[place], hidden, use_reentrant=True)
            return checkpoint(self.nested, hidden, place + 1, use_reentrant=True)

    torch.manual_seed(1)
    return Network()


def numbers():
    """Differences of parameters from those of plain DDP, by the way in which backward is called."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch
    from torch_models import Training, weights, wrapped

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def trained(ways, attach, **options):
        models = [DistributedDataParallel(network(way), **options) for way in ways]
        for model in models if attach else ():
            thinwire.torch.attach(model, "none")
        generator = torch.Generator().manual_seed(rank)
        for _ in range(4):
            inputs = torch.randn(4, 16, generator=generator)
            sum(model(inputs).square().mean() for model in models).backward()
            with torch.no_grad():
                for parameter in (each for model in models for each in model.parameters()):
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        values = [each.detach() for model in models for each in model.parameters()]
        return torch.cat([torch.view_as_real(each + 0j).reshape(-1) for each in values])

    def uneven(attach):
        model = wrapped("mlp")
        if attach:
            thinwire.torch.attach(model, "none")
        with model.join(divide_by_initial_world_size=False):
            Training("mlp", model).run(3 + 2 * rank)
        return weights(model)

    def accumulated(attach):
        model = wrapped("mlp")
        if attach:
            thinwire.torch.attach(model, "none", momentum_correction=0.9, warmup_steps=0)
        training = Training("mlp", model, momentum=0.0 if attach else 0.9)
        training.run(5, 3)
        # In place, and with a gradient of the parameters between a step and the next one.
        training.optimizer.zero_grad(set_to_none=False)
        training.loss().backward()
        training.optimizer.step()
        torch.autograd.grad(model.module(torch.randn(2, 16)).sum(), list(model.parameters()))
        training.run(2)
        return weights(model)

    small = {"bucket_cap_mb": 0.05}
    static = {"static_graph": True, **small}
    cases = {
        "reentrant": functools.partial(trained, ["reentrant"], **small),
        "nested": functools.partial(trained, ["nested"], **small),
        "mixed": functools.partial(trained, ["mixed"], **small),
        "function": functools.partial(trained, ["function"], **small),
        "static": functools.partial(trained, ["reentrant"], **static),
        "one bucket": functools.partial(trained, ["reentrant"]),
        "two models": functools.partial(trained, ["reentrant", "mixed"], **small),
        "join": uneven,
        "momentum": accumulated,
    }
    found = {}
    for label, train in cases.items():
        found[label] = (train(attach=False) - train(attach=True)).abs().max().item()
    dist.destroy_process_group()
    return found


def test_every_way_of_backward_gives_ddps_numbers(ranks):
    for found in ranks(2, numbers):
        assert len(found) == 9
        assert all(difference < 1e-5 for difference in found.values()), found


def refusals():
    """What is said of models that no hook can follow, where they are attached or in their backward."""
    import torch
    import torch._dynamo
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch
    from torch_models import wrapped

    dist.init_process_group("gloo")

    def layers():
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def delayed():
        model = layers()
        return DistributedDataParallel(
            model,
            delay_all_reduce_named_params=[("1.weight", model[1].weight)],
            param_to_hook_all_reduce=model[0].weight,
        )

    def skipping():
        options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
        return DistributedDataParallel(layers(), **options)

    def hooked(model):
        model.register_comm_hook(None, lambda state, bucket: None)
        return model

    def python_reducer():
        torch._dynamo.config.optimize_ddp = "python_reducer"
        model = DistributedDataParallel(layers())
        torch._dynamo.config.optimize_ddp = True
        return model

    def attached(model):
        return said(lambda: thinwire.torch.attach(model, "none"))

    def backward(model, passes=1, width=8, **options):
        def train():
            model.register_comm_hook(*thinwire.torch.hook("none", **options))
            for _ in range(passes):
                model(torch.randn(2, width)).abs().sum().backward()

        return said(train)

    ddp = DistributedDataParallel(layers())
    thinwire.torch.attach(ddp, "none")
    builtin = DistributedDataParallel(layers())
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    momentum = {"momentum_correction": 0.9, "warmup_steps": 0}

    class Uses(nn.Sequential):
        """Uses both layers in the first step, from which DDP makes its buckets, then the second alone."""

        calls = 0

        def forward(self, inputs):
            self.calls += 1
            return self[1](self[0](inputs) if self.calls == 1 else inputs)

    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.phases = nn.Parameter(torch.zeros(8, dtype=torch.complex128))

        def forward(self, inputs):
            return inputs * self.phases

    unused = DistributedDataParallel(Uses(nn.Linear(8, 8), nn.Linear(8, 8)), bucket_cap_mb=1e-4)
    seen = {
        "no DDP": attached(layers()),
        "FSDP2": attached(fully_shard(layers())),
        "no model": attached(None),
        "twice": attached(torch.compile(ddp)),
        "hooked": attached(hooked(DistributedDataParallel(layers()))),
        "builtin": attached(builtin),
        "delayed": attached(delayed()),
        "delayed, hook": backward(delayed()),
        "skipping": attached(skipping()),
        "skipping, hook": backward(skipping()),
        "python reducer": attached(python_reducer()),
        "python reducer, hook": backward(python_reducer()),
        "momentum": backward(DistributedDataParallel(layers()), passes=2, **momentum),
        "momentum, late": backward(wrapped("mixed", static_graph=True), width=16, **momentum),
        "complex128": backward(DistributedDataParallel(Doubles())),
        "unused": backward(unused, passes=2),
    }
    dist.destroy_process_group()
    return seen


REFUSALS = {
    "no DDP": "the model is a Sequential, expected one in DistributedDataParallel (hint: ",
    "FSDP2": "(hint: thinwire.torch.fsdp(model) is for FSDP2)",
    "no model": "the model is a NoneType, expected",
    "twice": "the model has a communication hook already, thinwire.torch.Hook(codec='none', rank ",
    "hooked": "the model has a communication hook already, ",
    "builtin": "the model has a communication hook already, BuiltinCommHookType.FP16_COMPRESS",
    "delayed": "delay_all_reduce_named_params has 1 parameter, which",
    "delayed, hook": "delay_all_reduce_named_params has 1 parameter, which",
    "skipping": "skip_all_reduce_unused_params is True, expected False",
    "skipping, hook": "skip_all_reduce_unused_params is True, expected False",
    "python reducer": "optimize_ddp is 'python_reducer'",
    "python reducer, hook": "optimize_ddp is 'python_reducer'",
    "momentum": "momentum_correction would count this average twice (hint: zero_grad()",
    "momentum, late": "momentum_correction cannot be used with static_graph=True if parameters",
    "complex128": "gradients of a parameter [8] (torch.complex128) are torch.float64, expected one of",
    "unused": "backward ended (hint: DistributedDataParallel(..., find_unused_parameters=True)",
}


def test_what_a_hook_cannot_follow_is_refused_in_one_line_on_all_ranks(ranks):
    for seen in ranks(2, refusals):
        assert seen.keys() == REFUSALS.keys()
        for label, line in seen.items():
            assert REFUSALS[label] in line, (label, line)
            assert line.startswith(("InvalidError: ", "PeerError: ")), (label, line)
            assert "\n" not in line and len(line) < LINE_MAX, (label, line)


def copies():
    """Models with hooks, copied and saved: how they continue."""
    import copy
    import io
    import pickle

    import torch
    import torch.distributed as dist
    from torch.optim.swa_utils import AveragedModel

    import thinwire.torch
    from thinwire.torch.attached import Attached
    from torch_models import Training, digest, wrapped

    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
    model = wrapped("mlp")
    hook = thinwire.torch.attach(model, "int8", warmup_steps=0, seed=3)
    Training("mlp", model).run(2)
    copied = copy.deepcopy(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    AveragedModel(model).update_parameters(model)
    again = copy.deepcopy(hook)
    seen = {"repr": repr(again), "same": again._options == hook._options, "worlds": []}
    again_hooked = wrapped("mlp")
    again_hooked.register_comm_hook(again, thinwire.torch.hook()[1])
    thinwire.torch.attach(copied, "int8", warmup_steps=0, seed=3)
    thinwire.torch.attach(loaded, "int8", warmup_steps=0, seed=3)
    seen["copies"] = [digest(Training("mlp", each).run(2).model) for each in (copied, loaded)]
    Training("mlp", again_hooked).run(2)
    seen["worlds"] = [again.group.world, Training("mlp", model).run(1) is not None]
    lost = copy.deepcopy(thinwire.torch.attach(wrapped("mlp", process_group=pair), "none"))
    seen["lost"] = said(lost.connect)
    attached = pickle.loads(pickle.dumps(Attached({"codec": "int4", "seed": 5})))
    attached.follow(fresh := wrapped("mlp", process_group=pair))
    Training("mlp", fresh).run(1)
    seen["attached"] = repr(attached.hook)
    dist.destroy_process_group()
    return seen


def test_copies_keep_the_options_and_connect_anew(ranks):
    first, second = ranks(2, copies)
    assert first["copies"] == second["copies"] and len(set(first["copies"])) == 1
    for rank, seen in enumerate((first, second)):
        assert seen["repr"] == "thinwire.torch.Hook(codec='int8', not connected)" and seen["same"]
        assert seen["worlds"] == [2, True]
        assert seen["lost"].startswith("InvalidError: the hook is a copy, which has no group")
        assert seen["attached"] == f"thinwire.torch.Hook(codec='int4', rank {rank} of 2)"


def test_attach_has_the_arguments_of_hook():
    import thinwire.torch

    hook = inspect.signature(thinwire.torch.hook).parameters
    model, *others = inspect.signature(thinwire.torch.attach).parameters
    assert model == "model" and others == list(hook)
    with pytest.raises(TypeError, match="codeck"):
        thinwire.torch.attach(None, codeck="int8")


@pytest.mark.parametrize("dtype, way", [("float64", "complex64"), ("complex64", "PyTorch 2.15")])
def test_a_dtype_that_the_core_does_not_know_is_refused_with_a_way(dtype, way):
    import torch

    from thinwire.torch import layout

    with pytest.raises(ValueError, match=rf"are torch\.{dtype}, .*, or .*{way}"):
        layout.dtype(torch.ones(2, dtype=getattr(torch, dtype)))
