"""Failures under the hook of DDP: every rank gets an exception that says what happened, at once."""

import subprocess
import sys
import time

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

# Less than the minute after which a rank gives up by itself.
LIMIT_S = 50.0


def ready(codec="none"):
    """A training that has made three steps on all ranks, the last one with DDP's final buckets."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, past_a_barrier, wrapped

    dist.init_process_group("gloo")
    training = Training("mlp", wrapped("mlp", thinwire.torch.hook(codec))).run(3)
    past_a_barrier()
    return training


def failure(action):
    """The type and the text of the exception that `action` raises, and after how many seconds."""
    start = time.monotonic()
    try:
        action()
    except BaseException as error:
        return [type(error).__name__, str(error), time.monotonic() - start]
    return ["nothing", "", time.monotonic() - start]


def rank():
    """This rank."""
    import torch.distributed as dist

    return dist.get_rank()


def other_fails(way):
    """Rank 1 comes to a bad end; what rank 0 sees of it."""
    import os
    import signal

    training = ready()
    if rank() == 1:
        if way == "raises":
            raise ValueError("no such file: data.txt")
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "changes a shape":
            parameter = next(training.model.parameters())
            parameter.data = parameter.data[:3]
        training.run(1)
    return failure(lambda: training.run(20))


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("raises", "rank 1 raised ValueError: no such file: data.txt"),
        ("killed", "rank 1"),
        ("changes a shape", "rank 1 raised RuntimeError"),
    ],
)
def test_all_ranks_learn_why_one_has_failed(way, said):
    first, second = launch.run(2, other_fails, arguments=[way])
    assert second.code != 0
    kind, text, waited_s = first.result
    assert kind == "PeerError", launch.report(first)
    assert said in text
    assert "\n" not in text
    assert waited_s <= LIMIT_S


def before_the_first_step(stage):
    """Rank 1 raises while the others, in some stage, are about to form connections; what they hear."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import thinwire.torch

    dist.init_process_group("thinwire" if stage == "subgroup" else "gloo")
    store = dist.distributed_c10d._get_default_store()
    model = nn.Linear(4, 4)

    def raise_once_the_others_are_here():
        if rank() == 1:
            store.wait(["here0", "here2"])
            raise ValueError("bad first batch")
        store.set(f"here{rank()}", "")

    def train():
        if stage == "hook":
            raise_once_the_others_are_here()
        sharded = nn.parallel.DistributedDataParallel(model)
        thinwire.torch.attach(sharded, "int8")
        raise_once_the_others_are_here()
        if stage == "subgroup":
            dist.new_group([0, 1, 2])
        sharded(torch.ones(2, 4)).sum().backward()

    def shard():
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
        thinwire.torch.fsdp(model, gather_codec="int8")
        raise_once_the_others_are_here()
        model(torch.ones(2, 4)).sum().backward()

    if rank() == 1:
        return shard() if stage == "fsdp" else train()
    return failure(shard if stage == "fsdp" else train)


@pytest.mark.parametrize("stage", ["hook", "first step", "subgroup", "fsdp"])
def test_all_ranks_learn_of_one_that_fails_before_its_first_step(stage):
    first, second, third = launch.run(3, before_the_first_step, arguments=[stage])
    assert second.code != 0
    for outcome in (first, third):
        assert outcome.code == 0, launch.report(outcome)
        kind, text, waited_s = outcome.result
        if stage == "hook":  # no rank has a connection of Thinwire's, and PyTorch's knows no reason
            assert kind in ("PeerError", "RuntimeError") and "onnection" in text, text
        else:
            assert kind == "PeerError", launch.report(outcome)
            assert "rank 1 raised ValueError: bad first batch" in text and "\n" not in text
        assert waited_s <= LIMIT_S


def interrupted():
    """Rank 1 lets rank 0 wait in backward, where it gets Ctrl-C; what each sees."""
    import os
    import signal
    import threading

    import torch.distributed as dist

    training = ready()
    store = dist.distributed_c10d._get_default_store()
    if rank() == 1:
        store.wait(["interrupted"])
        return failure(lambda: training.run(20))
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    seen = failure(lambda: training.run(1))
    store.set("interrupted", "")
    assert seen[0] == "KeyboardInterrupt" and seen[2] <= LIMIT_S, seen
    raise KeyboardInterrupt


def test_ctrl_c_ends_a_backward_that_waits():
    first, second = launch.run(2, interrupted)
    assert "KeyboardInterrupt" in first.stderr and "AssertionError" not in first.stderr
    kind, text, waited_s = second.result
    assert kind == "PeerError"
    assert "rank 0 raised KeyboardInterrupt" in text
    assert waited_s <= LIMIT_S


