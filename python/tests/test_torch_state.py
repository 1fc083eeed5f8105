"""States of what Thinwire adds to PyTorch: a run that was interrupted continues as if it had not been."""

import json
import os
import re

import pytest

pytestmark = pytest.mark.needs("torch")

CODECS = ["none", "int8", "int4", "topk:0.05", "powersgd:2", "powersgd:2 after 4"]


def interrupted(codecs, folder):
    """Trains on after a checkpoint, and from the checkpoint: the hashes of both, for each codec.

    Checkpoints are made when DDP has just made its buckets, and later.
    """
    import torch
    import torch.distributed as dist

    from torch_models import digest

    dist.init_process_group("gloo")
    results = {}
    for codec in codecs:
        results[codec] = [[], []]
        for steps in (2, 6):
            file = f"{folder}/{codec}.{dist.get_rank()}.pt"
            training, hook = fresh(codec)
            training.run(steps)
            torch.save(everything(training, hook), file)
            training.run(4)
            again, new_hook = fresh(codec)
            resume(again, new_hook, torch.load(file, weights_only=True))
            again.run(4)
            results[codec][0].append([digest(training.model), digest(again.model)])
            results[codec][1] = sorted(hook.state_dict()[rank()][1])
    dist.destroy_process_group()
    return results


def rank():
    """The key of this rank in a state dict."""
    import torch.distributed as dist

    return f"rank{dist.get_rank()}"


def fresh(codec):
    """A training at its beginning, with its hook; for one codec that hook knows parameters' names.

    A codec may be followed by the steps of its warm-up.
    """
    import thinwire.torch
    from torch_models import Training, wrapped

    model = wrapped("mlp")
    names = model.module.named_parameters() if codec == "int4" else ()
    codec, _, warm_up = codec.partition(" after ")
    options = {"named_parameters": names, "warmup_steps": int(warm_up or 0)}
    hook, function = thinwire.torch.hook(codec, **options)
    model.register_comm_hook(hook, function)
    return Training("mlp", model), hook


def everything(training, hook):
    """All that a checkpoint of this rank holds."""
    return {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "data": training.data.get_state(),
        "hook": hook.state_dict(),
    }


def resume(training, hook, saved):
    """Continues from a checkpoint of this rank."""
    training.model.load_state_dict(saved["model"])
    training.optimizer.load_state_dict(saved["optimizer"])
    training.data.set_state(saved["data"])
    hook.load_state_dict(saved["hook"])


def test_a_run_goes_on_bit_for_bit(ranks, tmp_path):
    first, second = ranks(2, interrupted, arguments=[CODECS, str(tmp_path)])
    for codec in CODECS:
        assert first[codec][0] == second[codec][0], codec
        assert all(went_on == resumed for went_on, resumed in first[codec][0]), codec
    kept = {codec: [name for name in first[codec][1] if name != "step"] for codec in CODECS}
    assert kept["none"] == []
    assert kept["int4"] == ["residual.0.weight", "residual.2.weight", "residual.4.weight"]
    assert kept["int8"] == ["residual.parameter.0", "residual.parameter.2", "residual.parameter.4"]
    assert any(name.startswith("factor") for name in kept["powersgd:2"])
    assert "warm_up" in kept["powersgd:2 after 4"]
    assert any(name.startswith("factor") for name in kept["powersgd:2 after 4"])


def test_stochastic_rounding_goes_on_with_its_next_numbers(ranks, tmp_path):
    first, _ = ranks(2, interrupted, arguments=[["int8:stochastic"], str(tmp_path)])
    assert all(went_on == resumed for went_on, resumed in first["int8:stochastic"][0])


