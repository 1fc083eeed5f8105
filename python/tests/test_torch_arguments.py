"""Arguments of PyTorch's plugins: what is refused, in one line each, and what is taken everywhere."""

import inspect
import math
import re

import pytest

pytestmark = pytest.mark.needs("torch")


def calls():
    """Every way to a group or an exchange, as a function of keyword arguments."""
    import torch
    from torch import nn

    import thinwire.torch
    from thinwire.torch.attached import Attached

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return {
        "hook": thinwire.torch.hook,
        "attached": lambda **given: Attached({"codec": "int8", **given}),
        "fsdp": lambda **given: thinwire.torch.fsdp(model, **given),
        "DiLoCo": lambda **given: thinwire.torch.DiLoCo(model, **given),
        "LocalSGD": lambda **given: thinwire.torch.LocalSGD(model, **given),
        "PairAveraging": lambda **given: thinwire.torch.PairAveraging(model, **given),
        "Elastic": lambda **given: thinwire.torch.Elastic(
            model, optimizer, **{"batch": 8, **given}
        ),
        "ParameterServer": lambda **given: thinwire.torch.ParameterServer("sgd:lr=0.1", **given),
        "init": lambda **given: thinwire.init(**{"rank": 0, "world": 1, **given}),
    }


def refusals(value):
    """Arguments that are wrong, each with what is said of it; `value` makes tensors and groups."""
    times = (0, -1, math.nan, math.inf, 1e9, "3", True)
    pairs = "expected pairs of name and parameter"
    weights = [("a", value("tensor")), ("a", value("tensor"))]
    return [
        *[("timeout_s", time, "expected seconds from 0.1") for time in times],
        *[("heartbeat_timeout_s", time, "expected seconds from 1") for time in times],
        *[("codec", codec, "codec is") for codec in (None, 3, b"int8", ["int8"])],
        *[("group", group, "expected a thinwire.Group") for group in (3, "gloo", [0, 1])],
        *[("bucket_bytes", size, "expected a whole number") for size in (None, 1.5, "1", True)],
        *[("seed", seed, "expected a whole number") for seed in (None, 1.5, "1", True)],
        *[("algorithm", name, "expected str or None") for name in (3, b"ring")],
        *[("error_budget", budget, "expected a number") for budget in ("1", [1])],
        *[("momentum_correction", factor, "expected a number") for factor in ("1", True)],
        *[("warmup_steps", steps, "expected a whole number") for steps in (1.5, "1")],
        *[("feedback", name, "expected str") for name in (None, 1)],
        ("named_parameters", value("layer").parameters(), pairs),
        ("named_parameters", value("layer").state_dict(), pairs),
        ("named_parameters", [(1, value("tensor"))], pairs),
        ("named_parameters", [("a", "b")], pairs),
        ("named_parameters", 3, pairs),
        ("named_parameters", None, pairs),
        ("named_parameters", weights, 'two parameters called "a"'),
        *[("every", every, "expected a whole number") for every in (0, 1.5, "2", None)],
        *[("batch", batch, "expected a whole number") for batch in (0, 1.5, None)],
        ("rank", "0", "expected a whole number"),
        ("token", 3, "expected str or None"),
        ("link", 100, "expected str or None"),
        ("encryption", None, "expected str"),
        ("connections", 1.5, "expected a whole number"),
        ("launched", 1, "expected True or False"),
    ]


def make(kind):
    """A tensor with two rows, or a layer whose first parameter has two."""
    import torch

    return torch.ones(2, 2) if kind == "tensor" else torch.nn.Linear(2, 2)


def names(call):
    """The arguments that a way takes."""
    import thinwire
    import thinwire.torch

    known = {"attached": thinwire.torch.hook, "init": thinwire.init}
    return inspect.signature(known.get(call) or getattr(thinwire.torch, call)).parameters


def test_wrong_arguments_are_refused_in_one_line_before_anybody_is_met():
    from thinwire import InvalidError

    tried = set()
    for call, function in calls().items():
        for name, value, text in refusals(make):
            if name in names(call):
                tried.add(name)
                with pytest.raises(InvalidError) as caught:
                    function(**{name: value})
                said = str(caught.value)
                assert text in said and "\n" not in said, (call, name, value, said)
    assert tried == {name for name, *_ in refusals(make)}