def unfit():
    """What is said to models and hooks that do not fit, one after the other."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import thinwire.torch
    from thinwire.torch import group
    from torch_models import Training, wrapped

    dist.init_process_group("gloo")
    said = {}

    def train(model, codec="none", **options):
        model = nn.parallel.DistributedDataParallel(model, **options)
        model.register_comm_hook(*thinwire.torch.hook(codec))
        for _ in range(3):
            model(torch.randint(4, (8,))).double().sum().backward()

    def embedding(**options):
        return nn.Sequential(nn.Embedding(4, 4, **options), nn.Linear(4, 4))

    class Bucket:
        def index(self):
            return 0

        def is_last(self):
            return True

        def parameters(self):
            return []

        def buffer(self):
            return torch.empty(4, device="meta")

    def meta():
        hook, function = thinwire.torch.hook("none")
        function(hook, Bucket())

    def another_model():
        hook = thinwire.torch.hook("none")
        Training("mlp", wrapped("mlp", hook)).run(1)
        Training("cnn", wrapped("cnn", hook)).run(1)

    def another_world():
        store = dist.PrefixStore("world", dist.distributed_c10d._get_default_store())
        group.connect(store, dist.get_rank(), 2 + dist.get_rank(), "mismatched", timeout_s=30)

    class Unused(nn.Sequential):
        def forward(self, inputs):
            return next(layer for layer in self if isinstance(layer, nn.Sequential))(inputs)

    def skip(*layers):
        skipping = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
        train(Unused(*layers), bucket_cap_mb=0.1, **skipping)

    def another_state():
        hook, function = thinwire.torch.hook("int8")
        Training("mlp", wrapped("mlp", (hook, function))).run(2)
        entry = ("{}", {}, [["a"]], None, dist.get_world_size())
        hook.load_state_dict({f"rank{dist.get_rank()}": entry})

    large = nn.Linear(512, 1024)
    codecs = ["none", "int8"]
    said["float64"] = failure(lambda: train(embedding().double()))
    said["sparse"] = failure(lambda: train(embedding(sparse=True)))
    said["meta"] = failure(meta)
    if dist.get_world_size() > 1:
        said["codecs"] = failure(lambda: train(embedding(), codecs[dist.get_rank()]))
        said["another world"] = failure(another_world)
    said["no codec"] = failure(lambda: thinwire.torch.hook("zip"))
    said["no algorithm"] = failure(lambda: thinwire.torch.hook(algorithm="pigeon"))
    said["no seed"] = failure(lambda: thinwire.torch.hook(seed=-1))
    said["another model"] = failure(another_model)
    said["another state"] = failure(another_state)
    said["first skipped"] = failure(lambda: skip(embedding(), large))
    said["last skipped"] = failure(lambda: skip(large, embedding()))
    dist.destroy_process_group()
    said["no process group"] = failure(meta)
    return said


EXPECTED = {
    "float64": ("InvalidError", "torch.float64, expected one of torch.float32"),
    "sparse": ("InvalidError", "torch.sparse_coo, expected torch.strided"),
    "meta": ("InvalidError", "device meta, expected cpu or cuda"),
    "codecs": ("PeerError", "codec"),
    "no codec": ("InvalidError", "unknown codec 'zip'"),
    "no algorithm": ("InvalidError", "pigeon"),
    "no seed": ("InvalidError", "seed is -1"),
    "another model": ("InvalidError", "hint: use a separate hook for each model"),
    "another world": ("PeerError", "world"),
    "another state": ("InvalidError", "cannot read the plan in the checkpoint"),
    "first skipped": ("InvalidError", "skip_all_reduce_unused_params is True, expected False"),
    "last skipped": ("InvalidError", "skip_all_reduce_unused_params is True, expected False"),
    "no process group": ("InvalidError", "init_process_group"),
}


@pytest.mark.parametrize("world", [1, 2])
def test_what_does_not_fit_is_said_on_all_ranks_and_on_one_alone(ranks, world):
    of_several = {"codecs", "another world"} if world == 1 else set()
    for said in ranks(world, unfit):
        assert said.keys() == EXPECTED.keys() - of_several
        for label, (kind, text, waited_s) in said.items():
            # A rank that is slower may hear of the same fault from its peer first.
            assert kind == EXPECTED[label][0] or " reports: " in text, (label, text)
            assert EXPECTED[label][1] in text, (label, text)
            assert waited_s <= LIMIT_S, (label, waited_s)


def leaves_in_flight(way):
    """Rank 1 ends while a collective that runs in a thread is under way; what rank 0 hears."""
    import os
    import signal
    import threading

    import torch
    import torch.distributed as dist

    import thinwire.torch  # noqa: F401
    from torch_models import past_a_barrier

    dist.init_process_group("thinwire")
    past_a_barrier()
    if dist.get_rank() == 0:
        return failure(lambda: dist.recv(torch.ones(3), 1))
    work = dist.all_reduce(torch.ones(100, dtype=torch.int64), async_op=True)
    if way == "raises":
        raise ValueError("rank 1 is broken")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    work.wait()


@pytest.mark.parametrize(
    ("way", "said"), [("raises", "ValueError: rank 1 is broken"), ("sigint", "KeyboardInterrupt")]
)
def test_a_rank_that_raises_with_work_in_flight_ends_and_is_heard(way, said):
    first, second = launch.run(2, leaves_in_flight, arguments=[way])
    assert second.code != 0 and "faulthandler" not in second.stderr
    assert first.code == 0, launch.report(first)
    kind, text, waited_s = first.result
    assert kind == "PeerError" and f"rank 1 raised {said}" in text
    assert waited_s <= LIMIT_S


def forks_forget():
    """A fork that collects what it has of the hook, before the first step; what it said, and the model."""
    import gc
    import os

    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, wrapped

    dist.init_process_group("gloo")
    hook, function = thinwire.torch.hook("none", timeout_s=10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 2)
        hook._connection = hook._averager = None
        gc.collect()
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    training = Training("mlp", wrapped("mlp", (hook, function))).run(3)
    return os.read(read, 1000).decode(), digest(training.model)


def test_a_fork_that_forgets_leaves_the_rendezvous_alone(ranks):
    (first, mine), (second, theirs) = ranks(2, forks_forget)
    assert first == second == ""
    assert mine == theirs


def forks():
    """Training with a DataLoader whose workers are forks, and what a fork is told that trains on."""
    import os

    import torch.utils.data

    from torch_models import digest

    training = ready()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "|".join(map(str, failure(lambda: training.run(1))))[:1000].encode())
        os._exit(0)
    os.waitpid(child, 0)
    loader = torch.utils.data.DataLoader(range(6), num_workers=2, multiprocessing_context="fork")
    for _ in loader:
        training.run(1)
    return os.read(read, 1000).decode(), digest(training.model)


def test_forks_are_told_and_the_parents_go_on(ranks):
    (said, first), (_, second) = ranks(2, forks)
    kind, text, waited_s = said.split("|")
    assert kind in ("InvalidError", "PeerError")
    assert "fork" in text
    assert float(waited_s) <= LIMIT_S
    assert first == second


def test_without_pytorch_the_module_says_how_to_get_it():
    program = "import sys; sys.modules['torch'] = None; import thinwire.torch"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().rpartition("\n")[2]
    assert last.startswith("ImportError: thinwire.torch needs PyTorch")
    assert last.endswith("(hint: pip install torch)")


def reductions_differ():
    """What each rank hears where it and another reduce the same tensor in other ways."""
    import torch
    import torch.distributed as dist

    import thinwire
    import thinwire.torch

    dist.init_process_group("thinwire")
    said = {}
    for dtype, elements in ((torch.int64, 5), (torch.int64, 20_011), (torch.float64, 5)):
        for call in ("all_reduce", "reduce_scatter"):
            group = dist.new_group(backend="thinwire")
            kind = dist.ReduceOp.MAX if rank() == 1 else dist.ReduceOp.SUM
            values = torch.ones(2 * elements, dtype=dtype)
            try:
                if call == "all_reduce":
                    dist.all_reduce(values, kind, group=group)
                else:
                    part = values.new_empty(elements)
                    dist.reduce_scatter_tensor(part, values, kind, group=group)
            except thinwire.PeerError as error:
                said[f"{call} {dtype} {elements}"] = str(error)
    dist.destroy_process_group()
    return said


def test_a_sum_here_and_a_maximum_there_are_noticed():
    for outcome in launch.run(2, reductions_differ):
        assert outcome.code == 0, outcome.stderr
        assert len(outcome.result) == 6, outcome.result
        for case, text in outcome.result.items():
            assert "calls differ: rank " in text and "\n" not in text, text
            assert f"{case.split()[0]} by " in text, text