def through_checkpoint(folder):
    """Saves with torch.distributed.checkpoint, and loads into objects that have no state yet."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint

    from torch_models import digest

    dist.init_process_group("gloo")
    training, hook = fresh("int4")
    training.run(5)
    sample = training.data.get_state()
    parts = {"model": training.model, "hook": hook}
    checkpoint.save(parts, checkpoint_id=folder)
    training.optimizer.state.clear()
    training.run(3)
    again, new_hook = fresh("int4")
    checkpoint.load({"model": again.model, "hook": new_hook}, checkpoint_id=folder)
    again.data.set_state(sample)
    again.run(3)
    mine = new_hook.state_dict()[rank()][1].values()
    dist.destroy_process_group()
    return digest(training.model), digest(again.model), sum(each.sum().item() for each in mine)


def test_a_distributed_checkpoint_holds_every_ranks_residuals(ranks, tmp_path):
    first, second = ranks(2, through_checkpoint, arguments=[str(tmp_path)])
    assert first[0] == first[1] == second[0] == second[1]
    assert first[2] != second[2]


def refused():
    """What is said to a state of another rank, and of another model, and whether training continues."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, wrapped

    dist.init_process_group("gloo")
    training, hook = fresh("int8")
    training.run(3)
    saved, said = hook.state_dict(), []
    other = {f"rank{1 - dist.get_rank()}": saved[rank()]}
    plan, tensors, *rest = saved[rank()]
    name = next(name for name in tensors if name.startswith("residual"))
    wrong = {
        "arity": (plan, tensors),
        "no plan": ("{nope", tensors, *rest),
        "shape": (plan, {**tensors, name: tensors[name][:1]}, *rest),
        "nan": (plan, {**tensors, name: tensors[name] * float("nan")}, *rest),
        "stranger": (plan, {**tensors, "residual.z": tensors[name]}, *rest),
        "ranks": (plan, tensors, *rest[:-1], 3),
    }
    before = hook.state_dict()[rank()][1]
    for label, entry in wrong.items():
        try:
            hook.load_state_dict({rank(): entry})
            said.append(f"{label}: nothing")
        except thinwire.InvalidError as error:
            said.append(f"{label}: {error}")
    after = hook.state_dict()[rank()][1]
    assert all(bool((before[each] == after[each]).all()) for each in before)
    wide = {each: values.double() for each, values in tensors.items()}
    hook.load_state_dict({rank(): (plan, wide, *rest)})
    found = hook.state_dict()[rank()][1]
    assert all(bool((tensors[each] == found[each]).all()) for each in tensors)
    hook.load_state_dict({rank(): (plan, {}, *rest)})
    assert not any(each.any() for each in hook.state_dict()[rank()][1].values() if each.ndim > 1)
    other_hook = thinwire.torch.hook("int8")
    cnn = Training("cnn", wrapped("cnn", other_hook))
    for action in (
        lambda: hook.load_state_dict(other),
        lambda: (other_hook[0].load_state_dict(saved), cnn.run(1)),
    ):
        try:
            action()
        except thinwire.InvalidError as error:
            said.append(str(error))
    training.run(1)
    dist.destroy_process_group()
    return said, all(bool(each.isfinite().all()) for each in training.model.parameters())


def test_a_state_of_another_rank_or_model_is_refused(ranks):
    expected = {
        "arity": "expected the result of state_dict",
        "no plan": "cannot read the plan in the ",
        "shape": "the state is of another model: residual",
        "nan": "holds NaN, expected finite numbers",
        "stranger": "another model: it has 'residual.z'",
        "ranks": "the state is of 3 ranks, this job has 2: rank",
    }
    for (*of_files, of_rank, of_model), goes_on in ranks(2, refused):
        for said, (label, text) in zip(of_files, expected.items(), strict=True):
            assert said.startswith(label) and text in said
        assert "expected rank" in of_rank and "hint" in of_rank
        assert "another model" in of_model
        assert goes_on


