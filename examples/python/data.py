"""The data of the examples, from the files as they are published, also compressed.

- CIFAR-10: `data_batch_1.bin` … `data_batch_5.bin`, `test_batch.bin` (the binary version)
- Multi30k: `train.en`, `train.de`, `val.en`, … one sentence a line
- tiny Shakespeare: `input.txt`
"""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy
import torch

OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}


def read(folder: str | Path, name: str) -> bytes:
    """The content of a file, which may have been compressed with gzip or xz."""
    for ending, opener in OPENERS.items():
        path = Path(folder) / (name + ending)
        if path.exists():
            with opener(path, "rb") as file:
                return file.read()
    raise SystemExit(f"no {name}, {name}.gz or {name}.xz in {folder}: see --data")


def cifar10(folder: str | Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, as bytes of n×3×32×32, and classes of the part "train" or "test"."""
    names = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}
    content = b"".join(read(folder, name) for name in names[part])
    rows = torch.from_numpy(numpy.frombuffer(content, numpy.uint8).reshape(-1, 3073).copy())
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def cropped(images: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Each image moved by up to four pixels over zeros, and maybe mirrored; `moves` has a row of
    (down, right, mirrored) per image, from 0 to 8, 0 to 8 and 0 to 1."""
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    place = torch.arange(32, device=images.device)
    rows = moves[:, :1] + place
    mirrored = torch.where(moves[:, 2:] > 0, 31 - place, place)
    columns = moves[:, 1:2] + mirrored
    which = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def multi30k(folder: str | Path, part: str) -> tuple[list[str], list[str]]:
    """English and German sentences of a part such as "train"."""
    english, german = (read(folder, f"{part}.{tongue}").decode() for tongue in ("en", "de"))
    return english.removesuffix("\n").split("\n"), german.removesuffix("\n").split("\n")


def shakespeare(folder: str | Path) -> str:
    """All of it."""
    return read(folder, "input.txt").decode()
