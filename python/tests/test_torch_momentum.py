"""Momentum correction by the hook of DDP: momentum is added up before encoding, instead of after."""

import copy

import pytest

pytestmark = pytest.mark.needs("torch")


def corrected(folder):
    """How far it is from the optimizer's own momentum; hashes of a run and of one that was resumed."""
    import torch
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, weights, wrapped

    def trained(codec, steps):
        options = {"momentum_correction": 0.9, "warmup_steps": 0}
        hook, function = thinwire.torch.hook(codec, **options)
        training = Training("mlp", wrapped("mlp", (hook, function)), momentum=0.0)
        return training.run(steps), hook

    dist.init_process_group("gloo")
    plain = Training("mlp", wrapped("mlp")).run(20)
    lossless, _ = trained("none", 20)
    whole, hook = trained("topk:0.05", 5)
    saved = {
        "model": whole.model.state_dict(),
        "data": whole.data.get_state(),
        "hook": hook.state_dict(),
    }
    torch.save(saved, f"{folder}/{dist.get_rank()}.pt")
    whole.run(4)
    saved = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=True)
    resumed, hook = trained("topk:0.05", 0)
    resumed.model.load_state_dict(saved["model"])
    resumed.data.set_state(saved["data"])
    hook.load_state_dict(saved["hook"])
    resumed.run(4)
    names = sorted(saved["hook"][f"rank{dist.get_rank()}"][1])
    difference = (weights(plain.model) - weights(lossless.model)).abs().max().item()
    dist.destroy_process_group()
    return difference, digest(whole.model), digest(resumed.model), names


@pytest.mark.parametrize("world", [1, 2])
def test_without_loss_it_is_momentum_sgd_and_a_run_goes_on_bit_for_bit(ranks, tmp_path, world):
    results = ranks(world, corrected, arguments=[str(tmp_path)])
    assert len({went_on for _, went_on, *_ in results}) == 1
    for difference, went_on, resumed, names in results:
        assert difference < 1e-5
        assert went_on == resumed
        assert sum(name.startswith("momentum.") for name in names) == 6


def test_a_factor_out_of_range_is_refused_before_anybody_is_met():
    import thinwire.torch

    for factor in (1, -0.1, float("nan"), float("inf")):
        with pytest.raises(thinwire.InvalidError, match="expected a number from 0 to below 1"):
            thinwire.torch.hook("topk:0.01", momentum_correction=factor)


def fed_back(kind):
    """Whether a state with every kind of feedback is taken up again, and is what was saved."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, wrapped

    dist.init_process_group("gloo")
    runs = []
    for _ in range(2):
        hook, function = thinwire.torch.hook("int4", feedback=kind)
        runs.append((Training("mlp", wrapped("mlp", (hook, function))), hook))
    (first, hook), (second, fresh) = runs
    first.run(4)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.data.set_state(first.data.get_state())
    fresh.load_state_dict(hook.state_dict())
    hashes = [digest(training.run(3).model) for training in (first, second)]
    dist.destroy_process_group()
    return hashes


@pytest.mark.parametrize("kind", ["ef21", "average:0.5"])
def test_every_kind_of_feedback_goes_on_bit_for_bit(ranks, kind):
    for went_on, resumed in ranks(2, fed_back, arguments=[kind]):
        assert went_on == resumed
