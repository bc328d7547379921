"""Check what a config's names become, which of them replace what a model was compiled with, and what is refused."""

import math

import numpy as np
import own_objects
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.trainer.compilation import compile_model, counts_right_classes
from tfdist.trainer.config import read_config
from tfdist.trainer.losses_and_metrics import has_one_hot_labels

keras = tf.keras
IS_KERAS_2 = keras.__version__.startswith("2.")
X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = np.arange(12, dtype=np.int32) % 3


def made(ending=None, kind=keras.Model, **compiled):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(3, ending)(inputs), name="mine")
    if compiled:
        model.compile(**compiled)
    return model


@pytest.fixture
def compiled(tmp_path):
    def compile_by(train="", *, data="", model=None, outputs="logits", steps=8):
        (tmp_path / "x.yaml").write_text(f"train: {{{train}}}\ndata: {{{data}}}")
        config = read_config(tmp_path / "x.yaml").config
        model = model or made("softmax" if outputs == "probabilities" else None)
        compile_model(model, config, outputs, steps=steps)
        one_hot = has_one_hot_labels(config, model.loss)
        labels = np.eye(3, dtype="float32")[Y] if one_hot else Y
        return model, lambda: model.evaluate(X, labels, verbose=0, return_dict=True)

    return compile_by


@pytest.fixture
def refused(compiled):
    def message(*arguments, **options):
        with pytest.raises(ConfigError) as caught:
            compiled(*arguments, **options)
        return str(caught.value)

    return message


def expected_loss(model, is_softmax=False):
    outputs = model(X).numpy().astype("float64")
    log = np.log(outputs) if is_softmax else outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
    return -log[np.arange(12), Y].mean()


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
@pytest.mark.parametrize("name", ["sparse_categorical_crossentropy", "CategoricalCrossentropy", ""])
def test_the_loss_is_that_of_the_models_outputs(compiled, outputs, name):
    model, evaluate = compiled(f"loss: {name}" if name else "", outputs=outputs)
    results = evaluate()
    assert results["loss"] == pytest.approx(expected_loss(model, outputs == "probabilities"), rel=1e-5)
    assert results["accuracy"] == pytest.approx(np.mean(model(X).numpy().argmax(1) == Y))


@pytest.mark.parametrize("name", ["crossentropy", "ce", "sparse_categorical_crossentropy"])
def test_a_metric_is_that_of_the_models_outputs(compiled, name):
    model, evaluate = compiled(f"metrics: [{name}]")
    results = evaluate()
    assert results["sparse_categorical_crossentropy"] == pytest.approx(expected_loss(model), rel=1e-5)
    assert "accuracy" in results


def test_every_optimizer_of_keras_has_its_name(compiled):
    names = [
        name
        for name, kind in vars(keras.optimizers).items()
        if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
        if name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap")
    ]
    assert len(names) > 8
    for name in names:
        for spelt in (name, name.lower()):
            model, _ = compiled(f"optimizer: {spelt}, learning_rate: 0.25")
            assert type(model.optimizer).__name__ == name
            assert float(model.optimizer.learning_rate) == 0.25


def test_arguments_reach_the_optimizer_and_the_schedule_too(compiled):
    model, _ = compiled("optimizer: {name: adamw, weight_decay: 0.125}, schedule: cosine, learning_rate: 0.5")
    assert type(model.optimizer).__name__ == "AdamW"
    assert model.optimizer.weight_decay == 0.125
    rate = model.optimizer.get_config()["learning_rate"]["config"]
    assert (rate["initial_learning_rate"], rate["decay_steps"]) == (0.5, 8)
    model, _ = compiled("optimizer: {name: nesterov, momentum: 0.75}")
    assert (model.optimizer.momentum, model.optimizer.nesterov) == (0.75, True)


