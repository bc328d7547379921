"""Train the same models in one process with PyTorch; print a stamp after each quarter.

python single_torch.py {"model": "cifar10_cnn", "options": {}, "augment": "cifar10_2016", ...}

Batches are cut out, mirrored and relit as a whole: on one core a DataLoader's workers cost more.
"""

import json
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Normalized(torch.autograd.Function):
    """Normalise local responses as tfdist does: by a matrix product, with a gradient of its own."""

    @staticmethod
    def forward(context, x, band):
        channels = x.shape[1]
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        scale = torch.addmm(torch.ones(channels), rows * rows, band, alpha=0.001 / 9)
        root = torch.rsqrt(scale)
        factor = root * torch.sqrt(root)
        context.save_for_backward(rows, scale, factor, band)
        return _images(rows * factor, x)

    @staticmethod
    def backward(context, upstream):
        rows, scale, factor, band = context.saved_tensors
        scaled = upstream.permute(0, 2, 3, 1).reshape(rows.shape) * factor
        others = torch.mm(scaled * rows / scale, band)
        return _images(scaled.addcmul_(rows, others, value=-2 * 0.001 / 9 * 0.75), upstream), None


def _images(rows, like):
    count, channels, height, width = like.shape
    return rows.view(count, height, width, channels).permute(0, 3, 1, 2)


class Normalization(nn.Module):
    def __init__(self, channels):
        super().__init__()
        numbers = torch.arange(channels)
        self.band = ((numbers - numbers[:, None]).abs() <= 4).float()

    def forward(self, x):
        return Normalized.apply(x, self.band)


class Pool(nn.Module):
    def forward(self, x):
        return functional.max_pool2d(functional.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2)


class Flat(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)  # rows of pixels, as they lie in memory


def made(name: str, fast: bool) -> nn.Module:
    if name == "mnist_cnn":
        first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        last = [nn.Linear(3136, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10)]
        return nn.Sequential(*first, *second, Flat(), *last)

    def normalization():
        return Normalization(64) if fast else nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    first = [nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), Pool(), normalization()]
    second = [nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), normalization(), Pool()]
    last = [nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)]
    return nn.Sequential(*first, *second, Flat(), *last)


def altered(images: torch.Tensor) -> torch.Tensor:
    """Augment images as TensorFlow's CIFAR-10 tutorial did, and standardise them."""
    count, size = len(images), 24
    top, left = torch.randint(0, 9, (2, count, 1))
    rows, columns = top + torch.arange(size), torch.arange(size).expand(count, size)
    columns = left + torch.where(torch.rand(count, 1) < 0.5, size - 1 - columns, columns)
    images = images[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]].float()
    images += 126 * torch.rand(count, 1, 1, 1) - 63
    mean = images.mean((1, 2), keepdim=True)
    images = (images - mean) * (0.2 + 1.6 * torch.rand(count, 1, 1, 1)) + mean
    flat = images.flatten(1)
    deviation, mean = torch.std_mean(flat, 1, correction=0, keepdim=True)
    return ((flat - mean) / deviation.clamp(min=flat.shape[1] ** -0.5)).view(images.shape)


def main(work: dict) -> None:
    torch.set_num_threads(1)
    shape = tuple(work["image_shape"])
    images = torch.from_numpy(np.memmap(work["train_images"], np.uint8, "c").reshape(-1, *shape))
    labels = torch.from_numpy(np.memmap(work["train_labels"], np.int32, "c")).long()
    model = made(work["model"], work["fast"]).to(memory_format=torch.channels_last)
    decayed = [each.weight for each in model if isinstance(each, nn.Linear)][:2]
    decay = 0.002 if work["model"] == "cifar10_cnn" else 0.0
    parameters, rate = list(model.parameters()), work["rate"]
    adam = work["optimizer"] == "adam"
    optimizer = (
        torch.optim.Adam(parameters, rate) if adam else torch.optim.SGD(parameters, rate, momentum=0.9)
    )
    order, batch = torch.randperm(len(images)), work["batch"]
    for step in range(work["steps"]):
        chosen = order[torch.arange(step * batch, (step + 1) * batch) % len(order)]
        x = altered(images[chosen]) if work["augment"] == "cifar10_2016" else images[chosen].float() / 255
        loss = functional.cross_entropy(model(x.permute(0, 3, 1, 2)), labels[chosen])
        if decay:
            loss = loss + decay * sum((each * each).sum() for each in decayed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % (work["steps"] // 4) == 0:
            loss.item()
            print(json.dumps([time.monotonic(), time.process_time()]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
