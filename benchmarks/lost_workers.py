"""Kill asynchronous workers at random moments, and count what the variables have got.

    python benchmarks/lost_workers.py [--kills 20] [--seed 0]

A weight of the model grows by exactly 1 in each step, and the optimizer counts its steps. Two workers train;
one of them is killed, again and again, while the other trains. In the end the launcher gets SIGTERM, and the
last checkpoint has to have as many steps as it is named after: counted by the optimizer exactly, and by the
weight but for the steps that a server was applying when the worker was lost. The launcher waits longer and
longer before it starts a task again that is lost so often.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from os import kill
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from proofs import variables
from results import machine, put, table
from setups import config
from training import Training

_WORKERS = ("worker:0", "worker:1")
_STEPS_OF_A_CALL, _BATCH = 20, 2048
_MOST_SECONDS = 2.0  # from the moment that both workers train to the kill


def main() -> None:
    """Read the flags, kill, and put what was counted into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    wanted = config("parameter_server", steps=10**7, data={"name": "digits", "batch_size": _BATCH})
    wanted["train"]["steps_per_execution"] = _STEPS_OF_A_CALL
    wanted["checkpoint"] = {"every": 10 * _STEPS_OF_A_CALL, "background": True}
    with (
        tempfile.TemporaryDirectory(prefix="lost-workers-") as folder,
        Training(Path(folder) / "run", wanted, str(Path(folder) / "cache")) as training,
    ):
        away = killed(training, flags.kills, random.Random(flags.seed))
        kill(training.process.pid, signal.SIGTERM)
        status = training.end()
        training.total = training.newest()
        found = variables(training)
    [weight] = (float(value) for name, value in found.items() if "counted" in name)
    [counter] = (int(value) for name, value in found.items() if "iteration" in name)
    head = (
        f"{_STEPS_OF_A_CALL} steps in a graph call, {_BATCH} examples a step; seed {flags.seed}; {machine()}."
    )
    columns = (
        "workers killed",
        "steps",
        "of the weight",
        "of the optimizer",
        "until a worker is back, median",
    )
    numbers = (flags.kills, training.total, f"{weight:.0f}", counter)
    put("lost workers", head, table(columns, [[*map(str, numbers), f"{statistics.median(away):.1f} s"]]))
    if status != 138 or not weight == counter == training.total:
        sys.exit(
            f"benchmarks/lost_workers.py: expected {training.total} steps and status 138, received"
            f" {weight:.0f} by the weight, {counter} by the optimizer, and status {status}"
        )


def killed(training: Training, kills: int, chance: random.Random) -> list[float]:
    """Kill a worker so many times; return the seconds until each was back."""
    training.start()
    away = []
    for number in range(kills):
        tasks = training.until(lambda: _both(training), "both workers are there")
        reached = training.reached()
        training.until(lambda reached=reached: training.reached() > reached, "training continues")
        time.sleep(chance.random() * _MOST_SECONDS)
        worker = chance.choice(_WORKERS)
        kill(tasks[worker], signal.SIGKILL)
        began = time.monotonic()
        gone = tasks[worker]
        training.until(
            lambda worker=worker, gone=gone: training.tasks().get(worker, gone) != gone, f"{worker} is back"
        )
        away.append(time.monotonic() - began)
        print(f"{number + 1} of {kills}: killed {worker} after step {training.reached()}", flush=True)
    return away


def _both(training: Training) -> dict[str, int] | None:
    tasks = training.tasks()
    return tasks if all(worker in tasks for worker in _WORKERS) else None


if __name__ == "__main__":
    main()
