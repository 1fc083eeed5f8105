"""Gradients too large for f32, a dtype or a codec: the right average, or a warning that names them."""

import pytest

pytestmark = pytest.mark.needs("torch")


def trained(codec, largest, smallest=1.0, dtype=None, steps=3):
    """The averages of a step in which one rank has huge gradients, and the warnings."""
    import warnings

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(64, 48, bias=False))
    model.to(dtype or torch.float32)
    model.forward = lambda small, large: model[0](small).sum() + model[1](large).sum()
    ddp = DistributedDataParallel(model)
    named = model.named_parameters()
    ddp.register_comm_hook(
        *thinwire.torch.hook(codec, warmup_steps=0, named_parameters=named, bucket_bytes=1)
    )
    value = largest if dist.get_rank() == 1 else smallest
    kind = {"dtype": model[1].weight.dtype}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(steps):
            ddp.zero_grad()
            ddp(torch.ones(1, 8, **kind), torch.full((1, 64), value, **kind)).backward()
    texts = [str(each.message) for each in warned if each.category is RuntimeWarning]
    return model[1].weight.grad.double().mean().item(), texts


def cases():
    """All cases in one process group."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    right = {
        (codec, largest): trained(codec, largest, smallest)
        for codec in ("none", "powersgd:4", "powersgd:4:alternate", "int8", "ecsq:1")
        for largest, smallest in ((1e25, 1.0), (1e-25, 1e-30), (1e-30, 1e-36))
    }
    right["none", 1e37] = trained("none", 1e37)
    right["none", 3e38] = trained("none", 3e38, 3e38)
    skipped = {
        ("f16", 140000.0): trained("f16", 140000.0),
        ("int8", 1e37): trained("int8", 1e37),
        ("ecsq:1", 1e37): trained("ecsq:1", 1e37),
        ("powersgd:4", 1e37): trained("powersgd:4", 1e37),
        ("none", float("inf")): trained("none", float("inf")),
        ("f16 gradients", float("inf")): trained("none", float("inf"), dtype=torch.float16),
    }
    scaler = torch.amp.GradScaler("cpu")
    scaled = trained("f16", 140000.0)
    del scaler
    dist.destroy_process_group()
    return list(right.items()), list(skipped.items()), scaled


def test_averages_that_fit_are_right_and_others_are_told_of(ranks):
    for rank, (right, skipped, scaled) in enumerate(ranks(2, cases)):
        for (codec, largest), (found, texts) in right:
            expected = largest if largest == 3e38 else largest / 2
            assert found == pytest.approx(expected, rel=0.05), (codec, largest)
            assert texts == []
        for case, (found, texts) in skipped:
            assert found != found, case
            assert len(texts) == 1, (case, texts)
            assert "1.weight" in texts[0] and "0." not in texts[0].partition(":")[0], texts
            assert "all gradients are NaN" in texts[0]
        by_case = {tuple(case): texts[0].partition(":")[0] for case, (_, texts) in skipped}
        assert by_case["f16", 140000.0] == (
            "the average of 1.weight is not finite with codec f16 of f32 gradients"
        )
        assert by_case["int8", 1e37] == (
            "the gradient of 1.weight reaches 1.000e37, codec int8 takes at most 2.535e30"
            if rank == 1
            else "a gradient of 1.weight is not finite on another rank, or too large for codec int8"
        )
        assert scaled[1] == []
