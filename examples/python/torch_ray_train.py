"""Ray Train with gradients averaged by Thinwire: the line with an arrow.

pip install "ray[train]"
python examples/python/torch_ray_train.py
"""

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

import thinwire.torch.ray


def train() -> None:
    """Fits a line; Ray calls this on every worker."""
    model = prepare_model(torch.nn.Linear(8, 1))
    thinwire.torch.ray.attach(model, codec="auto")  # <-- Thinwire
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(rank)
    for epoch in range(5):
        for _ in range(10):
            inputs = torch.randn(32, 8)
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2)).fit()
