"""Draw a compiled random Keras model and the data to train it with, by a seed."""

import random
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from drawn_layers import BODIES, LENGTH, NAMES, WORDS, on_numbers

keras: Any = tf.keras
CLASSES = 3
INPUTS = [
    *2 * [["numbers"]], ["pictures"], ["words"], ["tags"], ["series"], ["names"],
    ["numbers", "words"], ["numbers", "pictures"], ["numbers", "numbers"], ["names", "numbers"],
    ["series", "words"],
]  # fmt: skip
SHAPES = {
    "numbers": (4,),
    "pictures": (6, 6, 2),
    "words": (LENGTH,),
    "tags": (LENGTH,),
    "series": (LENGTH, 3),
    "names": (1,),
}
DTYPES = {"words": "int32", "tags": "int32", "names": "string"}
FORMS = ["arrays", "arrays", "tensors", "dataset", "repeated", "generator", "pydataset", "irregular"]


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


# -- models with a training step of their own --


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model whose step trains as Keras's documentation shows."""

    def train_step(self, data: Any) -> Any:
        """Train on a batch."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_of(x, y, y_pred, weights)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.update(gradients)
        return self.compute_metrics(x, y, y_pred, weights)

    def loss_of(self, x: Any, y: Any, y_pred: Any, weights: Any) -> Any:
        """Return the loss to train by."""
        return self.compute_loss(x, y, y_pred, weights)

    def update(self, gradients: list[Any]) -> None:
        """Update the weights."""
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))


class OwnClipping(OwnStep):
    """A model whose step clips the gradients and penalizes the weights."""

    def loss_of(self, x: Any, y: Any, y_pred: Any, weights: Any) -> Any:
        """Return the loss with a penalty."""
        penalty = tf.add_n([tf.reduce_sum(tf.square(variable)) for variable in self.trainable_variables])
        return self.compute_loss(x, y, y_pred, weights) + 0.01 * penalty

    def update(self, gradients: list[Any]) -> None:
        """Update the weights by gradients that are no longer than 0.1 in all."""
        self.optimizer.apply_gradients(
            zip(tf.clip_by_global_norm(gradients, 0.1)[0], self.trainable_variables, strict=True)
        )


class OwnTracker(OwnStep):
    """A model whose step and test return means that they track themselves."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen = keras.metrics.Mean(name="seen")

    @property
    def metrics(self) -> list[Any]:
        """Return the metrics to reset."""
        return [self.seen]

    def train_step(self, data: Any) -> Any:
        """Train on a batch."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.seen.update_state(tf.nest.flatten(y_pred)[0])
        return {"seen": self.seen.result()}

    def test_step(self, data: Any) -> Any:
        """Test on a batch."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        self.seen.update_state(tf.nest.flatten(self(x, training=False))[0])
        return {"seen": self.seen.result()}


# -- losses and metrics of the user's own --


def squares_of_examples(y_true: Any, y_pred: Any) -> Any:
    """Return a loss for each example."""
    return tf.reduce_mean(tf.square(tf.cast(y_true, y_pred.dtype) - y_pred), axis=-1)


def mean_of_squares(y_true: Any, y_pred: Any) -> Any:
    """Return one loss for the batch."""
    return tf.reduce_mean(tf.square(tf.cast(y_true, y_pred.dtype) - y_pred))


class OwnLoss(keras.losses.Loss):  # type: ignore[misc]
    """A loss for each example, with a margin."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each example."""
        return keras.ops.max(keras.ops.abs(keras.ops.cast(y_true, y_pred.dtype) - y_pred) - 0.1, axis=-1)


class Positives(keras.metrics.Metric):  # type: ignore[misc]
    """The sum of what is positive, and the number of examples."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.total = self.add_variable((), "zeros", name="total")
        self.number = self.add_variable((), "zeros", name="number")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch."""
        self.total.assign(self.total + keras.ops.sum(keras.ops.relu(y_pred)))
        self.number.assign(self.number + keras.ops.cast(keras.ops.shape(y_pred)[0], self.number.dtype))

    def result(self) -> Any:
        """Return both."""
        # Not the variable itself: Keras reads it after the validation has counted in it.
        return {"positive": self.total / (self.number + 1e-7), "examples": 1 * self.number}


