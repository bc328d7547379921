"""Train random Keras 3 models by Keras's own `fit` and by tfdist's, and compare all numbers.

    python benchmarks/random_models.py                          # seeds 0 to 29, on two devices of one process
    python benchmarks/random_models.py --seeds 100:400
    python benchmarks/random_models.py --seeds 7:8 --strategy one_device

Each seed gives a model, a loss for each output, an optimizer, metrics, weights, and data in one of the forms
that `fit` takes. Both train it for two epochs in float64, evaluate it, and predict. History, results of
`evaluate`, predictions, weights and the optimizer's variables must agree. Adafactor and Lion are left out,
since they make large steps of gradients that are only rounding errors; and so are losses that compare the
examples of a batch with each other, of which each replica sees a part.

It ends with status 1 if any number differs, and names its seed.
"""

import argparse
import contextlib
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from drawn_model import Case, drawn

import tfdist
from tfdist.errors import ConfigError

keras: Any = tf.keras
WAYS = ("fit", "evaluate", "predict")
SHOWN = 6  # differences of a seed
TOLERANCE = {"logs": 3e-5, "arrays": 1e-5}  # Keras adds up its logs in float32


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """What a callback sees after each batch and each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the batch and its logs."""
        self.values += [batch, *_numbers_in(logs)]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the logs, and what the model and its optimizer have."""
        rate, steps = (float(self.model.optimizer.learning_rate), int(self.model.optimizer.iterations))
        sums = [float(np.sum(weight)) for weight in self.model.get_weights()]
        self.values += [epoch, *_numbers_in(logs), rate, steps, *sums]


def _numbers_in(logs: Any) -> list[float]:
    return [float(np.mean(logs[name])) for name in sorted(logs or {})]


class Halving(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that halves the weights after each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Halve them."""
        self.model.set_weights([weight * 0.5 for weight in self.model.get_weights()])


class StopsEarly(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that ends training within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End it after two batches."""
        self.model.stop_training = batch >= 1


def callbacks(draw: random.Random, model: Any) -> list[Any]:
    """Return callbacks, of which the first notes what it sees."""
    kinds = keras.callbacks
    found: list[Any] = [Seen()]
    if draw.random() < 0.15:
        found.append(kinds.EarlyStopping("loss", patience=0, mode="max", restore_best_weights=True))
    if draw.random() < 0.1:
        found.append(Halving())
    if draw.random() < 0.1:
        found.append(StopsEarly())
    changes_rate = draw.random() < 0.2
    if changes_rate and isinstance(model.optimizer.learning_rate, keras.Variable):
        rate = kinds.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        found.append(draw.choice([rate, kinds.ReduceLROnPlateau("loss", 0.5, patience=0, mode="max")]))
    return found


def trained(case: Case, seed: int, fit: Callable[..., Any]) -> dict[str, Any]:
    """Train a case's model by a function like `Model.fit`; return the history, and what callbacks see."""
    draw = random.Random(seed + 1)
    found = _trained_once(case, draw, fit, "")
    again = draw.choice(["", "", "", "again", "recompiled"])
    if again == "recompiled":
        layers = [layer for layer in case.model.layers if layer.trainable_variables]
        if len(layers) > 1:
            draw.choice(layers).trainable = False
        case.model.compile(keras.optimizers.Adam(0.01), case.model.loss)
    if again:
        found |= _trained_once(case, draw, fit, f"{again} ")
    return found


def _trained_once(case: Case, draw: random.Random, fit: Callable[..., Any], name: str) -> dict[str, Any]:
    model, y, weights, x = case.model, case.y, case.weights, _fed(case.x)
    options: dict[str, Any] = {"epochs": draw.choice([2, 2, 3]), "verbose": 0, "shuffle": False}
    options["initial_epoch"] = draw.choice([0, 0, 0, 1])
    parts = tuple(
        tuple(part) if isinstance(part, list) else part for part in (x, y, weights) if part is not None
    )
    if draw.random() < 0.5:
        options["validation_data"] = parts if case.form != "dataset" else _batched(parts, 4)
        if case.form == "dataset":
            options["validation_steps"] = draw.choice([None, 1, 2])
        else:
            options["validation_batch_size"] = draw.choice([None, 3])
        options["validation_freq"] = draw.choice([1, 1, 2, [1, 3]])
    elif case.form == "arrays" and draw.random() < 0.5:
        options["validation_split"] = 0.3
    if case.class_weight and case.form not in ("generator", "irregular"):  # as Keras has it
        options["class_weight"] = case.class_weight
    options["callbacks"] = callbacks(draw, model)
    history = fit(model, **_data(case, parts, draw), **options).history
    found = {f"{name}history {each}": values for each, values in history.items()}
    return found | {f"{name}callback": options["callbacks"][0].values}


def _data(case: Case, parts: Any, draw: random.Random) -> dict[str, Any]:
    """Return the data in the form of a case, as arguments of `fit`."""
    if case.form in ("arrays", "tensors"):
        whole = (_fed(case.x), case.y, case.weights)
        if case.form == "tensors":
            whole = tf.nest.map_structure(lambda part: None if part is None else tf.constant(part), whole)
        steps = draw.choice([None, None, None, 2])
        names = ("x", "y", "sample_weight")
        return {**dict(zip(names, whole, strict=True)), "batch_size": case.batch, "steps_per_epoch": steps}
    batches = _batched(parts, case.batch, drop_remainder=draw.random() < 0.3)
    if case.form == "dataset":
        return {"x": batches}
    if case.form == "repeated":
        return {"x": batches.repeat(), "steps_per_epoch": draw.choice([2, 3, 5])}
    if case.form == "generator":
        return {"x": _forever(batches), "steps_per_epoch": draw.choice([2, 3])}
    if case.form == "irregular":  # batches of 1, 2, 3, 1, … examples
        count = len(tf.nest.flatten(parts)[0])
        sizes = [1 + place % 3 for place in range(count)]
        ends = [end for end in np.cumsum([0, *sizes]).tolist() if end <= count]
        examples = [
            tf.nest.map_structure(lambda part, a=a, b=b: part[a:b], parts)
            for a, b in itertools.pairwise(ends)
        ]
        spec = tf.nest.map_structure(
            lambda part: tf.TensorSpec(
                (None, *part.shape[1:]), "string" if part.dtype == object else part.dtype
            ),
            parts,
        )
        batches = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=spec)
        # At the end of data of unknown size, Keras begins a step more, in which some variables change.
        return {"x": batches.apply(tf.data.experimental.assert_cardinality(len(examples)))}
    kept = list(batches)

    class Sequence(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(kept)

        def __getitem__(self, index: int) -> Any:
            return tf.nest.map_structure(lambda part: part.numpy(), kept[index])

    return {"x": Sequence()}


def _fed(x: Any) -> Any:
    """Return inputs with tensors of strings, of which Keras takes no arrays."""
    return tf.nest.map_structure(lambda part: tf.constant(part) if part.dtype == object else part, x)


def _batched(parts: Any, size: int, *, drop_remainder: bool = False) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts).batch(size, drop_remainder=drop_remainder)