def auto_interrupted(file):
    """Trains on by auto over a slow link, and from states in a trial and after it: steps, plans and hashes.

    Ranks tell each other times, which decide on plans, after every fourth step and before a planning:
    the three steps between depend on the state alone.
    """
    import copy

    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, wrapped

    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=f"file://{file}", **place)
    slow = thinwire.init(link="20mbit")

    def fresh(name):
        hook, function = thinwire.torch.hook("auto", group=slow.split(name))
        return Training("mlp", wrapped("mlp", (hook, function))), hook

    def auto(hook):
        return json.loads(hook.state_dict()[rank()][0])["auto"]

    def goes_on(training, hook, steps=3):
        plans = []
        for _ in range(steps):
            training.run(1)
            plans.append([each["codec"] for each in hook.exchange_plan()["assignments"]])
        return auto(hook)["age"], plans, digest(training.model)

    def run_until(reached):
        """Trains until the next three steps end before ranks tell each other times."""
        while True:
            whole.run(1)
            age, trials = (auto(hook)[name] for name in ("age", "trials"))
            # Plans are due after the steps 4, 16, 50, and every hundredth one.
            is_quiet = age % 4 == 0 and age not in (4, 16, 48) and age % 100
            if is_quiet and reached(trials):
                return

    def is_under_way(trials):
        return trials["under_way"] is not None

    def is_decided(trials):
        return trials["decided"] > 0 and not is_under_way(trials)

    whole, hook = fresh("whole")
    whole.run(2)  # DDP lays its buckets out anew after the first step.
    results = []
    for name, reached in (("in a trial", is_under_way), ("after it", is_decided)):
        run_until(reached)
        kept = copy.deepcopy(everything(whole, hook))
        went_on = goes_on(whole, hook)
        # A state is not taken where the link is measured as another one, as on a very busy machine.
        for number in range(5):
            again, new_hook = fresh(f"{name} {number}")
            resume(again, new_hook, copy.deepcopy(kept))
            resumed = goes_on(again, new_hook)
            if resumed[0] == went_on[0]:
                break
        results.append((went_on, resumed, new_hook.exchange_plan().get("line", "")))
    slow.close()
    dist.destroy_process_group()
    return results


def test_auto_goes_on_with_its_trial_and_its_decision(ranks, tmp_path):
    first, second = ranks(2, auto_interrupted, arguments=[str(tmp_path / "store")])
    for of_rank in (first, second):
        for went_on, resumed, _ in of_rank:
            assert went_on == resumed
    trial, decision = first
    assert "; comparing it with " in trial[2]
    assert len({json.dumps(plan) for plan in decision[0][1]}) == 1
    # More than one where the link was measured anew meanwhile.
    assert re.search(r"; \d+ trials?$", decision[2])


def of_another_codec():
    """What loading a state says where an option that gives it its meaning is another one."""
    import torch
    import torch.distributed as dist

    import thinwire.torch

    dist.init_process_group("gloo")

    def trained(codec, **options):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        hook, function = thinwire.torch.hook(codec, warmup_steps=None, **options)
        model.register_comm_hook(hook, function)

        def step():
            model.zero_grad()
            model(torch.randn(4, 64)).sum().backward()

        return hook, step

    def load(target, entries):
        try:
            target.load_state_dict(entries)
        except thinwire.InvalidError as error:
            return str(error)
        return "accepted"

    hook, step = trained("int4")
    step()
    saved, said = hook.state_dict(), {}
    others = {
        "int4": {},
        "onebit": {},
        "auto": {},
        "int4 ef21": {"feedback": "ef21"},
        "int4 momentum": {"momentum_correction": 0.9},
    }
    for name, options in others.items():
        other, step = trained(name.split()[0], **options)
        said[f"{name} before"] = load(other, saved)
        step()
        said[f"{name} after"] = load(other, saved)
        step()
    auto, step = trained("auto")
    step()
    said["auto:int8 before"] = load(trained("auto:int8")[0], auto.state_dict())
    hook, step = trained("int4")
    step()
    early = hook.state_dict()
    step()
    said["moments"] = load(hook, early if dist.get_rank() else hook.state_dict())
    step()
    dist.destroy_process_group()
    return said


def test_a_state_of_another_codec_is_refused(ranks):
    first, second = ranks(2, of_another_codec)
    for said in (first, second):
        for when in ("before", "after"):
            assert said[f"int4 {when}"] == "accepted"
            for codec in ("onebit", "auto"):
                text = f"training with codec int4, this one has codec {codec} (hint: continue with int4"
                assert text in said[f"{codec} {when}"]
            assert "feedback classic, this one has feedback ef21" in said[f"int4 ef21 {when}"]
            momentum = "momentum correction none, this one has momentum correction 0.9"
            assert momentum in said[f"int4 momentum {when}"]
        assert said["auto:int8 before"] == "accepted"
        assert said["moments"].startswith(
            "the states of ranks were not saved together: rank 1 has step 1, rank 0 has step 2 (hint: "
        )


