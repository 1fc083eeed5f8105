"""Lightning: a fit that was resumed ends with the bits of one that was not."""

import pytest

pytestmark = pytest.mark.needs("torch", "lightning")


def fit(codec=None, epochs=2, checkpoint=None, save=None, devices=2):
    """Fits a small model, and returns what did so; `save` is where the first epoch is kept."""
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import thinwire.torch.lightning
    from torch_models import mlp

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    class Save(lightning.Callback):
        def on_train_epoch_end(self, trainer, _):
            if save and trainer.current_epoch == 0:
                trainer.save_checkpoint(save)

    torch.manual_seed(3)
    inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(inputs, inputs[:, :10].argmax(1)), batch_size=8)
    exchange = codec and thinwire.torch.lightning.GradExchange(codec, warmup_steps=0)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices == 2 else "auto",
        max_epochs=epochs,
        callbacks=[each for each in (exchange, Save()) if each],
        gradient_clip_val=0.5,
        enable_checkpointing=False,
        **quiet,
    )
    module = Module()
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer, module, exchange, loader


def resumed(folder, codec):
    """The hash after two epochs, and after the second alone, from the checkpoint."""
    from torch_models import digest

    file = f"{folder}/first.ckpt"
    _, module, exchange, _ = fit(codec, save=file)
    hashes = [digest(module)]
    _, module, _, _ = fit(codec, checkpoint=file)
    (entry,) = exchange.hook.state_dict().values()
    return [*hashes, digest(module)], sum(each.sum().item() for each in entry[1].values())


@pytest.mark.parametrize("codec", ["int4", "powersgd:2"])
def test_a_resumed_fit_ends_with_the_same_bits(ranks, tmp_path, codec):
    first, second = ranks(2, resumed, arguments=[str(tmp_path), codec])
    assert len(set(first[0])) == 1 and first[0] == second[0]
    assert first[1] != second[1], "each rank has residuals of its own"
    import torch

    saved = torch.load(tmp_path / "first.ckpt", weights_only=True)["callbacks"]["GradExchange"]
    assert sorted(saved) == ["rank0", "rank1"]


def twice(folder):
    """Fits twice with one trainer: with codec none, and as Lightning does it alone."""
    from torch_models import digest

    said = []
    for codec in ("none", None):
        trainer, module, exchange, loader = fit(codec, epochs=1)
        hook = exchange and exchange.hook
        trainer.fit_loop.max_epochs = 2
        trainer.fit(module, loader)
        said.append([digest(module), exchange and exchange.hook is hook])
    return said


def test_a_second_fit_keeps_the_hook_and_the_optimizer_is_as_without(ranks, tmp_path):
    first, second = ranks(2, twice, arguments=[str(tmp_path)])
    assert first == second
    (with_hook, same), (without, _) = first
    assert with_hook == without and same


def alone():
    """Fits on one device."""
    trainer, _, exchange, _ = fit("int8", devices=1)
    return exchange.hook is None, trainer.global_step


def test_one_device_fits_without_a_hook(ranks):
    assert ranks(1, alone) == [[True, 16]]


def spawned():
    """Fits in two processes that Lightning starts, to which it pickles its callbacks."""
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel

    import thinwire.torch.lightning
    from torch_models import digest

    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    digests = []
    # Without callbacks nothing is pickled, and a fork has imported everything.
    hook = thinwire.torch.lightning.GradExchange("none")
    for strategy, callbacks in (("ddp_fork", []), ("ddp_spawn", [hook])):
        lightning.seed_everything(1)
        model = BoringModel()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=strategy,
            max_steps=3,
            limit_val_batches=0,
            callbacks=callbacks,
            **dict.fromkeys(quiet, False),
        )
        trainer.fit(model)
        digests.append(digest(model))
    return digests


def test_processes_that_lightning_spawns_train_the_model_of_their_parent(ranks):
    ((plain, hooked),) = ranks(1, spawned)
    assert plain == hooked


def one_rank_saves(folder, reason):
    """Rank 1 alone saves a checkpoint, as it asks for one or as it fails; what this rank hears."""
    import time

    import lightning
    from lightning.pytorch.callbacks import OnExceptionCheckpoint
    from lightning.pytorch.demos.boring_classes import BoringModel

    import thinwire.torch.lightning

    class Model(BoringModel):
        def training_step(self, batch, number):
            self.begun_s = time.monotonic()
            if number == 3 and self.global_rank == 1:
                if reason == "fails":
                    raise ValueError("boom")
                self.trainer.save_checkpoint(f"{folder}/one.ckpt")
            return super().training_step(batch, number)

    quiet = ("logger", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        default_root_dir=folder,
        callbacks=[
            OnExceptionCheckpoint(folder, "last"),
            thinwire.torch.lightning.GradExchange("int8"),
        ],
        **dict.fromkeys(quiet, False),
    )
    model = Model()
    try:
        trainer.fit(model)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - model.begun_s
    return "nothing", "", 0.0


@pytest.mark.parametrize("reason", ["fails", "asks"])
def test_a_rank_that_saves_alone_keeps_nobody_waiting(ranks, tmp_path, reason):
    first, second = ranks(2, one_rank_saves, arguments=[str(tmp_path), reason])
    if reason == "fails":
        assert second[:2] == ["ValueError", "boom"]
        assert "rank 1 raised ValueError: boom" in first[1]
    else:
        said = (
            "calls differ: rank 1 gathers the state of all ranks after 3 steps, rank 0 is in step 4"
        )
        assert said in first[1] and said in second[1] and second[0] == "PeerError"
    assert first[0] == "PeerError"
    assert max(first[2], second[2]) < 50.0
    import torch

    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert "GradExchange" not in saved["callbacks"], "a state of one rank is none"