def _forever(batches: tf.data.Dataset) -> Iterator[Any]:
    while True:
        yield from batches.as_numpy_iterator()


def numbers_of(
    seed: int, ways: Sequence[Callable[..., Any]], scope: contextlib.AbstractContextManager[Any]
) -> tuple[dict[str, Any], str]:
    """Return all numbers that fit, evaluate and predict give for a seed, by name, and what is trained."""
    fit, evaluate, predict = ways
    keras.utils.clear_session()
    with scope:
        case = drawn(seed)
    found = trained(case, seed, fit)
    model, x, y, weights = case.model, _fed(case.x), case.y, case.weights
    options = {"verbose": 0, "return_dict": True}
    tested = evaluate(model, x, y, sample_weight=weights, batch_size=case.batch + 1, **options)
    found |= {f"evaluate {name}": value for name, value in tested.items()}
    found |= _numbered("prediction", tf.nest.flatten(predict(model, x, batch_size=case.batch, verbose=0)))
    found |= _numbered("weight", model.get_weights())
    found |= _numbered("optimizer's variable", [variable.numpy() for variable in model.optimizer.variables])
    return found, case.words


def _numbered(name: str, values: list[Any]) -> dict[str, Any]:
    return {f"{name} {place}": value for place, value in enumerate(values)}


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return a line for each number that two ways to train do not share."""
    lines = [f"{name}: only one has it" for name in sorted(expected.keys() ^ found.keys())]
    for name in sorted(expected.keys() & found.keys()):
        first, second = (np.asarray(each[name], "float64") for each in (expected, found))
        close = TOLERANCE[
            "logs" if any(word in name for word in ("history", "evaluate", "callback")) else "arrays"
        ]
        if first.shape != second.shape or not np.allclose(first, second, close, close, equal_nan=True):
            lines.append(f"{name}: Keras {_shown(first)}, tfdist {_shown(second)}")
    return lines


def _shown(values: Any) -> str:
    return np.array2string(values.ravel()[:4], precision=8)


def main() -> int:
    """Compare the seeds, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:30", help="FIRST:END")
    parser.add_argument("--strategy", default="mirrored", choices=["mirrored", "one_device"])
    arguments = parser.parse_args()
    if keras.__version__ < "3":
        parser.error(f"expected Keras 3, received Keras {keras.__version__}")
    first, end = map(int, arguments.seeds.split(":"))
    devices = 2 if arguments.strategy == "mirrored" else None
    strategy = tfdist.make_strategy(strategy=arguments.strategy, logical_devices=devices)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    kerass = [getattr(keras.Model, way) for way in WAYS]
    ours = [getattr(tfdist, way) for way in WAYS]
    equal, wrong = 0, 0
    for seed in range(first, end):
        try:
            expected, words = numbers_of(seed, kerass, contextlib.nullcontext())
        except (ValueError, TypeError, LookupError, tf.errors.OpError) as error:
            print(f"seed {seed}: Keras refuses it: {str(error).splitlines()[0]:.100}", flush=True)
            continue
        try:
            lines = differences(expected, numbers_of(seed, ours, strategy.scope())[0])
        except ConfigError as error:
            print(f"seed {seed}: tfdist refuses it: {error}", flush=True)
            continue
        except (ValueError, TypeError, LookupError, AssertionError, tf.errors.OpError) as error:
            lines = [f"tfdist fails: {type(error).__name__}: {error}"]
        equal, wrong = equal + (not lines), wrong + bool(lines)
        if lines:
            shown = [*lines[:SHOWN], *([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]
            print(f"seed {seed}: {words}", *shown, sep="\n  ", flush=True)
    print(f"{equal} of {equal + wrong} models have the numbers of Keras's own fit", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