def broken(folder):
    """What loading says where rank 1's file of the state is broken in some way."""
    import pickle
    from pathlib import Path

    import torch
    import torch.distributed as dist

    import thinwire.torch
    from thinwire.torch import attached

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def following(codec="int4"):
        made = attached.Attached({"codec": codec})
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        made.follow(model)
        return made, lambda: model(torch.randn(4, 64)).sum().backward()

    made, step = following()
    step()
    made.save(folder)
    file = Path(folder, f"thinwire.rank{rank}.pt")
    sound, said = file.read_bytes(), {}
    entry = torch.load(file, weights_only=True)

    step()
    made.save(folder)
    later = file.read_bytes()
    file.write_bytes(sound)

    def save(entries):
        torch.save(entries, file)

    def put(place, value):
        parts = list(entry[f"rank{rank}"])
        parts[place] = value
        save({f"rank{rank}": tuple(parts)})

    def owed(change):
        tensors = entry[f"rank{rank}"][1]
        return {**tensors, "residual.weight": change(tensors["residual.weight"])}

    def flipped(octets, part):
        place = int(part * len(octets))
        return octets[:place] + bytes([octets[place] ^ 64]) + octets[place + 1 :]

    ways = {
        "half": lambda: file.write_bytes(sound[: len(sound) // 2]),
        "empty": lambda: file.write_bytes(b""),
        "garbage": lambda: file.write_bytes(bytes(range(256)) * 4),
        "pickle": lambda: file.write_bytes(pickle.dumps(Path)),
        "list": lambda: save([1, 2]),
        "nobody": lambda: save({"model": 1}),
        "number": lambda: save({f"rank{rank}": 3}),
        "cut": lambda: file.write_bytes(sound[:-1]),
        "flip": lambda: file.write_bytes(flipped(sound, 0.3)),
        "late flip": lambda: file.write_bytes(flipped(sound, 0.6)),
        "half precision": lambda: put(1, owed(torch.Tensor.half)),
        "whole": lambda: put(1, owed(torch.Tensor.long)),
        "meta": lambda: put(1, owed(lambda each: each.to("meta"))),
        "sparse": lambda: put(1, owed(torch.Tensor.to_sparse)),
        "nameless": lambda: put(1, {5: torch.zeros(1)}),
        "buckets": lambda: put(2, [1]),
        "empty bucket": lambda: put(2, [[]]),
        "no ranks": lambda: put(4, 0),
        "text": lambda: save({f"rank{rank}": (*entry[f"rank{rank}"][:1], {"a": "b"}, [], None, 2)}),
        "folder": lambda: (file.unlink(), file.mkdir()),
        "pipe": lambda: (file.rmdir(), os.mkfifo(file)),
        "another rank": lambda: (file.unlink(), save({"rank7": entry[f"rank{rank}"]})),
        "gone": lambda: file.unlink(),
        "another step": lambda: file.write_bytes(later),
        "another world": lambda: put(4, 3),
        "no plan": lambda: put(0, entry[f"rank{rank}"][0][:-5]),
        "another layout": lambda: put(2, [["weight"], ["bias"]]),
        "infinite": lambda: put(1, owed(lambda each: each / 0)),
        "another model": lambda: put(1, {"residual.other": torch.zeros(3), "step": torch.zeros(2)}),
        "short": lambda: put(1, owed(lambda each: each.flatten()[1:])),
    }
    for name, spoil in ways.items():
        if rank == 1:
            spoil()
        dist.barrier()
        other, step = following()
        try:
            other.load(folder)
            step()
        except thinwire.Error as error:
            said[name] = str(error)
        dist.barrier()
    file.write_bytes(sound)
    # A process that ends while it writes leaves the old file.
    whole, torch.save = torch.save, lambda entries, opened: opened.write(b"a part") / 0
    try:
        made.save(folder)
    except ZeroDivisionError:
        assert file.read_bytes() == sound
    torch.save = whole
    made.save(folder)
    dist.barrier()
    names = sorted(os.listdir(folder))
    other, step = following()
    other.load(folder)
    step()
    dist.destroy_process_group()
    return said, names


def test_a_broken_file_is_named_on_all_ranks(ranks, tmp_path):
    file = tmp_path / "thinwire.rank1.pt"
    for rank, (said, names) in enumerate(ranks(2, broken, arguments=[str(tmp_path)])):
        assert names == ["thinwire.rank0.pt", "thinwire.rank1.pt"]
        missing = said.pop("gone"), said.pop("another rank")
        assert all("rank1" in each for each in missing), missing
        contents = {
            "another step": "not saved together: rank 1 has step 2, rank 0 has step 1 (hint: ",
            "another world": "the state has entries of 2 and of 3 ranks",
            "no plan": "cannot read the plan in the checkpoint",
            "another layout": "rank 1 has parameters in buckets [['weight'], ['bias']]",
            "infinite": "residual.weight in the state holds ",
            "another model": "not saved together: rank 1 has step 0, rank 0 has step 1",
            "short": "residual.weight has 4095 elements, expected 4096",
        }
        for name, part in contents.items():
            line = said.pop(name)
            assert part in line and "\n" not in line, (name, line)
        assert len(said) == 21
        for name, line in said.items():
            start = (
                f"{'' if rank else 'rank 1 says: '}cannot read the state of Thinwire in {file}: "
            )
            assert line.startswith(start) and "\n" not in line, (name, line)


def other_memory():
    """What is lost of gradients where a state continues in memory of another order, and what is
    said of a state that one rank alone has."""
    import copy

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    class Network(nn.Module):
        def __init__(self, is_permuted):
            super().__init__()
            torch.manual_seed(0)
            self.convolution, self.last = nn.Conv2d(3, 4, 3), nn.Linear(64, 8)
            self.phases = nn.Parameter(torch.randn(5, 8, dtype=torch.complex64))
            if is_permuted:
                self.convolution.to(memory_format=torch.channels_last)
                self.last.weight.data = self.last.weight.data.t().contiguous().t()
                self.phases.data = self.phases.data.t().contiguous().t()

        def forward(self, inputs):
            return (self.last(self.convolution(inputs).flatten(1)) * self.phases[:, None]).abs()

    def begun(is_permuted, **options):
        model = DistributedDataParallel(Network(is_permuted))
        return model, thinwire.torch.attach(model, warmup_steps=0, timeout_s=30, **options)

    def gradients(model, step):
        model.zero_grad()
        generator = torch.Generator().manual_seed(2 * step + rank)
        model(torch.randn(2, 3, 6, 6, generator=generator)).square().sum().backward()
        return [each.grad.clone() for each in model.parameters()]

    def total(gradients):
        return [torch.view_as_real(each + 0j).double() for each in gradients]

    wrong = []
    for codec in ("int4", "onebit"):
        for is_permuted in (False, True):
            plain = DistributedDataParallel(Network(is_permuted))
            model, hook = begun(is_permuted, codec=codec)
            lost = [torch.zeros_like(each) for each in total(model.parameters())]
            for step in range(4):
                if step == 2:
                    saved = copy.deepcopy(hook.state_dict())
                    model, hook = begun(not is_permuted, codec=codec)
                    hook.load_state_dict(saved)
                for each, given, got in zip(
                    lost, total(gradients(plain, step)), total(gradients(model, step))
                ):
                    each += given - got
            owed = hook.state_dict()[f"rank{rank}"][1]
            for (name, _), each in zip(model.module.named_parameters(), lost):
                residual = owed.get(f"residual.{name}", torch.zeros(1)).clone()
                dist.all_reduce(residual)
                if residual.numel() > 1:
                    parts = each if residual.shape == each.shape else each[..., 0]
                    wrong.append((parts - residual).abs().max().item())
    said = []
    for which in (hook, begun(False, codec=codec)[1]):
        try:
            which.load_state_dict(saved if rank == 0 else {f"rank{rank}": ()})
        except thinwire.InvalidError as error:
            said.append(str(error))
    dist.destroy_process_group()
    return wrong, said


def test_a_state_goes_on_in_memory_of_another_order_and_not_without_some_ranks(ranks):
    for wrong, said in ranks(2, other_memory):
        assert len(wrong) == 12 and max(wrong) < 1e-3, wrong
        line = "ranks disagree: rank 1 has no state of steps that were made, rank 0 has a state of"
        assert len(said) == 2 and all(text.startswith(line) for text in said), said