def test_own_objects(compiled):
    model, evaluate = compiled(
        "optimizer: {name: own_objects:momentum, share: 0.25}, loss: own_objects:shifted,"
        " metrics: [own_objects:Count, own_objects:is_zero, {name: own_objects:distance, power: 2}]"
    )
    assert model.optimizer.momentum == 0.25
    results = evaluate()
    assert results["loss"] == pytest.approx(1 + expected_loss(model), rel=1e-5)
    assert results["count"] == 12
    assert results["is_zero"] == pytest.approx(1 / 3)
    assert results["to_power"] == pytest.approx((model(X).numpy() ** 2).mean(), rel=1e-5)
    for text, factor in (("{name: own_objects:scaled, factor: 3}", 3), ("own_objects:Halved", 0.5)):
        model, evaluate = compiled(f"loss: {text}")
        assert evaluate()["loss"] == pytest.approx(factor * expected_loss(model), rel=1e-5)


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("optimizer: adamm", "train.optimizer: there is no 'adamm'. Did you mean 'adam'?"),
        ("optimizer: {name: sgd, momentun: 0.9}", "train.optimizer: sgd: has no argument 'momentun'. Did you mean 'momentum'?"),
        ("optimizer: {name: sgd, learning_rate: 0.9}", "train.optimizer: sgd: has a learning_rate of its own. Write train.learning_rate"),
        ("optimizer: {name: sgd, momentum: 7}", "train.optimizer: sgd: Keras does not accept its arguments: "),
        ("optimizer: own_objects:momentun", "train.optimizer own_objects:momentun: own_objects has no 'momentun'. Did you mean 'momentum'?"),
        ("optimizer: own_objects:not_an_optimizer", "train.optimizer: own_objects:not_an_optimizer: expected an optimizer of Keras, received 0.001"),
        ("optimizer: {name: own_objects:momentum, shard: 1}", "train.optimizer: own_objects:momentum: has no argument 'shard'. Did you mean 'share'?"),
        ("loss: sparse_categorical_crossentopy", "train.loss: there is no 'sparse_categorical_crossentopy'. Did you mean 'sparse_categorical_crossentropy'?"),
        ("loss: ctc", "train.loss: there is no 'ctc'. "),
        ("loss: kl_divergence", "train.loss: kl_divergence: needs probabilities, but the model returns logits. End the model in a softmax"),
        ("loss: {name: sparse_categorical_crossentropy, from_logits: false}", "train.loss: sparse_categorical_crossentropy: from_logits is false, but the model returns logits. Leave from_logits out"),
        ("metrics: [precision]", "train.metrics: precision: compares with one-hot labels, but the labels are class numbers. Take train.loss: categorical_crossentropy"),
        ("metrics: [top_k_categorical_accuracy]", "train.metrics: top_k_categorical_accuracy: compares with one-hot labels, but the labels are class numbers. Take sparse_top_k_categorical_accuracy"),
        ("metrics: [sparse_categorical_accuracy], loss: mse", "train.metrics: sparse_categorical_accuracy: compares with class numbers, but the labels are one-hot. Take categorical_accuracy"),
        ("metrics: [precision], loss: categorical_crossentropy", "train.metrics: precision: needs probabilities, but the model returns logits. "),
        ("metrics: [auc], loss: categorical_crossentropy", "train.metrics: auc: needs probabilities, but the model returns logits. "),
        pytest.param("metrics: [{name: f1_score, threshold: 0.5}], loss: categorical_crossentropy", "train.metrics: f1_score: needs probabilities, but the model returns logits. ", marks=pytest.mark.skipif(not hasattr(keras.metrics, "F1Score"), reason="TensorFlow 2.12 has no F1Score")),
        ("metrics: [precision_at_recall], loss: mse", "train.metrics: precision_at_recall: "),
        ("metrics: [{name: own_objects:scaled, factor: 2}]", "train.metrics: own_objects:scaled: is named 'loss', as the loss is."),
        ("metrics: [mean]", "train.metrics: there is no 'mean'. "),
    ],
)  # fmt: skip
def test_what_does_not_exist_or_fit_is_refused(refused, train, problem):
    assert refused(train).startswith(problem)


