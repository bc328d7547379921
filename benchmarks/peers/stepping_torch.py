"""Train a model with PyTorch on one core, as `stepping.py` does with TensorFlow: alone, or with DDP and gloo.

    python stepping_torch.py '{"model": "mnist_cnn", …}' FOLDER

The model is that of `single_torch.py`, with its fast normalisation.
"""

import json
import os
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from cores import tell
from single_torch import made
from stepping import EXAMPLES, SHAPES, WARM_UP, WINDOW, Stamp
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def main(order: dict[str, Any]) -> tuple[int, list[dict[str, float]]]:
    """Train; give the rank, and by window a step's seconds, CPU seconds, and what others had of the core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    config = json.loads(os.environ["TF_CONFIG"])
    workers, rank = config["cluster"]["worker"], config["task"]["index"]
    torch.manual_seed(0)
    model: Any = made(order["model"], True).to(memory_format=torch.channels_last)
    if len(workers) > 1:
        method = f"tcp://{workers[0]}"
        distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=len(workers))
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    rng = np.random.default_rng(rank)
    images = torch.from_numpy(rng.integers(0, 256, size=(EXAMPLES, *SHAPES[order["model"]])).astype("uint8"))
    labels = torch.from_numpy(rng.integers(0, 10, size=EXAMPLES))

    def step() -> None:
        chosen = torch.randint(EXAMPLES, (order["batch"],))
        x = (images[chosen].float() / 255).permute(0, 3, 1, 2)
        loss = functional.cross_entropy(model(x), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    stamps = [Stamp.now()]
    for _ in range(order["steps"] // WINDOW):
        for _ in range(WINDOW):
            step()
        stamps.append(Stamp.now())
    return rank, [now.since(begun, WINDOW) for begun, now in pairwise(stamps)]


if __name__ == "__main__":
    tell(sys.argv[2], *main(json.loads(sys.argv[1])))
