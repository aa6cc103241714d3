"""Writes what PyTorch computes for small variants of every model: `python dump.py`, beside this file.

Parameters and inputs follow from a formula of their names, which the tests compute as well, so only results are kept:
the loss, the scores, and of the gradient of every tensor its norm and some of its numbers.
"""

import json
import math
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
# Differences that this finds shall be of the models, not of rounding: references are computed in double precision.
torch.set_default_dtype(torch.float64)


def noise(name, count):
    """Numbers in [-1, 1): a function of the name and the place alone."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1


def parameter(name, shape):
    values = noise(name, math.prod(shape))
    if len(shape) > 1:
        values = values * math.sqrt(6 / math.prod(shape[1:]))
    elif name.endswith("weight"):
        values = 1 + 0.2 * values
    else:
        values = 0.1 * values
    # The tests have them in single precision.
    values = values.astype(np.float32).astype(np.float64)
    return torch.tensor(values).reshape(shape).requires_grad_()


def images(shape):
    values = noise("images", math.prod(shape)).astype(np.float32).astype(np.float64)
    return torch.tensor(values).reshape(shape)


def summary(params, loss, scores):
    loss.backward()
    grads = {}
    for name, tensor in params.items():
        flat = tensor.grad.reshape(-1)
        places = sorted({k * len(flat) // 4 for k in range(4)})
        grads[name] = {"norm": flat.norm().item(), "at": places, "values": flat[places].tolist()}
    return {"loss": loss.item(), "scores": scores.detach().reshape(-1).tolist(), "grads": grads}


def write(name, result):
    def short(value):
        if isinstance(value, float):
            return float(f"{value:.7g}")
        if isinstance(value, dict):
            return {key: short(inner) for key, inner in value.items()}
        return [short(inner) for inner in value] if isinstance(value, list) else value

    file = pathlib.Path(__file__).parent / f"{name}.json"
    file.write_text(json.dumps(short(result), separators=(",", ":")) + "\n")


class Mlp(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(widths, widths[1:])])

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class Cnn(nn.Module):
    def __init__(self, channels, side):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * (side // 4) ** 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def norm(channels):
    # With momentum 1 the running statistics are those of the last batch.
    return nn.BatchNorm2d(channels, momentum=1.0)


class Basic(nn.Module):
    def __init__(self, before, after, stride, project):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = norm(after)
        self.pad = (after - before) // 2
        if project and (stride > 1 or before != after):
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def shortcut(self, x):
        if hasattr(self, "downsample"):
            return self.downsample(x)
        if self.pad:
            return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return x

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    def __init__(self, before, inner, stride, _):
        super().__init__()
        after = 4 * inner
        self.conv1 = nn.Conv2d(before, inner, 1, bias=False)
        self.bn1 = norm(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = norm(inner)
        self.conv3 = nn.Conv2d(inner, after, 1, bias=False)
        self.bn3 = norm(after)
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        past = self.downsample(x) if hasattr(self, "downsample") else x
        return F.relu(self.bn3(self.conv3(y)) + past)


class ResNet(nn.Module):
    def __init__(self, block, widths, blocks, project, classes, large):
        super().__init__()
        self.large = large
        self.conv1 = nn.Conv2d(3, widths[0], 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = norm(widths[0])
        before = widths[0]
        for stage, (width, number) in enumerate(zip(widths, blocks)):
            layers = []
            for index in range(number):
                layers.append(block(before, width, 2 if stage and not index else 1, project))
                before = 4 * width if block is Bottleneck else width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(widths)
        self.fc = nn.Linear(before, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Vgg(nn.Module):
    def __init__(self, stages, classes):
        super().__init__()
        layers, before = [], 3
        for stage in stages:
            for width in stage:
                layers += [nn.Conv2d(before, width, 3, padding=1), norm(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(before, classes))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def image_model(name, model, shape, classes):
    params = {key: parameter(key, value.shape) for key, value in model.named_parameters()}
    labels = torch.arange(shape[0]) % classes
    x = images(shape)
    scores = torch.func.functional_call(model, params, x)
    result = summary(params, F.cross_entropy(scores, labels), scores)
    buffers = {key: value for key, value in model.named_buffers() if "num" not in key}
    if buffers:
        model.eval()
        with torch.no_grad():
            answer = torch.func.functional_call(model, params, x)
        result["evaluated"] = answer.reshape(-1).tolist()
        first = next(key for key in buffers if key.endswith("running_var"))
        result["variance"] = {"name": first, "values": buffers[first].tolist()}
    write(name, result)


def linear_names(prefix, outputs, inputs):
    return {f"{prefix}.weight": (outputs, inputs), f"{prefix}.bias": (outputs,)}


def attention_names(prefix, width):
    names = {}
    for part in ["query", "key", "value", "output"]:
        names |= linear_names(f"{prefix}.{part}", width, width)
    return names


def norm_names(prefix, width):
    return {f"{prefix}.weight": (width,), f"{prefix}.bias": (width,)}


def packed(params, prefix, own):
    """The weights of nn.MultiheadAttention."""
    parts = [f"{prefix}.{part}" for part in ["query", "key", "value"]]
    return {
        f"{own}.in_proj_weight": torch.cat([params[f"{part}.weight"] for part in parts]),
        f"{own}.in_proj_bias": torch.cat([params[f"{part}.bias"] for part in parts]),
        f"{own}.out_proj.weight": params[f"{prefix}.output.weight"],
        f"{own}.out_proj.bias": params[f"{prefix}.output.bias"],
    }


def renamed(params, pairs):
    return {f"{own}.{kind}": params[f"{ours}.{kind}"] for ours, own in pairs for kind in ["weight", "bias"]}


def sinusoids(length, width):
    position = torch.arange(length)[:, None]
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


def transformer(name, shared):
    vocabulary, width, layers, heads, inner = 11, 16, 2, 2, 32
    names = {"embedding.weight": (vocabulary, width)}
    if not shared:
        names |= {"target_embedding.weight": (vocabulary, width)} | linear_names("output", vocabulary, width)
    for layer in range(layers):
        for side, norms in [("encoder", 2), ("decoder", 3)]:
            prefix = f"{side}.{layer}"
            names |= attention_names(f"{prefix}.attention", width)
            if side == "decoder":
                names |= attention_names(f"{prefix}.across", width)
            for number in range(1, norms + 1):
                names |= norm_names(f"{prefix}.norm{number}", width)
            names |= linear_names(f"{prefix}.inner", inner, width) | linear_names(f"{prefix}.outer", width, inner)
    params = {key: parameter(key, shape) for key, shape in names.items()}

    # Token 0 is padding.
    source = torch.tensor([[3, 5, 2, 7, 1], [4, 9, 10, 0, 0], [6, 2, 0, 0, 0]])
    target = torch.tensor([[1, 4, 4, 8], [1, 5, 0, 0], [1, 7, 3, 0]])
    goal = torch.tensor([[4, 4, 8, 2], [5, 2, -100, -100], [7, 3, 2, -100]])
    padding = source == 0
    target_table = params["embedding.weight" if shared else "target_embedding.weight"]
    position = sinusoids(8, width)
    x = F.embedding(source, params["embedding.weight"]) * math.sqrt(width) + position[: source.shape[1]]
    for layer in range(layers):
        module = nn.TransformerEncoderLayer(width, heads, inner, 0.0, batch_first=True)
        prefix = f"encoder.{layer}"
        weights = packed(params, f"{prefix}.attention", "self_attn") | renamed(
            params,
            [
                (f"{prefix}.{ours}", own)
                for ours, own in [("inner", "linear1"), ("outer", "linear2"), ("norm1", "norm1"), ("norm2", "norm2")]
            ],
        )
        x = torch.func.functional_call(module, weights, x, {"src_key_padding_mask": padding})
    memory = x
    y = F.embedding(target, target_table) * math.sqrt(width) + position[: target.shape[1]]
    causal = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
    for layer in range(layers):
        module = nn.TransformerDecoderLayer(width, heads, inner, 0.0, batch_first=True)
        prefix = f"decoder.{layer}"
        own = packed(params, f"{prefix}.attention", "self_attn") | packed(params, f"{prefix}.across", "multihead_attn")
        own |= renamed(
            params,
            [
                (f"{prefix}.{ours}", theirs)
                for ours, theirs in [("inner", "linear1"), ("outer", "linear2")]
                + [(f"norm{number}",) * 2 for number in (1, 2, 3)]
            ],
        )
        y = torch.func.functional_call(
            module, own, (y, memory), {"tgt_mask": causal, "memory_key_padding_mask": padding}
        )
    scores = y @ params["embedding.weight"].T if shared else F.linear(y, params["output.weight"], params["output.bias"])
    loss = F.cross_entropy(scores.reshape(-1, vocabulary), goal.reshape(-1), label_smoothing=0.1)
    write(name, summary(params, loss, scores))


def language():
    vocabulary, context, width, layers, heads = 13, 6, 16, 2, 2
    names = {"tokens.weight": (vocabulary, width), "positions.weight": (context, width)} | norm_names("norm", width)
    for layer in range(layers):
        prefix = f"layers.{layer}"
        names |= attention_names(f"{prefix}.attention", width)
        names |= norm_names(f"{prefix}.norm1", width) | norm_names(f"{prefix}.norm2", width)
        names |= linear_names(f"{prefix}.inner", 4 * width, width) | linear_names(f"{prefix}.outer", width, 4 * width)
    params = {key: parameter(key, shape) for key, shape in names.items()}
    tokens = torch.tensor([[3, 5, 2, 7, 1], [4, 9, 10, 12, 0]])
    goal = torch.tensor([[5, 2, 7, 1, 6], [9, 10, 12, 0, 3]])
    x = F.embedding(tokens, params["tokens.weight"]) + params["positions.weight"][: tokens.shape[1]]
    causal = torch.triu(torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool), 1)
    for layer in range(layers):
        module = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        prefix = f"layers.{layer}"
        weights = packed(params, f"{prefix}.attention", "self_attn") | renamed(
            params,
            [
                (f"{prefix}.{ours}", own)
                for ours, own in [("inner", "linear1"), ("outer", "linear2"), ("norm1", "norm1"), ("norm2", "norm2")]
            ],
        )
        x = torch.func.functional_call(module, weights, x, {"src_mask": causal})
    x = F.layer_norm(x, (width,), params["norm.weight"], params["norm.bias"])
    scores = x @ params["tokens.weight"].T
    loss = F.cross_entropy(scores.reshape(-1, vocabulary), goal.reshape(-1))
    write("language", summary(params, loss, scores))


if __name__ == "__main__":
    image_model("mlp", Mlp([64, 16, 10]), (5, 1, 8, 8), 10)
    image_model("cnn", Cnn(1, 28), (3, 1, 28, 28), 10)
    image_model("resnet20", ResNet(Basic, [16, 32, 64], [3, 3, 3], False, 10, False), (4, 3, 16, 16), 10)
    image_model("resnet18", ResNet(Basic, [8, 16, 32, 64], [2, 2, 2, 2], True, 10, False), (4, 3, 16, 16), 10)
    image_model("resnet50", ResNet(Bottleneck, [8, 16, 32, 64], [1, 2, 1, 1], True, 10, True), (4, 3, 64, 64), 10)
    image_model("vgg16", Vgg([[8], [16, 16], [16]], 10), (4, 3, 8, 8), 10)
    transformer("transformer", True)
    transformer("transformer-apart", False)
    language()
