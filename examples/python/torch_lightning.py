"""Lightning with gradients averaged by Thinwire: the line with an arrow.

pip install lightning
python examples/python/torch_lightning.py
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import thinwire.torch.lightning


class Line(lightning.LightningModule):
    """A line to fit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        """The loss of a batch."""
        inputs, target = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), target)
        if number == 0:
            self.print(f"epoch {self.current_epoch} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    """Trains on two processes of this machine."""
    inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=4,
        callbacks=[thinwire.torch.lightning.GradExchange(codec="auto")],  # <-- Thinwire
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer.fit(Line(), DataLoader(data, batch_size=32))


if __name__ == "__main__":
    main()
