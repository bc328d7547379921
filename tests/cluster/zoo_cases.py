"""Train the models of the zoo: a case `by_tfdist_MODEL` and a case `by_keras_MODEL` for each."""

import contextlib
import functools
from pathlib import Path
from typing import Any

import tensorflow as tf
from cases import compute_in
from zoo_models import MODELS, dataset

from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit

keras = tf.keras


class Logs(keras.callbacks.Callback):
    """Record the logs of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append({name: float(value) for name, value in logs.items()})


def by_tfdist(name: str, strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train and test a model by tfdist."""
    del folder
    return _trained(name, strategy.scope(), functools.partial(fit, strategy=strategy), evaluate)


def by_keras(name: str, strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train and test a model by Keras's own functions in one process."""
    del strategy, folder
    train = keras.Model.fit
    return _trained(
        name, contextlib.nullcontext(), functools.partial(train, shuffle=False), keras.Model.evaluate
    )


for model in MODELS:
    globals()[f"by_tfdist_{model}"] = functools.partial(by_tfdist, model)
    globals()[f"by_keras_{model}"] = functools.partial(by_keras, model)


def _trained(name: str, scope: Any, train: Any, test: Any) -> dict[str, Any]:
    compute_in("float64")
    try:
        keras.utils.set_random_seed(3)
        with scope:
            entry = MODELS[name]()
            entry.model.compile(**entry.compiled)
        logs, data = Logs(), dataset(entry)
        train(entry.model, data, callbacks=[logs], verbose=0)
        counted = float(entry.model.metrics[0].count.numpy())
        return {
            "logs": logs.steps,
            "counted": counted,
            "evaluated": test(entry.model, data, verbose=0, return_dict=True),
            "weights": [weight.tolist() for weight in entry.model.get_weights()],
            "iterations": int(entry.model.optimizer.iterations.numpy()),
        }
    finally:
        compute_in("float32")
