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
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError

keras: Any = tf.keras
WAYS = ("fit", "evaluate", "predict")
CLASSES, WORDS, LENGTH = 3, 11, 5
TOLERANCE = {"logs": 3e-5, "arrays": 1e-5}  # Keras adds up its logs in float32
INPUTS = [
    *2 * [["numbers"]], ["pictures"], ["words"], ["tags"],
    ["numbers", "words"], ["numbers", "pictures"], ["numbers", "numbers"],
]  # fmt: skip
FORMS = ["arrays", "arrays", "tensors", "dataset", "repeated", "generator", "pydataset"]


class Case(NamedTuple):
    """A compiled model, and what to train it with."""

    model: Any
    x: Any
    y: Any
    weights: Any
    class_weight: dict[int, float] | None
    form: str
    batch: int
    words: str


class AddsLoss(keras.layers.Layer):  # type: ignore[misc]
    """A layer that adds a loss of its own."""

    def call(self, x: Any) -> Any:
        """Return x, and add the mean of its squares to the model's loss."""
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x * 1.0


class MovingMean(keras.layers.Layer):  # type: ignore[misc]
    """A layer that writes a variable while it trains."""

    def build(self, shape: Any) -> None:
        """Make the variable."""
        self.mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        """Return x less the mean of earlier batches."""
        centred = x - 0.1 * self.mean
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
        return centred


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model with a training step of its own."""

    def train_step(self, data: Any) -> Any:
        """Train on a batch, as Keras's documentation shows."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, y_pred, weights)


# -- parts of models --


def dense(draw: random.Random) -> Any:
    """Return a dense layer, perhaps with penalties and a constraint."""
    return keras.layers.Dense(
        draw.choice([3, 4, 6]),
        activation=draw.choice([None, "relu", "tanh", "gelu", "selu"]),
        kernel_regularizer=draw.choice([None, None, "l2", "l1"]),
        bias_regularizer=draw.choice([None, None, "l2"]),
        activity_regularizer=draw.choice([None, None, None, "l2"]),
        kernel_constraint=draw.choice([None, None, None, "max_norm", "non_neg", "unit_norm"]),
    )


def normalized(draw: random.Random) -> Any:
    """Return a layer that normalizes a batch."""
    return keras.layers.BatchNormalization(momentum=draw.choice([0.5, 0.9]), synchronized=True)


def on_numbers(draw: random.Random, x: Any) -> Any:
    """Return what some layers make of numbers."""
    layers = keras.layers
    for _ in range(draw.randint(1, 3)):
        make = draw.choice(
            [
                lambda: dense(draw),
                lambda: normalized(draw),
                layers.LayerNormalization,
                lambda: layers.GroupNormalization(1),
                layers.PReLU,
                layers.UnitNormalization,
                AddsLoss,
                MovingMean,
                lambda: layers.SpectralNormalization(layers.Dense(3)),
            ]
        )
        x = make()(x)
    return x


def on_pictures(draw: random.Random, x: Any) -> Any:
    """Return the features of pictures."""
    layers = keras.layers
    kernels = {"kernel_regularizer": draw.choice([None, "l2"])}
    x = draw.choice(
        [
            layers.Conv2D(3, 3, padding="same", **kernels),
            layers.SeparableConv2D(4, 3),
            layers.DepthwiseConv2D(3),
            layers.Conv2DTranspose(2, 2),
        ]
    )(x)
    x = normalized(draw)(x) if draw.random() < 0.6 else x
    x = draw.choice([layers.MaxPooling2D(2), layers.AveragePooling2D(2), layers.UpSampling2D(2)])(x)
    return draw.choice([layers.GlobalAveragePooling2D(), layers.GlobalMaxPooling2D(), layers.Flatten()])(x)


def on_words(draw: random.Random, x: Any) -> Any:
    """Return the features of rows of words, of which the mask may hide some."""
    layers = keras.layers
    x = layers.Embedding(WORDS, 4, mask_zero=draw.random() < 0.5)(x)
    kind = draw.choice(["lstm", "both ways", "mean", "attention", "two layers"])
    if kind == "attention":
        return layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 2)(x, x))
    if kind == "two layers":
        return layers.GRU(2)(layers.LSTM(3, return_sequences=True)(x))
    made = {
        "lstm": layers.LSTM(3),
        "both ways": layers.Bidirectional(layers.GRU(3)),
        "mean": layers.GlobalAveragePooling1D(),
    }
    return made[kind](x)


def on_tags(draw: random.Random, x: Any) -> Any:
    """Return features of each word that the mask does not hide."""
    x = keras.layers.Embedding(WORDS, 4, mask_zero=True)(x)
    return draw.choice([keras.layers.LSTM(4, return_sequences=True), keras.layers.Dense(4, "tanh")])(x)


