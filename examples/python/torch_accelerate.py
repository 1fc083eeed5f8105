"""Hugging Face Accelerate with gradients averaged by Thinwire: the line with an arrow.

pip install accelerate
accelerate launch --cpu --num_processes 2 examples/python/torch_accelerate.py

Under torchrun, on CPUs: Accelerator(cpu=True), without which Accelerate does not use DDP.
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import thinwire.torch.accelerate


def main() -> None:
    """Fits a line."""
    accelerator = Accelerator()
    inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    thinwire.torch.accelerate.attach(accelerator, model, codec="auto")  # <-- Thinwire
    for epoch in range(5):
        for batch, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
