"""Accelerate: what `save_state` and `load_state` keep is the state of every rank."""

import pytest

pytestmark = pytest.mark.needs("torch", "accelerate")


class Fit:
    """A training by Accelerate that can be continued."""

    def __init__(self, codec=None):
        import torch
        from accelerate import Accelerator
        from torch.utils.data import DataLoader, TensorDataset

        import thinwire.torch.accelerate
        from torch_models import mlp

        torch.manual_seed(3)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = mlp()
        inputs = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(inputs, inputs[:, :10].argmax(1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loader = DataLoader(data, batch_size=8)
        prepared = self.accelerator.prepare(model, optimizer, loader)
        self.model, self.optimizer, self.loader = prepared
        if codec:
            attach = thinwire.torch.accelerate.attach
            self.attached = attach(self.accelerator, self.model, codec, warmup_steps=0)

    def epoch(self):
        """Trains once on all data."""
        from torch.nn.functional import cross_entropy

        for inputs, classes in self.loader:
            with self.accelerator.accumulate(self.model):
                self.optimizer.zero_grad()
                self.accelerator.backward(cross_entropy(self.model(inputs), classes))
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
        return self

    def digest(self):
        """A hash of the parameters."""
        from torch_models import digest

        return digest(self.model)


def resumed(folder, codec):
    """The hash after two epochs, and after the second alone from a checkpoint: in new and old objects."""
    fit = Fit(codec).epoch()
    fit.accelerator.save_state(folder)
    again = Fit(codec)
    again.accelerator.load_state(folder)
    hashes = [each.epoch().digest() for each in (fit, again)]
    again.accelerator.load_state(folder)
    hashes.append(again.epoch().digest())
    (entry,) = fit.attached.hook.state_dict().values()
    return hashes, sum(each.sum().item() for each in entry[1].values())


@pytest.mark.parametrize("codec", ["int4", "powersgd:2"])
def test_a_resumed_training_ends_with_the_same_bits(ranks, tmp_path, codec):
    first, second = ranks(2, resumed, arguments=[str(tmp_path), codec])
    assert len(set(first[0])) == 1 and first[0] == second[0]
    assert first[1] != second[1], "each rank has residuals of its own"
    files = sorted(each.name for each in tmp_path.glob("thinwire*"))
    assert files == ["thinwire.rank0.pt", "thinwire.rank1.pt"]


def with_and_without():
    """The hashes with codec none, and of Accelerate alone."""
    return [Fit(codec).epoch().digest() for codec in ("none", None)]


def test_the_optimizer_is_as_without(ranks):
    first, second = ranks(2, with_and_without)
    assert first == second and first[0] == first[1]


def resized(folder):
    """Continues from a checkpoint, if there is one, and leaves one: what it warns of, and what is there."""
    import os
    import warnings

    fit = Fit("int4")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if os.listdir(folder):
            fit.accelerator.load_state(folder)
        fit.epoch()
    fit.accelerator.wait_for_everyone()
    fit.accelerator.save_state(folder)
    fit.accelerator.wait_for_everyone()
    said = [str(each.message) for each in caught if "residuals" in str(each.message)]
    return said, sorted(each for each in os.listdir(folder) if "thinwire" in each)


UNLAUNCHED = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))


@pytest.mark.parametrize("env", [{}, UNLAUNCHED], ids=["launched", "not launched"])
def test_one_device_goes_on_from_two_and_two_from_one(ranks, tmp_path, env):
    for said, files in ranks(2, resized, arguments=[str(tmp_path)]):
        assert not said and files == ["thinwire.rank0.pt", "thinwire.rank1.pt"]
    ((said, files),) = ranks(1, resized, arguments=[str(tmp_path)], env=env)
    assert said == ["one rank exchanges nothing: the residuals in the checkpoint are dropped"]
    assert files == []
    for said, files in ranks(2, resized, arguments=[str(tmp_path)]):
        assert said == ["the checkpoint has no state of Thinwire: codecs begin without residuals"]
        assert files == ["thinwire.rank0.pt", "thinwire.rank1.pt"]


def unfit(folder):
    """Errors for a model that is not in DDP, for a checkpoint of another program, and for a part."""
    import warnings
    from pathlib import Path

    import torch.distributed as dist

    import thinwire
    import thinwire.torch.accelerate
    from torch_models import mlp

    plain, said = Fit(), []
    plain.epoch().accelerator.save_state(folder)
    fit = Fit("int4")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.accelerator.load_state(folder)
    said.append([str(each.message) for each in caught if "Thinwire" in str(each.message)])
    fit.epoch().accelerator.save_state(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        Path(folder, "thinwire.rank1.pt").unlink()
    dist.barrier()
    for action in (
        lambda: thinwire.torch.accelerate.attach(fit.accelerator, mlp()),
        lambda: fit.accelerator.load_state(folder),
    ):
        try:
            action()
        except thinwire.Error as error:
            said.append(str(error))
        else:
            said.append("")
    fit.attached.hook.group.barrier()
    return said


def test_what_does_not_fit_is_said(ranks, tmp_path):
    first, second = ranks(2, unfit, arguments=[str(tmp_path)])
    for warned, refused, _ in (first, second):
        assert warned == ["the checkpoint has no state of Thinwire: codecs begin without residuals"]
        assert "a Sequential on 2 ranks, expected one in DistributedDataParallel" in refused
    assert second[2].startswith("the state is that of rank0, expected rank1")