def test_no_timeout_is_given_together_with_a_group_that_has_one():
    import torch

    import thinwire.torch
    from thinwire import InvalidError

    group = thinwire.init(rank=0, world=1)
    takes_group = ("hook", "attached", "DiLoCo", "LocalSGD", "PairAveraging")
    for call in takes_group:
        function = calls()[call]
        function(group=group)
        for name in ("timeout_s", "heartbeat_timeout_s"):
            with pytest.raises(
                InvalidError, match=f"{name} is 5, but the group already has a {name}"
            ):
                function(group=group, **{name: 5})
    with pytest.raises(InvalidError, match="timeout_s is 5, but the group already has a timeout_s"):
        thinwire.torch.fsdp(torch.nn.Linear(2, 2), group=group, timeout_s=5)


def like_the_hook():
    """Functions that take all arguments of `hook`, with those that they have besides."""
    import thinwire.torch
    from thinwire.torch import accelerate, lightning, ray, transformers

    found = [
        (accelerate.attach, {"accelerator", "model"}),
        (transformers.attach, {"trainer"}),
        (ray.attach, {"model"}),
        (lightning.GradExchange, set()),
    ]
    own = getattr(thinwire.torch, "attach", None)
    return found if own is None else [*found, (own, {*inspect.signature(own).parameters} - HOOK())]


def HOOK():
    """The names of the hook's arguments."""
    import thinwire.torch

    return set(inspect.signature(thinwire.torch.hook).parameters)


@pytest.mark.needs("accelerate", "lightning", "ray", "transformers")
def test_integrations_take_all_arguments_of_the_hook():
    import thinwire.torch

    hook = inspect.signature(thinwire.torch.hook).parameters
    for function, besides in like_the_hook():
        found = inspect.signature(function).parameters
        assert found.keys() - besides == hook.keys(), function
        for name, each in hook.items():
            assert found[name].default == each.default, (function, name)
        assert not any(each.kind is each.VAR_KEYWORD for each in found.values()), function
        with pytest.raises(TypeError, match="'heartbeat'"):
            function(*[None for _ in besides], heartbeat=3)
    local = inspect.signature(thinwire.torch.LocalSGD).parameters
    assert local.keys() == inspect.signature(thinwire.torch.DiLoCo).parameters.keys() - {"outer"}
    elastic = inspect.signature(thinwire.torch.Elastic).parameters
    left_out = {"group", "named_parameters", "heartbeat_timeout_s", "within"}
    assert hook.keys() - elastic.keys() == left_out