def largest_error(y_true: Any, y_pred: Any) -> Any:
    """Return a value for each example."""
    return keras.ops.max(keras.ops.abs(keras.ops.cast(y_true, y_pred.dtype) - y_pred), axis=-1)


# -- outputs --


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
            draw.choice([*found, squares_of_examples, mean_of_squares, OwnLoss(), OwnLoss(reduction="sum")]),
            [metrics.LogCoshError(), "mae", Positives(), largest_error, *of_rows],
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
    if kind == "names":
        return draw.choice(np.array([*NAMES, "elm"]), size=(count, 1)).astype(object)
    if kind == "series":
        rows = draw.normal(size=(count, LENGTH, 3))
        for row in rows:
            row[draw.integers(1, LENGTH + 1) :] = 0
        return rows
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
    made = [
        keras.Input(SHAPES[kind], name=f"in{place}", dtype=DTYPES.get(kind))
        for place, kind in enumerate(inputs)
    ]
    parts = [BODIES[kind](draw, each) for kind, each in zip(inputs, made, strict=True)]
    features = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    is_row = inputs != ["tags"]
    features = on_numbers(draw, features) if is_row and draw.random() < 0.5 else features
    heads = [
        head(draw, features, f"out{place}", is_row=is_row) for place in range(draw.choice([1, 1, 1, 2, 2, 3]))
    ]
    base = draw.choice([*8 * [keras.Model], OwnStep, OwnClipping, OwnTracker])
    names_x = [each.name for each in made] if draw.random() < 0.3 else None
    names_y = [f"out{place}" for place in range(len(heads))] if draw.random() < 0.3 else None
    model = base(_structure(made, names_x), _structure([output for output, *_ in heads], names_y))
    if draw.random() < 0.15:
        draw.choice(model.layers[len(inputs) :]).trainable = False
    metrics = [draw.sample(metrics, draw.randint(0, min(2, len(metrics)))) for *_, metrics in heads]
    weighted = [["mse"] if draw.random() < 0.3 and kind != "class" else [] for _, kind, *_ in heads]
    loss_weights = [draw.choice([0.5, 1.0, 2.0]) for _ in heads] if len(heads) > 1 else None
    model.compile(
        optimizer(draw),
        _structure([loss for _, _, loss, _ in heads], names_y),
        loss_weights=None if loss_weights is None else _structure(loss_weights, names_y),
        metrics=_structure(metrics, names_y),
        weighted_metrics=_structure(weighted, names_y),
        steps_per_execution=draw.choice([1, 1, 2, 3]),
        jit_compile=False,
        run_eagerly=draw.random() < 0.05,
    )
    count = draw.choice([7, 12, 13, 17, 22])
    shape = (count,) if is_row else (count, LENGTH)
    y = [targets(numbers, kind, shape) for _, kind, *_ in heads]
    weights, class_weight = None, None
    if draw.random() < 0.35 and not any(loss is mean_of_squares for _, _, loss, _ in heads):
        of = shape if draw.random() < 0.3 else (count,)
        weights = [numbers.uniform(0, 2, size=of) * (numbers.random(of) < 0.8) for _ in heads]
    elif len(heads) == 1 and is_row and heads[0][1] in ("class", "one of") and draw.random() < 0.4:
        class_weight = {0: 0.5, 1: 2.0, 2: 1.0}
    form = draw.choice(FORMS)
    words = (
        f"{base.__name__}, {[type(layer).__name__ for layer in model.layers]}, {model.optimizer.name}, {form}"
    )
    x = [examples(numbers, kind, count) for kind in inputs]
    batch = draw.choice([2, 3, 4, 5, 8])
    weights = None if weights is None else _structure(weights, names_y)
    x, y = _structure(x, names_x), _structure(y, names_y)
    return Case(model, x, y, weights, class_weight, form, batch, words)


def _structure(values: list[Any], names: list[str] | None) -> Any:
    """Return the values by their names, in a list, or the only one."""
    if names is not None:
        return dict(zip(names, values, strict=True))
    return values if len(values) > 1 else values[0]
