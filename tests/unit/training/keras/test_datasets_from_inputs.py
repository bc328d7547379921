"""What Keras's own fit, evaluate and predict take gives the same numbers."""

import inspect
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from tfdist.errors import DataError

tf = pytest.importorskip("tensorflow")

from tfdist.training.evaluate import evaluate  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.keras import datasets_from_inputs  # noqa: E402
from tfdist.training.keras.datasets_from_inputs import made_data  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402

keras = tf.keras
IS_KERAS_2 = getattr(keras, "__version__", "2") < "3"
COUNT, BATCH = 30, 8


@pytest.fixture
def strategy():
    return tf.distribute.OneDeviceStrategy("/device:CPU:0")


def points():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(COUNT, 3)).astype("float32")
    return x, np.eye(2, dtype="float32")[(x.sum(axis=1) > 0).astype(int)], rng.uniform(0.5, 2.0, COUNT)


def made():
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
    return model


class Part(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    """Read a batch by its index, and note the epochs."""

    def __init__(self, name="", noted=None):
        super().__init__()
        self.name, self.noted = name, [] if noted is None else noted

    def __len__(self):
        return COUNT // 10

    def __getitem__(self, index):
        return tuple(array[10 * index : 10 * index + 10] for array in points()[:2])

    def on_epoch_begin(self):
        self.noted.append(f"{self.name} begins")

    def on_epoch_end(self):
        self.noted.append(f"{self.name} ends")


def generated():
    for index in range(COUNT // 10):
        yield Part()[index]


X, Y, WEIGHTS = points()
CASES = {
    "shuffled": lambda: ((X, Y, BATCH, 2), {}),
    "split": lambda: ((X, Y), {"validation_split": 0.2, "sample_weight": WEIGHTS, "batch_size": BATCH}),
    "validated": lambda: ((X, Y), {"validation_data": (X, Y, WEIGHTS), "validation_batch_size": 7}),
    "weighted": lambda: ((X, Y), {"class_weight": {0: 1.0, 1: 3.0}, "batch_size": BATCH}),
    "tensors": lambda: ((tf.constant(X), tf.constant(Y)), {"shuffle": False, "steps_per_epoch": 2}),
    "generator": lambda: ((generated(),), {"shuffle": False}),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_fits_as_keras_does(strategy, case):
    arguments, options = CASES[case]()
    if IS_KERAS_2:  # its order of several epochs is that of one data set for all of them
        options["shuffle"] = False
    theirs = made().fit(*arguments, verbose=0, **options)
    with strategy.scope():
        model = made()
    arguments, _ = CASES[case]()
    ours = fit(model, *arguments, verbose=0, **options)

    assert set(ours.history) == set(theirs.history)
    for name, values in theirs.history.items():
        assert ours.history[name] == pytest.approx(values, rel=1e-5)


def test_a_py_dataset_is_told_of_epochs(strategy):
    def fitted(fit, model, noted):
        callback = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_: noted.append("epoch begins"),
            on_epoch_end=lambda *_: noted.append("epoch ends"),
        )
        options = {"validation_data": Part("tested", noted), "callbacks": [callback]}
        history = fit(model, Part("trained", noted), epochs=2, shuffle=False, verbose=0, **options)
        return history.history["loss"]

    with strategy.scope():
        model = made()
    ours, theirs = [], []
    found = fitted(fit, model, ours)
    evaluate(model, Part("evaluated", ours), verbose=0)
    predict(model, Part("predicted", ours), verbose=0)
    if IS_KERAS_2:
        assert ours == ["epoch begins", "epoch ends", "trained ends"] * 2
        return
    model = made()
    expected = fitted(keras.Model.fit, model, theirs)
    model.evaluate(Part("evaluated", theirs), verbose=0)
    model.predict(Part("predicted", theirs), verbose=0)

    assert found == pytest.approx(expected, rel=1e-5)
    assert ours == theirs


class Drawn(Part):
    """Draw a batch, as an augmentation does, and the order of the batches at the end of an epoch."""

    def __init__(self):
        super().__init__()
        self.order = range(len(self))

    def __getitem__(self, index):
        x, y, _ = points()
        x, y = (
            np.array_split(x, len(self))[self.order[index]],
            np.array_split(y, len(self))[self.order[index]],
        )
        return x + np.random.normal(scale=0.1, size=x.shape), y

    def on_epoch_end(self):
        self.order = np.random.permutation(len(self))


def test_validation_data_that_draw_numbers_leave_those_of_training_as_they_are(strategy):
    histories = []
    for train, scope in ((keras.Model.fit, nullcontext()), (fit, strategy.scope())):
        with scope:  # in which Keras's `fit` would read some data more, to build the model
            model = made()
        np.random.seed(3)
        options = {"validation_data": Drawn(), "shuffle": False, "verbose": 0}
        histories.append(train(model, Drawn(), **options).history["loss"])
    assert histories[1] == pytest.approx(histories[0], rel=1e-6)


def test_evaluates_and_predicts_arrays(strategy):
    with strategy.scope():
        model = made()
    expected = made().evaluate(X, Y, BATCH, 0, WEIGHTS)
    assert evaluate(model, X, Y, BATCH, 0, WEIGHTS) == pytest.approx(expected, rel=1e-5)
    assert predict(model, X, 7, 0) == pytest.approx(made().predict(X, verbose=0), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((X, Y[:3]), {}, "same number"),
        ((tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), Y), {}, r"Yield \(x, y"),
        ((lambda context: None,), {"class_weight": {0: 1.0}}, "class_weight"),
        pytest.param(
            (X, Y),
            {"class_weight": {0: 1.0}, "sample_weight": WEIGHTS},
            "class_weight: is given beside sample_weight",
            marks=pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 multiplies them"),
        ),
        ((X, Y), {"validation_data": (X, Y, Y, Y)}, "received a tuple of 4"),
        ((3,), {}, "x: "),
    ],
)
def test_refuses_in_one_line_what_keras_does_not_take(strategy, arguments, options, words):
    with strategy.scope():
        model = made()
    with pytest.raises(DataError, match=words) as caught:
        fit(model, *arguments, verbose=0, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 has further arguments, which Keras 3 has dropped")
@pytest.mark.parametrize("function", [fit, evaluate, predict])
def test_arguments_are_in_the_order_of_keras(function):
    theirs = list(inspect.signature(getattr(keras.Model, function.__name__)).parameters)[1:]
    ours = list(inspect.signature(function).parameters)[1:]
    theirs = [name for name in theirs if name != "kwargs"]
    assert ours[: len(theirs)] == theirs


def test_ragged_arrays_are_shuffled_where_several_processes_read_them(strategy, monkeypatch):
    monkeypatch.setattr(datasets_from_inputs, "_is_read_apart", lambda strategy, arrays: True)
    model = made()
    tf.random.set_seed(None)  # without a seed, processes share one that `make_strategy` has spread
    lengths = np.arange(COUNT) % 3 + 1
    x = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()), lengths)

    made_of = list(
        datasets_from_inputs.made_data(model, strategy, x, lengths, batch_size=BATCH, shuffle=True)
    )

    assert [len(y) for _, y in made_of] == [8, 8, 8, 6]
    found = {tuple(row.numpy()) for rows, _ in made_of for row in rows}
    assert found == {tuple(row.numpy()) for row in x}
    for rows, y in made_of:
        np.testing.assert_array_equal(rows.row_lengths(), y)


