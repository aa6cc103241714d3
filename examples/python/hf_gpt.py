"""A GPT-2 of Transformers on Shakespeare: `quelea launch -n 4 examples/python/hf_gpt.py --data DIR`.

DIR has `input.txt`, also as `.gz` or `.xz`. Needs `pip install transformers accelerate`.
"""

import argparse
import tempfile

import torch
from data import shakespeare
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from quelea.transformers import QueleaTrainer


def windows(text, length):
    """The text in pieces; a language model predicts every character of a piece from those before it."""
    number = {letter: place for place, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[letter] for letter in text])
    rows = tokens[: len(tokens) // length * length].view(-1, length)
    return [{"input_ids": row, "labels": row} for row in rows], len(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--algorithm", default="d-psgd")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16, help="of each process")
    parser.add_argument("--length", type=int, default=128, help="characters that it sees")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    rows, letters = windows(shakespeare(options.data), options.length)
    torch.manual_seed(options.seed)
    sizes = {"n_positions": options.length, "n_embd": options.width, "n_layer": 4, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=letters, bos_token_id=0, eos_token_id=0, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            learning_rate=1e-3,
            seed=options.seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = QueleaTrainer(model, arguments, train_dataset=rows, algorithm=options.algorithm)
        print(f"loss {trainer.train().training_loss:.3f}")


if __name__ == "__main__":
    main()