def hierarchical():
    """What four ranks, three of them and two of them are told of sums in units of two, and an average."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    three, two, said = dist.new_group([0, 1, 2]), dist.new_group([0, 1]), {}
    model = torch.nn.Linear(3, 3, bias=False)
    for algorithm in ("hierarchical:2:two-shot", "hierarchical:3:ring"):
        for ranks, group in ((4, None), (3, three), (2, two)):
            if dist.get_rank() < ranks:
                for make in (
                    thinwire.torch.hook,
                    lambda **given: thinwire.torch.DiLoCo(model, **given),
                ):
                    try:
                        make(codec="none", algorithm=algorithm, group=group)
                        text = "taken"
                    except thinwire.InvalidError as error:
                        text = str(error)
                    said.setdefault(f"{algorithm} of {ranks}", []).append(text)
    torch.nn.init.zeros_(model.weight)
    model = DistributedDataParallel(model)
    options = {"codec": "none", "algorithm": "hierarchical:2:two-shot"}
    model.register_comm_hook(*thinwire.torch.hook(**options))
    model(torch.full((1, 3), float(dist.get_rank()))).sum().backward()
    average = model.module.weight.grad.tolist()
    dist.destroy_process_group()
    return said, average


def test_a_hierarchical_algorithm_is_checked_once_the_ranks_are_known(ranks):
    by_rank = ranks(4, hierarchical)
    said = by_rank[0][0]
    assert said == {
        "hierarchical:2:two-shot of 4": ["taken"] * 2,
        "hierarchical:2:two-shot of 3": [
            "algorithm hierarchical:2:two-shot with 3 ranks, expected a multiple of 2"
        ]
        * 2,
        "hierarchical:2:two-shot of 2": ["taken"] * 2,
        "hierarchical:3:ring of 4": [
            "algorithm hierarchical:3:ring with 4 ranks, expected a multiple of 3"
        ]
        * 2,
        "hierarchical:3:ring of 3": ["taken"] * 2,
        "hierarchical:3:ring of 2": [
            "algorithm hierarchical:3:ring with 2 ranks, expected a multiple of 3"
        ]
        * 2,
    }
    assert all(average == [[1.5] * 3] * 3 for _, average in by_rank)


def test_what_no_number_of_ranks_allows_is_refused_at_once():
    import thinwire.torch
    from thinwire import InvalidError

    with pytest.raises(InvalidError, match="travels by"):
        thinwire.torch.hook(codec="int8", algorithm="hierarchical:2:ring")
    with pytest.raises(InvalidError, match="algorithm"):
        thinwire.torch.hook(codec="none", algorithm="hierarchical:x:ring")


def through_wrappers():
    """A state of a wrapped model in a bare one: names, and whether both continue bit for bit."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")

    def layers():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))

    def step(model, number):
        torch.manual_seed(100 * number + dist.get_rank())
        model.zero_grad()
        model(torch.randn(4, 40)).square().mean().backward()
        return [each.grad.clone() for each in model.parameters()]

    wrappings = {
        "bare": lambda model: model,
        "compiled": torch.compile,
        "a compiled layer": lambda model: nn.Sequential(torch.compile(model[0]), model[1]),
        "DDP": DistributedDataParallel,
        "compiled DDP": lambda model: torch.compile(DistributedDataParallel(model)),
    }
    states, grads = {}, {}
    for name, wrap in wrappings.items():
        bare = layers()
        hook, function = thinwire.torch.hook("int4", named_parameters=wrap(bare).named_parameters())
        model = DistributedDataParallel(bare)
        model.register_comm_hook(hook, function)
        step(model, 0)
        states[name] = hook.state_dict()
        grads[name] = step(model, 1)
    plan, tensors, buckets, following, world = states["bare"][f"rank{dist.get_rank()}"]

    def old(name):
        return f"_orig_mod.{name}"

    tensors = {
        ".".join([*key.split(".")[:1], old(key.partition(".")[2])]) if "." in key else key: value
        for key, value in tensors.items()
    }
    buckets = [[old(name) for name in bucket] for bucket in buckets]
    following = following and [[old(name) for name in bucket] for bucket in following]
    entry = (plan, tensors, buckets, following, world)
    states["of an earlier version"] = {f"rank{dist.get_rank()}": entry}
    alike = {}
    for name, state in states.items():
        bare = layers()
        hook, function = thinwire.torch.hook("int4", named_parameters=bare.named_parameters())
        model = DistributedDataParallel(bare)
        model.register_comm_hook(hook, function)
        hook.load_state_dict(state)
        alike[name] = all(map(torch.equal, step(model, 1), grads["bare"]))
    found = {name: sorted(each[f"rank{dist.get_rank()}"][1]) for name, each in states.items()}
    dist.destroy_process_group()
    return alike, found


def test_a_state_of_a_wrapped_model_loads_in_the_bare_one(ranks):
    for alike, found in ranks(2, through_wrappers):
        assert all(alike.values()), alike
        expected = found["bare"]
        assert "residual.0.weight" in expected
        for name in ("compiled", "a compiled layer", "DDP", "compiled DDP"):
            assert found[name] == expected, name


def test_a_state_of_diloco_of_a_compiled_model_loads_in_the_bare_one():
    import torch

    import thinwire.torch

    group, model = thinwire.init(rank=0, world=1), torch.nn.Linear(3, 2)
    wrapped = thinwire.torch.DiLoCo(torch.compile(model), every=1, group=group)
    bare = thinwire.torch.DiLoCo(model, every=1, group=group)
    with torch.no_grad():
        model.weight.add_(1)
    wrapped.step()
    state = wrapped.state_dict()
    tensors, exact = state["rank0"]
    assert exact.keys() == {"weight", "bias"}
    with torch.no_grad():
        model.weight.zero_()
    bare.load_state_dict(state)
    assert torch.equal(model.weight, exact["weight"])
    short = {**state, "rank0": (tensors, {**exact, "weight": torch.ones(1)})}
    for broken in (short, {**state, "rank0": (tensors, {})}, {"steps": 3}):
        with pytest.raises(thinwire.InvalidError, match="the state"):
            bare.load_state_dict(broken)


