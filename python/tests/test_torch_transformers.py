"""Hugging Face's Trainer: a training that was resumed ends with the bits of one that was not."""

import pytest

pytestmark = pytest.mark.needs("torch", "transformers", "accelerate")


def trainer(folder, codec=None, **arguments):
    """A trainer of a very small GPT-2 that counts, with Thinwire if a codec is given."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    import thinwire.torch.transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    rows = [(start + torch.arange(16)) % 32 for start in range(64)]
    fixed = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    usual = {"max_steps": 6, "save_steps": 3, "learning_rate": 3e-3, "ddp_backend": "gloo"}
    made = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            folder, per_device_train_batch_size=4, **fixed, **(usual | arguments)
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )
    attached = codec and thinwire.torch.transformers.attach(made, codec, warmup_steps=0)
    return made, attached


def resumed(folder, codec):
    """The hash after training on, and after going on from its checkpoint, in new objects and in old."""
    from torch_models import digest

    first, attached = trainer(folder, codec)
    first.train()
    hashes = [digest(first.model)]
    owed = sum(each.sum().item() for each in attached.hook.state_dict().popitem()[1][1].values())
    for checkpoint in (f"{folder}/checkpoint-3", f"{folder}/checkpoint-3"):
        first.train(resume_from_checkpoint=checkpoint)
        hashes.append(digest(first.model))
        first, _ = trainer(folder, codec)
    first.train(resume_from_checkpoint=f"{folder}/checkpoint-3")
    return [*hashes, digest(first.model)], owed


@pytest.mark.parametrize("codec", ["int4", "powersgd:2"])
def test_a_resumed_training_ends_with_the_same_bits(ranks, tmp_path, codec):
    first, second = ranks(2, resumed, arguments=[str(tmp_path), codec])
    assert len(set(first[0])) == 1 and first[0] == second[0]
    assert first[1] != second[1], "each rank has residuals of its own"
    for step in (3, 6):
        files = sorted(each.name for each in (tmp_path / f"checkpoint-{step}").glob("thinwire*"))
        assert files == ["thinwire.rank0.pt", "thinwire.rank1.pt"]


def twice(folder):
    """Trains twice with one trainer; with codec none, and as the trainer does it alone."""
    from torch_models import digest

    said = []
    for codec in ("none", None):
        made, attached = trainer(f"{folder}/{codec}", codec, save_strategy="no", max_grad_norm=0.5)
        made.train()
        hook = attached and attached.hook
        made.train()
        said.append([digest(made.model), attached and attached.hook is hook])
    return said


def test_a_second_training_keeps_the_hook_and_the_optimizer_is_as_without(ranks, tmp_path):
    first, second = ranks(2, twice, arguments=[str(tmp_path)])
    assert first == second
    (with_hook, same), (without, _) = first
    assert with_hook == without and same


def alone(folder):
    """Trains in one process; whether there is a hook, the steps, and what a wrong option is told."""
    import thinwire

    made, attached = trainer(folder, "int8", ddp_backend=None)
    made.train()
    try:
        trainer(folder, "int9", ddp_backend=None)
    except thinwire.InvalidError as error:
        return attached.hook is None, made.state.global_step, str(error)


UNLAUNCHED = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))


def test_one_device_trains_without_a_hook(ranks, tmp_path):
    ((no_hook, steps, said),) = ranks(1, alone, arguments=[str(tmp_path)], env=UNLAUNCHED)
    assert no_hook and steps == 6
    assert said.startswith("unknown codec 'int9'")
