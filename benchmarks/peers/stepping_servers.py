"""Train a model on parameter servers for a number of steps, and say how fast it went: a task of a benchmark.

    python stepping_servers.py '{"loop": "tfdist", "model": "mnist_cnn", …}' FOLDER

The loop is tfdist's, or the fit of tf_keras as TensorFlow's guides write it. The chief measures: its clock,
and the CPU time of all tasks, which are on one machine.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from cores import busy_seconds, tell
from stepping import SHAPES, data

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(folder: Path) -> dict[str, float]:
    """Return each task's CPU seconds, by the name that it was started with."""
    found = {}
    for file in folder.glob("*.pid"):
        fields = Path(f"/proc/{file.read_text()}/stat").read_text().rpartition(")")[2].split()
        found[file.stem] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def window(keras: Any, bytes_sent: Any, steps: int, folder: Path) -> Any:
    """Make a callback that measures the last epoch."""

    class Window(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        found: dict[str, float]

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begun, self.sent = self.now(), bytes_sent()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            passed = {name: value - self.begun[name] for name, value in self.now().items()}
            wall, busy = passed.pop("wall"), passed.pop("busy")
            own = sum(passed.values())
            self.found = {
                **{name: value / steps for name, value in passed.items()},
                "wall": wall / steps,
                "cpu": own / steps,
                "sent": (bytes_sent() - self.sent) / steps,
                "outside": max(0.0, (busy - own) / wall),
            }

        def now(self) -> dict[str, float]:
            return {**cpu_seconds(folder), "wall": time.perf_counter(), "busy": busy_seconds()}

    return Window()


def serve(cluster: Any, is_ours: bool, folder: Path) -> None:
    """Serve as a ps or a worker, until the chief is done."""
    import tensorflow as tf

    import tfdist

    if is_ours:
        tfdist.serve(cluster)
        return
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
    task_type, index = cluster.task
    tf.distribute.Server(cluster.cluster_spec(), task_type, index, protocol="grpc", config=config)
    while not list(folder.glob("found-*.json")):
        time.sleep(0.2)


def main(order: dict[str, Any], folder: Path) -> None:
    """Train, or serve; the chief writes of one step seconds, each task's CPU seconds, and bytes sent."""
    is_ours = order["loop"] == "tfdist"
    if not is_ours:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    import tfdist
    from tfdist.models.model_by_name import build
    from tfdist.strategies.strategy_classes import ps_transfer_of

    cluster = tfdist.ClusterConfig.from_environment()
    (folder / f"{cluster.task or 'chief:0'}.pid").write_text(str(os.getpid()))
    is_one = not order["strategy"]
    if not is_one and not cluster.is_chief:
        serve(cluster, is_ours, folder)
        return
    name, batch, steps = order["model"], order["batch"], order["steps"]
    bytes_sent: Any = lambda: 0  # noqa: E731
    if is_one:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        strategy = tf.distribute.get_strategy() if not is_ours else tfdist.make_strategy(None)
    elif is_ours:
        said = {key: order[key] for key in ("implementation", "dtype") if order[key]}
        strategy = tfdist.make_strategy(cluster, order["strategy"], communication=said)
        bytes_sent = lambda: getattr(ps_transfer_of(strategy), "bytes_sent", 0)  # noqa: E731
    else:
        strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build(name, SHAPES[name], 10, **({"fused_normalization": False} if order["is_stock"] else {}))
        model.compile(
            tf.keras.optimizers.SGD(0.01, momentum=0.9),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=order["steps_per_execution"],
        )
    seen = window(tf.keras, bytes_sent, steps, folder)
    common = {"epochs": 2, "steps_per_epoch": steps, "callbacks": [seen], "verbose": 0}

    def make(context: Any) -> Any:
        return data(name, batch, context.input_pipeline_id)

    if is_ours:
        tfdist.fit(model, make, strategy=strategy, **common)
    elif is_one:
        model.fit(data(name, batch, 0), **common)
    else:
        model.fit(tf.keras.utils.experimental.DatasetCreator(make), **common)
    tell(folder, 0, [seen.found])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