if not IS_KERAS_2:

    class Numbered(keras.utils.PyDataset):
        """A batch for each index, which threads read ahead."""

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return np.full((2, 1), index, "float32"), np.zeros((2, 1), "float32")


def number_model():
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones", trainable=False)]
    )
    model.compile("sgd", "mae")
    return model


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 has no such data")
def test_threads_of_a_py_dataset_begin_each_pass_and_end_with_the_call(strategy):
    with strategy.scope():
        model = number_model()
    options = {"epochs": 3, "verbose": 0, "strategy": strategy}

    tested = fit(
        model,
        np.ones((2, 1)),
        np.ones((2, 1)),
        validation_data=Numbered(workers=2),
        validation_steps=2,
        **options,
    )
    ahead = Numbered(workers=2, max_queue_size=2)
    trained = fit(model, ahead, shuffle=False, steps_per_epoch=2, **options)

    assert tested.history["val_loss"] == [0.5, 0.5, 0.5]
    assert trained.history["loss"] == [0.5, 2.5, 4.5]
    assert evaluate(model, ahead, steps=2, verbose=0, strategy=strategy) == 0.5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("Worker_")]


def test_batch_sized_chunks_are_shuffled_within_where_several_processes_read_them(strategy, monkeypatch):
    monkeypatch.setattr(datasets_from_inputs, "_is_read_apart", lambda *_: True)
    monkeypatch.setattr(datasets_from_inputs, "is_seeded", lambda: False)
    numbers = np.arange(COUNT)

    batches = [
        x.numpy() for x, _ in made_data(made(), strategy, numbers, numbers, batch_size=BATCH, shuffle="batch")
    ]

    assert [sorted(batch.flatten()) for batch in batches] == [
        list(range(start, min(start + BATCH, COUNT))) for start in range(0, COUNT, BATCH)
    ]
    assert np.concatenate(batches).flatten().tolist() != numbers.tolist()


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 takes no adapter")
def test_an_adapter_of_keras_stays_as_it_is_where_several_workers_read_it(strategy, monkeypatch):
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    monkeypatch.setattr(datasets_from_inputs, "_is_of_several_workers", lambda _: True)
    monkeypatch.setattr(datasets_from_inputs, "is_seeded", lambda: False)
    x, y, _ = points()

    [first, *_] = made_data(made(), strategy, ArrayDataAdapter(x, y, batch_size=BATCH), shuffle=True)

    assert np.array_equal(first[0], x[:BATCH])