def test_outputs_that_may_be_either_are_asked_about(refused, compiled):
    message = refused(outputs="unknown")
    assert "Write {name: sparse_categorical_crossentropy, from_logits: false} for probabilities" in message
    model, evaluate = compiled(
        "loss: {name: sparse_categorical_crossentropy, from_logits: false}",
        outputs="unknown",
        model=made("softmax"),
    )
    assert evaluate()["loss"] == pytest.approx(expected_loss(model, is_softmax=True), rel=1e-5)


def test_labels_are_those_that_the_loss_compares_with(compiled, refused):
    for loss, one_hot in (("mse", True), ("huber", True), ("own_objects:shifted", False)):
        model, evaluate = compiled(f"loss: {loss}")
        outputs, labels = model(X).numpy(), np.eye(3)[Y]
        if loss == "mse":
            assert evaluate()["loss"] == pytest.approx(((outputs - labels) ** 2).mean(), rel=1e-5)
        (model_labels,) = {has_one_hot_labels(read_nothing(), model.loss)}
        assert model_labels == one_hot
    assert refused("loss: mse", data="one_hot: false") == (
        "data.one_hot: is false, but the loss compares with one-hot labels. Leave it out, or take another"
        " train.loss"
    )
    assert "but the loss compares with class numbers" in refused(data="one_hot: true")


def read_nothing():
    from tfdist.trainer.config import Config

    return Config()


def test_thresholds_may_be_chosen_and_probabilities_need_none(compiled):
    _, evaluate = compiled(
        "metrics: [{name: precision, top_k: 1}], loss: categorical_crossentropy", outputs="logits"
    )
    assert "precision" in evaluate()
    _, evaluate = compiled("metrics: [recall], loss: categorical_crossentropy", outputs="probabilities")
    assert 0 <= evaluate()["recall"] <= 1


def test_the_intersection_over_union_is_that_of_the_highest_scores(compiled):
    model, evaluate = compiled("metrics: [{name: mean_io_u, num_classes: 3}]")
    metric = keras.metrics.MeanIoU(num_classes=3)
    metric.update_state(Y, model(X).numpy().argmax(1))
    assert evaluate()["mean_io_u"] == pytest.approx(float(metric.result()))


def test_a_compiled_model_keeps_its_arguments(compiled):
    own = {"optimizer": keras.optimizers.RMSprop(0.5, rho=0.75), "loss": "mse", "metrics": ["mae"]}
    model, evaluate = compiled(model=made(**own, steps_per_execution=3, loss_weights=[2.0]))
    assert type(model.optimizer).__name__ == "RMSprop"
    assert (float(model.optimizer.learning_rate), model.optimizer.rho) == (0.5, 0.75)
    results = evaluate()
    assert set(results) == {"loss", "accuracy", "mae"}  # accuracy is always counted
    assert results["loss"] == pytest.approx(2 * ((model(X).numpy() - np.eye(3)[Y]) ** 2).mean(), rel=1e-5)


