"""Callbacks see and do under `fit` just what they see and do under Keras's own fit."""

import csv

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.fit import fit  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.keras.callbacks import make_callbacks, restored_variables  # noqa: E402

keras = tf.keras
WEIGHTS = ".weights.h5" if getattr(keras, "__version__", "2") >= "3" else ".h5"
HOOKS = [
    f"on_{phase}_{edge}"
    for phase in ("train", "epoch", "train_batch", "test", "test_batch")
    for edge in ("begin", "end")
]


class Trace(keras.callbacks.Callback):
    """Write down every call, with what the logs hold."""

    def __init__(self):
        super().__init__()
        self.calls = []


def _recording(hook):
    def call(self, *arguments, logs=None):
        *index, logs = (*arguments, logs) if logs is not None or not arguments else arguments
        if isinstance(logs, int):  # the index alone
            index, logs = [logs], None
        self.calls.append((hook, *index, {name: float(value) for name, value in (logs or {}).items()}))

    return call


for _hook in HOOKS:
    setattr(Trace, _hook, _recording(_hook))


class RateOfTheBatch(keras.callbacks.Callback):
    """Set what the next step needs, before it."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + batch)


def linear(together=1):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.SGD(0.1), "mse", metrics=["mae", "cosine_similarity"], steps_per_execution=together
    )
    return model


def batches():
    x = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(4)


def unknown_in_number():
    return batches().filter(lambda x, y: True)


def both(callbacks, *, data=batches, together=1, epochs=3, **options):
    """Train with Keras and with tfdist; give the models and histories."""
    kerass = linear(together)
    theirs = kerass.fit(
        data(),
        epochs=epochs,
        validation_data=batches(),
        callbacks=callbacks("keras"),
        shuffle=False,
        verbose=0,
        **options,
    )
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    with strategy.scope():
        model = linear(together)
    ours = fit(
        model,
        data(),
        strategy=strategy,
        epochs=epochs,
        validation_data=batches(),
        callbacks=callbacks("tfdist"),
        verbose=0,
        **options,
    )
    return (kerass, theirs), (model, ours)


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")  # of Keras's own fit
@pytest.mark.parametrize(
    ("data", "together", "options"),
    [
        (batches, 3, {}),
        (batches, 2, {"validation_freq": 2, "initial_epoch": 1}),
        (unknown_in_number, 1, {"validation_steps": 2}),
    ],
)
def test_calls_come_as_from_keras(data, together, options):
    traces = {}
    (kerass, _), (model, _) = both(
        lambda name: [traces.setdefault(name, Trace()), RateOfTheBatch()],
        data=data,
        together=together,
        **options,
    )
    theirs, ours = (traces[name].calls for name in ("keras", "tfdist"))
    if data is unknown_in_number:  # Keras learns in the first epoch how many there are
        theirs, ours = ([call for call in calls if "batch_begin" not in call[0]] for calls in (theirs, ours))

    assert [call[:-1] for call in ours] == [call[:-1] for call in theirs]
    assert [list(call[-1]) for call in ours] == [list(call[-1]) for call in theirs]
    for mine, its in zip(ours, theirs, strict=True):
        assert mine[-1] == pytest.approx(its[-1], rel=1e-5), mine[:-1]
    # What a callback sets before a batch is for that batch.
    assert model.get_weights()[0] == pytest.approx(kerass.get_weights()[0], rel=1e-5)


def of_keras(folder):
    callbacks = keras.callbacks
    return [
        callbacks.ModelCheckpoint(str(folder / ("{epoch}-{val_loss:.2f}" + WEIGHTS)), save_weights_only=True),
        callbacks.ModelCheckpoint(str(folder / ("best" + WEIGHTS)), save_best_only=True, save_weights_only=True),
        callbacks.CSVLogger(str(folder / "log.csv")),
        callbacks.TensorBoard(str(folder / "board"), update_freq=2, profile_batch=0),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, min_delta=0.5, patience=1),
        callbacks.EarlyStopping("val_loss", min_delta=0.3, patience=2, restore_best_weights=True),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: (folder / f"epoch-{epoch}").touch()),
        callbacks.BackupAndRestore(str(folder / "backup")),
        callbacks.TerminateOnNaN(),
    ]  # fmt: skip


def test_kerass_own_decide_and_write_as_under_keras(tmp_path):
    for name in ("keras", "tfdist"):
        (tmp_path / name).mkdir()
    (kerass, theirs), (model, ours) = both(lambda name: of_keras(tmp_path / name), epochs=20)

    assert 3 < len(theirs.epoch) < 20  # EarlyStopping had its say
    assert ours.epoch == theirs.epoch
    assert list(ours.history) == list(theirs.history)
    for name, values in theirs.history.items():
        assert ours.history[name] == pytest.approx(values, rel=1e-4), name
    assert model.get_weights()[0] == pytest.approx(kerass.get_weights()[0], rel=1e-4)
    assert names(tmp_path / "tfdist") == names(tmp_path / "keras")
    mine, its = (rows(tmp_path / name / "log.csv") for name in ("tfdist", "keras"))
    assert [list(row) for row in mine] == [list(row) for row in its]
    for our_row, keras_row in zip(mine, its, strict=True):
        assert our_row == pytest.approx(keras_row, rel=1e-4)
    for part in ("train", "validation"):
        mine, its = (scalars(tmp_path / name / "board" / part) for name in ("tfdist", "keras"))
        assert [each[:2] for each in mine] == [each[:2] for each in its]
        assert [each[2] for each in mine] == pytest.approx([each[2] for each in its], rel=1e-4)


def names(folder):
    found = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
    return {name for name in found if "events.out" not in name}


def rows(path):
    with path.open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def scalars(folder):
    """Return (tag, step, value) of each point that TensorBoard would draw."""
    found = []
    for path in sorted(folder.glob("events.out*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.HasField("tensor") and value.tensor.dtype == tf.float32.as_datatype_enum:
                    found.append((value.tag, event.step, float(tf.make_ndarray(value.tensor))))
    return sorted(found, key=lambda each: each[:2])


def test_hooks_of_batches_may_be_called_in_a_scope_of_parameter_servers(monkeypatch):
    model, trace, strategy = linear(), Trace(), tf.distribute.get_strategy()
    monkeypatch.setattr(strategy, "_should_use_with_coordinator", True)  # as that of parameter servers has it
    make_callbacks([trace], model, strategy, verbose=0, steps=1).on_train_batch_end(0, {"loss": 1.0})
    assert trace.calls == [("on_train_batch_end", 0, {"loss": 1.0})]


class _Killed(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def test_a_backup_of_one_fit_does_not_shorten_the_next(tmp_path):
    def backup(name):
        return keras.callbacks.BackupAndRestore(str(tmp_path / name))

    with pytest.raises(KeyboardInterrupt):
        fit(linear(), batches(), epochs=4, callbacks=[backup("first"), _Killed()], verbose=0)
    model = linear()
    resumed = fit(model, batches(), epochs=4, callbacks=[backup("first")], verbose=0)
    following = fit(model, batches(), epochs=3, callbacks=[backup("second")], verbose=0)
    assert (resumed.epoch, following.epoch) == ([2, 3], [0, 1, 2])


@pytest.mark.skipif(keras.__version__ >= "3", reason="Keras 3 trains what is trainable now")
def test_fit_trains_what_was_trainable_when_it_was_compiled():
    weights = []
    for train in (
        lambda model: model.fit(batches(), epochs=2, verbose=0),
        lambda model: fit(model, batches(), epochs=2, verbose=0),
    ):
        model = linear()
        model.layers[0].trainable = False
        train(model)
        assert not model.layers[0].trainable
        weights.append(model.get_weights())
    assert weights[0][0] == pytest.approx(weights[1][0], rel=1e-6)
    assert weights[0][0] != pytest.approx(linear().get_weights()[0], rel=1e-3)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 tracks optimizers of a model itself")
def test_all_workers_take_all_optimizers_of_the_chief_after_a_backup():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.head_optimizer, model.unused = keras.optimizers.Adam(), [keras.optimizers.Adam()]
    model.head_optimizer.build(model.trainable_variables)
    names = {id(variable) for variable in restored_variables(model)}
    assert names >= {id(variable) for variable in (*model.variables, *model.head_optimizer.variables)}
    model.compile(None, "mse")
    assert {id(variable) for variable in restored_variables(model)} >= {id(each) for each in model.variables}