class Mistaken(Part):
    """Data with a mistake of the user's."""

    def __getitem__(self, index):
        return {"x": points()[0]}["y"] if index < 0 else [][index]


def test_a_mistake_in_a_py_dataset_of_the_users_is_raised_as_it_is(strategy):
    with pytest.raises(IndexError, match="list index out of range") as raised:
        fit(made(), Mistaken(), verbose=0, strategy=strategy)

    assert raised.traceback[-1].name == "__getitem__"


def distributed(dataset):
    return tf.distribute.MirroredStrategy(["/cpu:0"]).experimental_distribute_dataset(dataset)


def test_refuses_to_predict_for_what_is_distributed_already(strategy):
    with pytest.raises(DataError, match="is distributed already"):
        predict(made(), distributed(batches_of(points()[0])), verbose=0, strategy=strategy)


class Stopped(keras.callbacks.Callback):
    """End what does not end by itself."""

    def on_train_batch_end(self, batch, logs=None):
        assert batch < 50, "nobody stops this"

    def on_test_batch_end(self, batch, logs=None):
        assert batch < 50, "nobody stops this"


def test_refuses_functions_whose_data_never_end(strategy):
    with strategy.scope():
        model = made()

    def endless(context):
        return batches_of(*points()[:2]).repeat()

    for call, name in ((fit, "steps_per_epoch"), (evaluate, "steps")):
        with pytest.raises(DataError, match=rf"never ends\. Pass {name},"):
            call(model, endless, verbose=0, strategy=strategy, callbacks=[Stopped()])
    with pytest.raises(DataError, match=r"never ends\. Pass validation_steps,"):
        fit(
            model,
            batches_of(*points()[:2]),
            validation_data=endless,
            verbose=0,
            strategy=strategy,
            callbacks=[Stopped()],
        )


def batches_of(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        pytest.param(
            lambda: batches_of(*points()),
            {"class_weight": {0: 1.0, 1: 2.0}},
            "sample_weight",
            id="two weights",
            marks=pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 multiplies them"),
        ),
        pytest.param(
            lambda: tf.data.Dataset.zip(
                (batches_of(points()[0]).map(lambda x: x[0]), batches_of(*points()[:2]))
            ),
            {"class_weight": {0: 1.0, 1: 2.0}},
            "single output",
            id="two targets",
        ),
        pytest.param(
            lambda: distributed(batches_of(*points()[:2])),
            {"class_weight": {0: 1.0}},
            "class_weight: is not",
            id="distributed",
        ),
        pytest.param(
            lambda: lambda: batches_of(*points()[:2]), {}, "of one argument", id="without a context"
        ),
    ],
)
def test_refuses_in_one_line_data_sets_and_functions_that_do_not_fit(strategy, data, options, words):
    with pytest.raises(DataError, match=words) as raised:
        fit(made(), data(), verbose=0, strategy=strategy, **options)

    assert "\n" not in str(raised.value)


def test_refuses_a_generator_function_that_was_not_called(strategy):
    def generate():
        yield points()[:2]

    with pytest.raises(DataError, match=r"Pass generate\(\)"):
        fit(made(), generate, verbose=0, strategy=strategy)


@pytest.mark.skipif(not IS_KERAS_2, reason="arguments of Keras 2")
def test_takes_the_arguments_of_keras_2_for_queues(strategy):
    queue = {"workers": 2, "use_multiprocessing": False, "max_queue_size": 4}
    with strategy.scope():
        model = made()

    assert fit(model, Part(), verbose=0, strategy=strategy, **queue).epoch == [0]
    evaluate(model, Part(), verbose=0, strategy=strategy, **queue)
    predict(model, Part(), verbose=0, strategy=strategy, **queue)