def test_the_config_replaces_what_it_names(compiled):
    def own():
        return made(
            optimizer=keras.optimizers.RMSprop(0.5, rho=0.75), loss="mse", metrics=["mae", "accuracy"]
        )

    model, _ = compiled("learning_rate: 0.25", model=own())
    assert type(model.optimizer).__name__ == "RMSprop"
    assert (float(model.optimizer.learning_rate), model.optimizer.rho) == (0.25, 0.75)
    model, _ = compiled("schedule: cosine", model=own())
    rate = model.optimizer.get_config()["learning_rate"]["config"]
    assert (rate["initial_learning_rate"], rate["decay_steps"], model.optimizer.rho) == (0.5, 8, 0.75)
    scaled = keras.mixed_precision.LossScaleOptimizer if IS_KERAS_2 else keras.optimizers.LossScaleOptimizer
    model, _ = compiled(
        "warmup: 0.5", model=made(optimizer=scaled(keras.optimizers.SGD(0.5), initial_scale=8.0))
    )
    assert (model.optimizer.initial_scale, type(model.optimizer.inner_optimizer).__name__) == (8.0, "SGD")
    excluding = made(optimizer=keras.optimizers.AdamW(0.5, weight_decay=0.5), loss="mse")
    excluding.optimizer.exclude_from_weight_decay(var_list=excluding.trainable_variables)
    before = excluding.get_weights()
    model, evaluate = compiled("warmup: 0.5", model=excluding)
    model.optimizer.build(model.trainable_variables)
    zeros = [tf.zeros(variable.shape) for variable in model.trainable_variables]
    model.optimizer.apply_gradients(zip(zeros, model.trainable_variables, strict=True))
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    model, _ = compiled("optimizer: sgd", model=own())
    assert type(model.optimizer).__name__ == "SGD"
    assert float(model.optimizer.learning_rate) == pytest.approx(1e-3)
    model, evaluate = compiled("loss: sparse_categorical_crossentropy, metrics: []", model=own())
    results = evaluate()
    assert results["loss"] == pytest.approx(expected_loss(model), rel=1e-5)
    assert set(results) == {"loss", "accuracy"}


def test_a_schedule_on_a_schedule_is_refused(refused):
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    message = refused("warmup: 0.5", model=made(optimizer=keras.optimizers.SGD(rate), loss="mse"))
    assert message.startswith("train.learning_rate: is needed: the model's own optimizer has no constant")


def test_a_compile_of_its_own_is_left_alone(compiled, refused):
    model = made(kind=own_objects.OwnCompile)
    model.compile()
    compiled(model=model)
    assert float(model.optimizer.learning_rate) == 0.5
    assert refused("loss: mse", model=model).startswith(
        "train.loss: cannot change model mine, which is compiled by"
    )
    assert refused("warmup: 0.5", model=model).startswith("train.warmup: cannot change model mine")


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("mae", True),
        ("accuracy", True),
        (lambda: keras.metrics.SparseCategoricalAccuracy(name="accuracy"), True),
        (lambda: keras.metrics.BinaryAccuracy(name="accuracy"), False),
        (lambda: keras.metrics.MeanMetricWrapper(own_objects.is_zero, name="accuracy"), False),
    ],
)
def test_an_accuracy_of_the_models_own_is_not_the_share_of_right_classes(compiled, metric, expected):
    metrics = [metric if isinstance(metric, str) else metric()]
    model, _ = compiled(model=made(optimizer="sgd", loss="mse", metrics=metrics))
    assert counts_right_classes(model) == expected
    assert not counts_right_classes(compiled(model=made(kind=own_objects.OwnCompile, optimizer="sgd"))[0])


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
        "bce",
        "BinaryCrossentropy",
        keras.losses.BinaryCrossentropy(),
    ],
)
def test_a_loss_of_the_other_kind_of_outputs_is_warned_of(compiled, caplog, loss):
    wrong = made(optimizer="sgd", loss=loss)
    compiled(model=wrong)
    assert caplog.messages == [
        "model mine returns logits, but its loss has from_logits=False, and so computes something else"
    ]
    caplog.clear()
    compiled(model=made(optimizer="sgd", loss="mse"))
    right = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model, evaluate = compiled(model=made(optimizer="sgd", loss=right))
    assert caplog.messages == []
    assert math.isclose(evaluate()["loss"], expected_loss(model), rel_tol=1e-5)


def test_a_metric_made_outside_of_the_strategy_is_refused(refused, monkeypatch):
    monkeypatch.setattr(own_objects, "MADE", keras.metrics.Mean())
    message = refused("metrics: [own_objects:MADE]")
    assert message.startswith("train.metrics: own_objects:MADE: is a metric that was made outside of the")
