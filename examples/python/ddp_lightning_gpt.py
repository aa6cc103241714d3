"""A small GPT in Lightning on Shakespeare: `python examples/python/ddp_lightning_gpt.py --data DIR`.

DIR has `input.txt`, also as `.gz` or `.xz`. Needs `pip install lightning`.
"""

import argparse

import torch
from data import shakespeare
from lightning.pytorch import LightningModule, Trainer
from models import GPT
from torch.nn.functional import cross_entropy


class LightningGPT(LightningModule):
    def __init__(self, letters, length, width):
        super().__init__()
        self.model = GPT(letters, length, width)

    def training_step(self, rows, _):
        loss = cross_entropy(self.model(rows[:, :-1]).transpose(1, 2), rows[:, 1:])
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16, help="of each process")
    parser.add_argument("--length", type=int, default=128, help="characters that it sees")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    text = shakespeare(options.data)
    number = {letter: place for place, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[letter] for letter in text])
    rows = tokens.unfold(0, options.length + 1, options.length)
    loader = torch.utils.data.DataLoader(rows, options.batch, shuffle=True)
    torch.manual_seed(options.seed)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = Trainer(strategy="ddp", devices=options.devices, max_steps=options.steps, **quiet)
    trainer.fit(LightningGPT(len(number), options.length, options.width), loader)
    print(f"loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