BODIES = {"numbers": on_numbers, "pictures": on_pictures, "words": on_words, "tags": on_tags}


def head(draw: random.Random, x: Any, name: str, *, is_row: bool) -> tuple[Any, str, Any, list[Any]]:
    """Return an output, its kind, a loss for it, and metrics to choose from.

    `is_row` is False if there is an output for each word of a row: not all metrics take these.
    """
    losses, metrics, layers = keras.losses, keras.metrics, keras.layers
    kind = draw.choice(["numbers", "yes", "one of", "class", "some of"])
    if kind == "numbers":
        found = [
            "mse", "mae", "huber", "log_cosh", "cosine_similarity", losses.Huber(0.5),
            losses.MeanSquaredError(reduction="sum"),
        ]  # fmt: skip
        of_rows = [metrics.R2Score()] if is_row else []
        return (
            layers.Dense(2, name=name)(x),
            kind,
            draw.choice(found),
            [metrics.LogCoshError(), "mae", *of_rows],
        )
    if kind == "yes":
        found = ["binary_crossentropy", "binary_focal_crossentropy", "hinge", "poisson"]
        counted = [metrics.AUC(num_thresholds=20), metrics.Precision(), metrics.Recall(), "accuracy"]
        return layers.Dense(1, "sigmoid", name=name)(x), kind, draw.choice(found), counted
    if kind == "one of":
        found = [
            "categorical_crossentropy",
            "kl_divergence",
            losses.CategoricalCrossentropy(label_smoothing=0.2),
        ]
        of_rows = [metrics.F1Score(average="macro")] if is_row else []
        counted = ["accuracy", metrics.KLDivergence(), metrics.OneHotMeanIoU(CLASSES), *of_rows]
        return layers.Dense(CLASSES, "softmax", name=name)(x), kind, draw.choice(found), counted
    if kind == "class":
        loss = losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=draw.choice([None, None, 0])
        )
        return layers.Dense(CLASSES, name=name)(x), kind, loss, ["accuracy"]
    counted = ["accuracy", metrics.Precision(class_id=1), metrics.BinaryAccuracy()]
    return layers.Dense(CLASSES, "sigmoid", name=name)(x), kind, "binary_crossentropy", counted


