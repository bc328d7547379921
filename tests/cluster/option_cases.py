"""What the options of make_strategy have done, as TensorFlow and Keras say it."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from lost_cases import Begun, fitting

keras = tf.keras


def seen(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """What a process of multi_worker_mirrored shows."""
    del folder

    @tf.function(autograph=False)
    def exchange() -> Any:
        def added_up() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.ones(1024) * n for n in range(3)])

        return strategy.run(added_up)

    nodes = [node for node in _nodes(exchange.get_concrete_function()) if node.op == "CollectiveReduceV2"]
    with strategy.scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 1))
    return {
        "exchanges": len(nodes),
        "hints": sorted({node.attr["communication_hint"].s.decode() for node in nodes}),
        "threads": [
            tf.config.threading.get_intra_op_parallelism_threads(),
            tf.config.threading.get_inter_op_parallelism_threads(),
        ],
        "compute_dtype": str(layer.compute_dtype),
        "variable_dtype": tf.as_dtype(layer.kernel.dtype).name,
        "computed_in": layer(tf.ones((1, 1))).dtype.name,
    }


class _Hurried(Begun):
    """Shorten the limit of an exchange when a task is lost: before, one may trace for longer than the other."""

    def __init__(self, strategy: tf.distribute.Strategy, folder: Path) -> None:
        super().__init__(folder, until_lost=True)
        self.strategy = strategy

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.strategy.extended.should_checkpoint:
            super().on_train_batch_end(batch, logs)
            if (self.folder / "lost").exists():
                self.strategy._limit._seconds = 1.0


def fitting_in_a_hurry(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    return fitting(strategy, folder, _Hurried(strategy, folder))


def _nodes(function: Any) -> list[Any]:
    graph = function.graph.as_graph_def()
    return [*graph.node, *(node for each in graph.library.function for node in each.node_def)]


def shards(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """How variables of 64 and of 4 numbers are spread over two parameter servers."""
    del folder
    with strategy.scope():
        made = {size: tf.Variable(tf.ones((size, 1))) for size in (64, 4)}
    return {
        str(size): [int(part.shape[0]) for part in getattr(each, "variables", [each])]
        for size, each in made.items()
    }
