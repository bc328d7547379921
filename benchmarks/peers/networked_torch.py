"""Train a model with PyTorch over a network, as `networked.py` does with TensorFlow.

    python networked_torch.py '{"model": "mnist_cnn", …}' FOLDER

Several workers use DistributedDataParallel with gloo. The models have the shapes and order of layers of
tfdist's. The CNNs are those of `single_torch.py`, with its fast normalisation. The transformer's attention
is PyTorch's own function. The gradients of its table are dense, as they are by default; those of the two
towers' table are sparse.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from network_layers import EXAMPLES, LAYERS, ROWS, TOKENS, VOCABULARY, WIDTH, examples, time_shares
from network_traffic import Recorder, note_task, tell, wait_for_results
from single_torch import made
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

RATE = 0.001
OF_FORWARD = 1 / 3


class Attention(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        def split(rows):
            return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        heads = (split(layer(x)) for layer in (self.query, self.key, self.value))
        return self.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.last = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.last(self.between(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.normal, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.normal(self.blocks(self.table(tokens) + self.positions))
        return self.out(x[:, -1])


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, 32, sparse=True)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(2)
        )

    def forward(self, numbers):
        halves = self.table(numbers).split(TOKENS // 2, 1)
        left, right = (tower(half.mean(1)) for tower, half in zip(self.towers, halves, strict=True))
        return (left * right).sum(1)


class Pause(torch.autograd.Function):
    @staticmethod
    def forward(context, x, seconds):
        context.seconds = seconds * (1 - OF_FORWARD)
        time.sleep(seconds * OF_FORWARD)
        return x.clone()

    @staticmethod
    def backward(context, upstream):
        time.sleep(context.seconds)
        return upstream, None


class Bare(nn.Module):
    """Own the weights of a model, and sleep instead of computing."""

    def __init__(self, name, seconds):
        super().__init__()
        self.pauses = [seconds * share for share in time_shares(name)]
        self.layers = nn.ModuleList(
            nn.Embedding(*layer.weights[0], sparse=name == "two_tower")
            if layer.is_table
            else nn.ParameterList(torch.zeros(shape) for shape in layer.weights)
            for layer in LAYERS[name]
        )

    def forward(self, x):
        y = torch.zeros(len(x), 1)
        for layer, seconds in zip(self.layers, self.pauses, strict=True):
            if isinstance(layer, nn.Embedding):
                y = y + layer(x).sum((1, 2))[:, None]
            else:
                y = y + sum(weight.sum() for weight in layer)
            if seconds:
                y = Pause.apply(y, seconds)
        return y[:, 0]


def whole(name):
    if name == "transformer":
        return Transformer()
    return TwoTower() if name == "two_tower" else made(name, True).to(memory_format=torch.channels_last)


def loss_of(name, outputs, answers):
    if name == "two_tower":
        return functional.binary_cross_entropy_with_logits(outputs, answers.float())
    return functional.cross_entropy(outputs, answers)


def train(order, seconds, is_bare, rank, workers, seen):
    name = order["model"]
    model: Any = Bare(name, seconds) if is_bare else whole(name)
    if workers > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.0 if name == "two_tower" else 0.9)
    inputs, answers = (torch.from_numpy(each) for each in examples(name, rank))
    answers = answers.long()
    for step in range(1, seen.steps + 1):
        chosen = torch.randint(EXAMPLES, (order["batch"],))
        x = inputs[chosen]
        if not is_bare and x.dim() == 4:
            x = (x.float() / 255).permute(0, 3, 1, 2)
        outputs = model(x)
        loss = outputs.mean() if is_bare else loss_of(name, outputs, answers[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.after_step(step)


def main(order: dict[str, Any], folder: Path) -> None:
    """Train, and write what the windows have seen."""
    torch.set_num_threads(1)
    config = json.loads(os.environ["TF_CONFIG"])
    hosts, rank = config["cluster"]["worker"], config["task"]["index"]
    note_task(folder, f"worker-{rank}")
    torch.manual_seed(0)
    if len(hosts) > 1:
        method = f"tcp://{hosts[0]}"
        distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=len(hosts))
    found = {}
    for part, seconds in (("train", order["seconds"]), ("exchange", 0.0)):
        seen = Recorder(folder, order["warm_up"], order["steps"], order["window"])
        train(order, seconds, part == "exchange" or order["seconds"] > 0, rank, len(hosts), seen)
        found[part] = seen.windows
    if rank == 0:
        tell(folder, **found)
    wait_for_results(folder)
    if len(hosts) > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