def test_options_of_a_backend_are_refused():
    import torch.distributed as dist

    import thinwire.torch  # noqa: F401
    from thinwire import InvalidError

    for options in (object(), {"timeout": 3}):
        with pytest.raises(InvalidError, match="the backend thinwire has no options"):
            dist.init_process_group(
                *["thinwire"], store=dist.HashStore(), rank=0, world_size=1, pg_options=options
            )
        if dist.is_initialized():
            dist.destroy_process_group()


def test_mistakes_are_those_of_python_too():
    import thinwire.torch

    for wrong, kinds in (
        ({"codec": "int9"}, (ValueError,)),
        ({"timeout_s": -1}, (ValueError,)),
        ({"codec": 8}, (ValueError, TypeError)),
        ({"seed": "1"}, (ValueError, TypeError)),
        ({"group": "gloo"}, (ValueError, TypeError)),
    ):
        with pytest.raises(thinwire.InvalidError) as caught:
            thinwire.torch.hook(**wrong)
        found = [kind for kind in (ValueError, TypeError) if isinstance(caught.value, kind)]
        assert found == list(kinds), wrong


def test_times_are_seconds_or_timedelta():
    from datetime import timedelta

    import thinwire.torch
    from thinwire import InvalidError

    group = thinwire.init(rank=0, world=1, timeout_s=timedelta(minutes=1))
    group.close()
    hook, _ = thinwire.torch.hook(
        timeout_s=timedelta(minutes=2), heartbeat_timeout_s=timedelta(seconds=3)
    )
    assert hook._timeouts_s == (120.0, 3.0)
    thinwire.torch.ParameterServer("sgd:lr=0.1", timeout_s=timedelta(seconds=5))
    with pytest.raises(
        InvalidError, match="timeout_s is 1 day, 0:00:01, expected seconds from 0.1 to"
    ):
        thinwire.torch.hook(timeout_s=timedelta(days=1, seconds=1))


def test_old_names_work_and_warn():
    import thinwire.torch

    with pytest.warns(DeprecationWarning, match="^values= is deprecated, expected codec= "):
        server = thinwire.torch.ParameterServer("sgd:lr=0.1", values="f16")
    assert server._codec == "f16"
    with pytest.raises(TypeError, match="got values and codec, expected codec"):
        thinwire.torch.ServerEmbedding(2, 2, values="f16", codec="f16")
    hook, _ = thinwire.torch.hook()
    with pytest.warns(
        DeprecationWarning, match=r"^plan\(\) is deprecated, expected exchange_plan\(\)"
    ) as told:
        assert hook.plan() == hook.exchange_plan() == {}
    assert told[0].filename == __file__


def test_submodules_are_there_without_an_import_of_their_own():
    import thinwire.torch

    for name in ("accelerate", "graph", "lightning", "ray", "transformers"):
        assert getattr(thinwire.torch, name).__name__ == f"thinwire.torch.{name}"
    with pytest.raises(AttributeError, match="no attribute 'grpah'"):
        _ = thinwire.torch.grpah


def test_codecs_by_name_are_text_for_the_core():
    from thinwire import InvalidError, arguments

    assert arguments.codec({"*.weight": "int4", "*": "none"}) == "*.weight=int4,*=none"
    names = ["a.weight", "a.bias", "b[0]", "c=d"]
    chosen = {"a.weight": "int8", "a.bias": "none", "b[0]": "none", "c=d": "int4"}
    assert arguments.codec(chosen.get, names) == "a.weight=int8,c?d=int4,*=none"
    for wrong, text in (
        ({}, "codec is an empty mapping"),
        ({"a=b": "int8"}, "codec has \"a=b\", expected no '='"),
        ({"a": "int8,b=int4"}, "expected no ','"),
        ({"a": 8}, "codec of a is 8, expected str"),
        (len, "codec is a function of names, and no parameter has one"),
    ):
        with pytest.raises(InvalidError, match=re.escape(text)):
            arguments.codec(wrong)
