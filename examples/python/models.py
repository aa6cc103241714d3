"""The networks of the examples: a ResNet, a translation Transformer and a small GPT."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import pad, relu, scaled_dot_product_attention


class Normalise(nn.Module):
    """Bytes of CIFAR-10 to numbers of mean 0 and variance 1 per channel."""

    def __init__(self):
        super().__init__()
        mean, deviation = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images / 255 - self.mean) / self.deviation


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters (He et al. 2016, option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.more:
            x = x[:, :, :: self.stride, :: self.stride]
            x = pad(x, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return relu(y + x)


def resnet20(classes: int = 10, width: int = 16) -> nn.Module:
    """ResNet-20 for bytes of CIFAR-10: 0.27 million parameters, initialised as in the paper."""
    layers: list[nn.Module] = [
        Normalise(),
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for stage in range(3):
        for place in range(3):
            stride = 2 if stage > 0 and place == 0 else 1
            layers.append(Block(inputs, width << stage, stride))
            inputs = width << stage
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model


def vgg11(classes: int = 10) -> nn.Module:
    """VGG-11 with batch normalization for bytes of CIFAR-10: one linear layer, 9.2 million parameters."""
    layers: list[nn.Module] = [Normalise()]
    inputs = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        inputs = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return model


class Attention(nn.Module):
    """Several heads. `memory` is what is looked at, the input itself if there is none."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.query, self.pairs = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out, self.heads, self.dropout = nn.Linear(width, width), heads, dropout

    def forward(self, x, memory=None, mask=None, causal=False):
        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query = split(self.query(x))
        key, value = (split(y) for y in self.pairs(x if memory is None else memory).chunk(2, -1))
        share = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(query, key, value, mask, share, causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention to itself, to a memory if `crossed`, and a network; each normalised before."""

    def __init__(self, width: int, heads: int, dropout: float, crossed: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        if crossed:
            self.norm3, self.crossed = nn.LayerNorm(width), Attention(width, heads, dropout)
        wide = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        self.network, self.drop = nn.Sequential(*wide), nn.Dropout(dropout)

    def forward(self, x, memory=None, mask=None, causal=False):
        own = None if memory is not None else mask
        x = x + self.drop(self.attention(self.norm1(x), mask=own, causal=causal))
        if memory is not None:
            x = x + self.drop(self.crossed(self.norm3(x), memory, mask))
        return x + self.drop(self.network(self.norm2(x)))


class Embedding(nn.Module):
    """Tokens and places."""

    def __init__(self, vocabulary: int, width: int, length: int, dropout: float):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens):
        return self.drop(self.token(tokens) + self.place.weight[: tokens.shape[1]])


class GPT(nn.Module):
    """A language model: scores of the next token at every place."""

    def __init__(self, vocabulary, length, width=128, layers=4, heads=4, dropout=0.1):
        super().__init__()
        self.embedding = Embedding(vocabulary, width, length, dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm, self.length = nn.LayerNorm(width), length
        scale_outputs(self, layers)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, causal=True)
        return self.norm(x) @ self.embedding.token.weight.T


class Translator(nn.Module):
    """Encoder and decoder with one vocabulary, which is the output layer too. Token 0 pads."""

    def __init__(self, vocabulary, length, width=256, layers=3, heads=4, dropout=0.1):
        super().__init__()
        self.embedding = Embedding(vocabulary, width, length, dropout)
        self.encoder = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, dropout, True) for _ in range(layers))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        scale_outputs(self, layers)

    def forward(self, source, target):
        return self.decode(target, *self.encode(source))

    def encode(self, source):
        mask = (source != 0)[:, None, None, :]
        x = self.embedding(source)
        for layer in self.encoder:
            x = layer(x, mask=mask)
        return self.norm1(x), mask

    def decode(self, target, memory, mask, only_last=False):
        x = self.embedding(target)
        for layer in self.decoder:
            x = layer(x, memory, mask, causal=True)
        return self.norm2(x[:, -1:] if only_last else x) @ self.embedding.token.weight.T


def scale_outputs(model: nn.Module, layers: int) -> None:
    """Small weights, smaller where a layer adds to what passes it by (as in GPT-2)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            adds = name.endswith((".out", "network.2"))
            width = module.in_features
            nn.init.normal_(
                module.weight, std=width**-0.5 * (1 / math.sqrt(2 * layers) if adds else 1)
            )
            nn.init.zeros_(module.bias)
