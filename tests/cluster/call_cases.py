"""Workers that make different calls, as scripts with a mistake do."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
from cases import batches, points
from task import wait_for

from tfdist.coordination import out_of_step_watch
from tfdist.errors import ConfigError
from tfdist.training.barrier import barrier
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict
from tfdist.training.save import save
from tfdist.training.start import watch_variables_and_data
from tfdist.training.workers.choose_steps_per_call import StepsPerCall
from tfdist.training.workers.stop_together import Agreement

keras = tf.keras


def trained(strategy: tf.distribute.Strategy) -> Any:
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    fit(model, batches(*points()), strategy=strategy, verbose=0)
    return model


def apart(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Make different calls, all of which are refused on all workers, and then the same again."""
    model, is_chief = trained(strategy), strategy.extended.should_checkpoint
    data, inputs = batches(*points()), points()[0]
    few = tf.data.Dataset.from_tensor_slices(inputs[:7]).batch(7)

    def evaluated() -> Any:
        return evaluate(model, data, strategy=strategy, verbose=0)

    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "predict": (lambda: predict(model, few, strategy=strategy, verbose=0), evaluated),
        "evaluate": (
            evaluated,
            lambda: predict(model, data.map(lambda x, y: x), strategy=strategy, verbose=0),
        ),
        "barrier": (barrier, evaluated),
        "save": (
            lambda: save(model, folder / "model.keras"),
            lambda: fit(model, data, strategy=strategy, verbose=0),
        ),
    }
    found: dict[str, Any] = {"refused": {name: _refused(*pair, is_chief) for name, pair in pairs.items()}}
    found["loss"] = evaluated()
    return found | {"written": sorted(path.name for path in folder.glob("model*"))}


def agreed(strategy: tf.distribute.Strategy, folder: Path) -> list[int]:
    """Return the steps of each call, where the workers measure times of their own."""
    del folder
    is_chief = strategy.extended.should_checkpoint
    calls = StepsPerCall(None)
    agreement, numbers = Agreement(strategy, is_chief=is_chief, steps_per_call=calls), []
    for count in range(200):
        if count == 20:
            calls.wanted = 7 if is_chief else 90  # after many calls without an exchange
        numbers.append(calls.number)
        agreement.after_execution(False)
    return numbers


def _refused(chiefs: Callable[[], Any], others: Callable[[], Any], is_chief: bool) -> str:
    try:
        (chiefs if is_chief else others)()
    except ConfigError as error:
        return str(error)
    return "not refused"


def ended(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Predict on the chief, while the script of the other worker ends."""
    model = trained(strategy)
    if strategy.extended.should_checkpoint:
        predict(model, points()[0], strategy=strategy, verbose=0)


def ended_first(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Predict on the other worker, while the script of the chief ends."""
    model = trained(strategy)
    if not strategy.extended.should_checkpoint:
        time.sleep(1)
        predict(model, points()[0], strategy=strategy, verbose=0)


def loaded(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Load the model on the chief alone, while the other worker waits at a barrier."""
    model = trained(strategy)
    watch_variables_and_data(strategy)
    save(model, folder / "model.keras")
    if strategy.extended.should_checkpoint:
        with strategy.scope():  # `start` enters it
            keras.models.load_model(folder / "model.keras")
    barrier()


class Failing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            raise ValueError("a bad file")


def caught(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Catch an exception of one worker's own, and continue."""
    model = trained(strategy)
    callbacks = [] if strategy.extended.should_checkpoint else [Failing()]
    try:
        fit(model, batches(*points()), strategy=strategy, epochs=3, callbacks=callbacks, verbose=0)
    except ValueError as error:
        print(f"caught {error}", flush=True)
    evaluate(model, batches(*points()), strategy=strategy, verbose=0)


def busy(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Work on the chief until the other, which waits in a call, has said so."""
    model = trained(strategy)
    if strategy.extended.should_checkpoint:
        # In this wait alone: in others, one worker may trace for longer.
        with mock.patch.object(out_of_step_watch, "_SECONDS_BEFORE_WARNING", 3.0):
            (folder / "busy").touch()
            wait_for(folder / "told")
    else:
        wait_for(folder / "busy")
    return {"loss": evaluate(model, batches(*points()), strategy=strategy, verbose=0)}
