"""States of what Thinwire adds to PyTorch: a run that was interrupted goes on as if it had not been."""

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
    """Goes on from a checkpoint of this rank."""
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
    """What is said to a state of another rank, and of another model, and whether training goes on."""
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
        "arity": "expected what state_dict gave",
        "no plan": "is no plan",
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
