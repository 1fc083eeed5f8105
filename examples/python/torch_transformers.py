"""Hugging Face's Trainer with gradients averaged by Thinwire: the line with an arrow.

pip install transformers accelerate
torchrun --nproc-per-node 2 examples/python/torch_transformers.py
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import thinwire.torch.transformers


def main() -> None:
    """Trains a very small GPT-2 to count."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    rows = [(start + torch.arange(16)) % 32 for start in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                ddp_backend="gloo",
                max_steps=40,
                logging_steps=10,
                learning_rate=3e-3,
                report_to=[],
                save_strategy="no",
            ),
            train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        )
        thinwire.torch.transformers.attach(trainer, codec="auto")  # <-- Thinwire
        trainer.train()


if __name__ == "__main__":
    main()