def optimizer(draw: random.Random) -> Any:
    """Return an optimizer with some of its options."""
    kinds = keras.optimizers
    rate: Any = draw.choice([0.01, 0.1])
    rate = kinds.schedules.ExponentialDecay(0.05, 2, 0.8) if draw.random() < 0.2 else rate
    options: dict[str, Any] = {}
    if draw.random() < 0.3:
        options[draw.choice(["clipnorm", "global_clipnorm", "clipvalue"])] = draw.choice([0.05, 0.5])
    if draw.random() < 0.2:
        options |= {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": draw.choice([None, 2])}
    if draw.random() < 0.2:
        options["gradient_accumulation_steps"] = draw.choice([2, 3])
    if draw.random() < 0.2:
        options["weight_decay"] = 0.01
    names = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lamb"]
    name = draw.choice(names)
    if name == "SGD":
        options |= {"momentum": draw.choice([0.0, 0.9]), "nesterov": draw.random() < 0.3}
    if name == "Adam":
        options["amsgrad"] = draw.random() < 0.5
    return getattr(kinds, name)(rate, **options)


# -- data --


def examples(draw: np.random.Generator, kind: str, count: int) -> Any:
    """Return inputs of a kind."""
    if kind == "numbers":
        return draw.normal(size=(count, 4))
    if kind == "pictures":
        return draw.normal(size=(count, 6, 6, 2))
    rows = draw.integers(1, WORDS, size=(count, LENGTH)).astype("int32")
    for row in rows:
        row[draw.integers(1, LENGTH + 1) :] = 0
    return rows


def targets(draw: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    """Return targets for an output of a kind."""
    if kind == "numbers":
        return draw.normal(size=(*shape, 2))
    if kind == "one of":
        return np.eye(CLASSES)[draw.integers(0, CLASSES, size=shape)]
    if kind == "class":
        return draw.integers(0, CLASSES, size=shape)
    return draw.integers(0, 2, size=(*shape, 1 if kind == "yes" else CLASSES)).astype("float64")


def drawn(seed: int) -> Case:
    """Return the case of a seed, of whose model the strategy in scope has the variables."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    inputs = draw.choice(INPUTS)
    shapes = {"numbers": (4,), "pictures": (6, 6, 2), "words": (LENGTH,), "tags": (LENGTH,)}
    made = [
        keras.Input(shapes[kind], name=f"in{place}", dtype="int32" if kind in ("words", "tags") else None)
        for place, kind in enumerate(inputs)
    ]
    parts = [BODIES[kind](draw, each) for kind, each in zip(inputs, made, strict=True)]
    features = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    is_row = inputs != ["tags"]
    features = on_numbers(draw, features) if is_row and draw.random() < 0.5 else features
    heads = [
        head(draw, features, f"out{place}", is_row=is_row) for place in range(draw.choice([1, 1, 1, 2, 2, 3]))
    ]
    base = OwnStep if draw.random() < 0.2 else keras.Model
    model = base(_one(made), _one([output for output, *_ in heads]))
    if draw.random() < 0.15:
        draw.choice(model.layers[len(inputs) :]).trainable = False
    options = {
        "metrics": [draw.sample(metrics, draw.randint(0, min(2, len(metrics)))) for *_, metrics in heads],
        "weighted_metrics": [
            ["mse"] if draw.random() < 0.3 and kind != "class" else [] for _, kind, *_ in heads
        ],
    }
    model.compile(
        optimizer(draw),
        _one([loss for _, _, loss, _ in heads]),
        loss_weights=[draw.choice([0.5, 1.0, 2.0]) for _ in heads] if len(heads) > 1 else None,
        steps_per_execution=draw.choice([1, 1, 2, 3]),
        jit_compile=False,
        run_eagerly=draw.random() < 0.05,
        **{name: _one(values) for name, values in options.items()},
    )
    count = draw.choice([7, 12, 13, 17, 22])
    shape = (count,) if is_row else (count, LENGTH)
    y = [targets(numbers, kind, shape) for _, kind, *_ in heads]
    weights, class_weight = None, None
    if draw.random() < 0.35:
        of = shape if draw.random() < 0.3 else (count,)
        weights = [numbers.uniform(0, 2, size=of) * (numbers.random(of) < 0.8) for _ in heads]
    elif len(heads) == 1 and is_row and heads[0][1] in ("class", "one of") and draw.random() < 0.4:
        class_weight = {0: 0.5, 1: 2.0, 2: 1.0}
    form = draw.choice(FORMS)
    words = f"{[type(layer).__name__ for layer in model.layers]}, {model.optimizer.name}, {form}"
    x = [examples(numbers, kind, count) for kind in inputs]
    batch = draw.choice([2, 3, 4, 5, 8])
    weights = None if weights is None else _one(weights)
    return Case(model, _one(x), _one(y), weights, class_weight, form, batch, words)


def _one(values: list[Any]) -> Any:
    """Return the values, or the only one."""
    return values if len(values) > 1 else values[0]


# -- the comparison --


def trained(case: Case, seed: int, fit: Callable[..., Any]) -> dict[str, Any]:
    """Train a case's model by a function like `Model.fit`, and return the history."""
    draw, (model, x, y, weights, *_) = random.Random(seed + 1), case
    options: dict[str, Any] = {"epochs": 2, "verbose": 0, "shuffle": False}
    parts = tuple(
        tuple(part) if isinstance(part, list) else part for part in (x, y, weights) if part is not None
    )
    if draw.random() < 0.5:
        options["validation_data"] = parts if case.form != "dataset" else _batched(parts, 4)
    elif case.form == "arrays" and draw.random() < 0.5:
        options["validation_split"] = 0.3
    if case.class_weight and case.form != "generator":  # as Keras has it
        options["class_weight"] = case.class_weight
    if case.form in ("arrays", "tensors"):
        whole = (x, y, weights)
        if case.form == "tensors":
            whole = tf.nest.map_structure(lambda part: None if part is None else tf.constant(part), whole)
        x, y, weights = whole
        return dict(fit(model, x, y, batch_size=case.batch, sample_weight=weights, **options).history)
    batches = _batched(parts, case.batch, drop_remainder=draw.random() < 0.3)
    if case.form == "dataset":
        return dict(fit(model, batches, **options).history)
    if case.form == "repeated":
        return dict(fit(model, batches.repeat(), steps_per_epoch=draw.choice([2, 3, 5]), **options).history)
    if case.form == "generator":
        return dict(fit(model, _forever(batches), steps_per_epoch=draw.choice([2, 3]), **options).history)
    kept = list(batches)

    class Sequence(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(kept)

        def __getitem__(self, index: int) -> Any:
            return tf.nest.map_structure(lambda part: part.numpy(), kept[index])

    return dict(fit(model, Sequence(), **options).history)


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
    found = {f"history {name}": values for name, values in trained(case, seed, fit).items()}
    model, x, y, weights = case.model, case.x, case.y, case.weights
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
        close = TOLERANCE["logs" if name.startswith(("history", "evaluate")) else "arrays"]
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
        except (ValueError, TypeError, tf.errors.OpError) as error:
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
            print(f"seed {seed}: {words}", *lines, sep="\n  ", flush=True)
    print(f"{equal} of {equal + wrong} models have the numbers of Keras's own fit", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
