"""Steps of PyTorch with two threads: reads `NAME STEPS` a line and answers with milliseconds per step."""

import pathlib
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "reference"))
import dump

torch.set_default_dtype(torch.float32)
torch.set_num_threads(2)

BATCH = 32
MODELS = {
    "digits-mlp": (dump.Mlp([64, 64, 10]), (1, 8, 8)),
    "fashion-cnn": (dump.Cnn(1, 28), (1, 28, 28)),
    "cifar10-resnet20": (dump.ResNet(dump.Basic, [16, 32, 64], [3, 3, 3], False, 10, False), (3, 32, 32)),
}

for line in sys.stdin:
    name, steps = line.split()
    model, shape = MODELS[name]
    images = torch.randn(BATCH, *shape)
    labels = torch.arange(BATCH) % 10
    start = time.perf_counter()
    for _ in range(int(steps)):
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
    print((time.perf_counter() - start) / int(steps) * 1e3, flush=True)
