"""Checkpoints of `fit` in one process: what a resumed run repeats, what it refuses, and what it leaves."""

import contextlib
import fcntl
import logging
import os
import signal

import msgspec
import numpy as np
import pytest

from again import again
from tfdist.errors import ConfigError, DataError, Preempted

tf = pytest.importorskip("tensorflow")

from tfdist.launcher.record_events import listening  # noqa: E402
from tfdist.launcher.run_events import RunStarted  # noqa: E402
from tfdist.training.checkpoints import fit_checkpoints, lock_folder  # noqa: E402
from tfdist.training.checkpoints.checkpoint_callback import CheckpointAndResume  # noqa: E402
from tfdist.training.checkpoints.checkpoint_files import list_steps  # noqa: E402
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.keras.callback_states import CallbackState, load_states, states_of, weights_of  # noqa: E402

keras = tf.keras
pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="it needs Keras 3")
X = np.random.default_rng(0).normal(size=(30, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def _new_process(monkeypatch):
    monkeypatch.setattr(fit_checkpoints, "_finished_here", set())
    monkeypatch.setattr(fit_checkpoints, "_learning_rates_here", {})
    monkeypatch.setattr("sys.excepthook", lambda *error: None)


class Killed(Exception):
    """An error that stands for SIGKILL."""


class At(keras.callbacks.Callback):
    """A callback that acts after a number of batches of this process."""

    def __init__(self, step, act):
        super().__init__()
        self._left, self._act = step, act

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if self._left == 0:
            self._act()

    def get_state(self):
        return {}

    def set_state(self, state):
        del state


def _kill():
    raise Killed


def _model(units=4, optimizer="adam", **options):
    keras.utils.set_random_seed(2)
    layers = [keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dropout(0.4), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.get(optimizer), "mse", metrics=["mae"], **options)
    return model


def _shuffled():
    keras.utils.set_random_seed(1)
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(30, seed=4)


def _run(folder, data, *more, act=None, at=0, model=None, every=2, background=False, **options):
    model = _model() if model is None else model
    callbacks = [*more, CheckpointAndResume(folder, every, background=background)]
    if act is not None:
        callbacks.append(At(at, act))
    options = {"epochs": 4, "verbose": 0, **options}
    history = fit(model, data, callbacks=callbacks, **options)
    return history.history, [weight.tobytes() for weight in model.get_weights()]


class Rows(keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else object):
    """Batches made by Python code."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        rows = slice(5 * index, 5 * index + 5)
        return X[rows], Y[rows]


def _captured():
    source = _shuffled()
    return tf.data.Dataset.range(2).flat_map(lambda _: source.batch(10))


DATA = {
    "reshuffled": lambda: _shuffled().batch(5),
    "fixed": lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(5),
    "repeated": lambda: _shuffled().repeat(2).batch(10),
    "cached": lambda: _shuffled().cache().shuffle(30, seed=1).batch(5),
    "captured": _captured,
    "python": Rows,
    "function": lambda: lambda context: _shuffled().batch(5),
}


# The others are read in the order that these prove.
EVERY_TIME = {"reshuffled", "captured", "python"}


@pytest.mark.parametrize("name", [name if name in EVERY_TIME else again(name) for name in DATA])
@pytest.mark.filterwarnings("ignore:Your `PyDataset` class should call")
def test_the_batches_after_a_checkpoint_are_those_of_a_run_without_a_stop(tmp_path, name):
    undisturbed = _run(tmp_path / "a", DATA[name]())
    background = name in ("reshuffled", "python")  # each saves while it trains the next steps
    for at in (9, 8):
        with pytest.raises(Killed):
            _run(tmp_path / "b", DATA[name](), act=_kill, at=at, background=background)
    assert _run(tmp_path / "b", DATA[name](), background=background) == undisturbed


@pytest.mark.parametrize("options", [{"steps_per_epoch": 4}, {"steps_per_epoch": 4, "repeat": True}])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_epochs_of_a_number_of_steps_continue_in_the_data(tmp_path, options):
    undisturbed = _run(tmp_path / "a", DATA["reshuffled"](), **options)
    with pytest.raises(Killed):
        _run(tmp_path / "b", DATA["reshuffled"](), act=_kill, at=11, **options)
    assert _run(tmp_path / "b", DATA["reshuffled"](), **options) == undisturbed


@pytest.mark.parametrize("background", [False, True])
def test_sigterm_saves_at_the_next_step(tmp_path, background):
    undisturbed = _run(tmp_path / "a", DATA["reshuffled"]())
    end = {"act": lambda: os.kill(os.getpid(), signal.SIGTERM), "at": 9}
    with pytest.raises(Preempted, match="all is saved at step 9"):
        _run(tmp_path / "b", DATA["reshuffled"](), **end, background=background)
    assert list_steps(tmp_path / "b")[-1] == 9
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert _run(tmp_path / "b", DATA["reshuffled"]()) == undisturbed


def test_sigterm_within_an_evaluation_repeats_the_evaluation(tmp_path):
    class Told(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            os.kill(os.getpid(), signal.SIGTERM)

    undisturbed = _run(tmp_path / "a", DATA["reshuffled"](), validation_data=(X, Y))
    with pytest.raises(Preempted, match="all is saved at step 6"):
        _run(tmp_path / "b", DATA["reshuffled"](), Told(), validation_data=(X, Y))
    assert _run(tmp_path / "b", DATA["reshuffled"](), validation_data=(X, Y)) == undisturbed


def test_steps_per_execution_and_a_custom_step_are_resumed(tmp_path):
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def made():
        keras.utils.set_random_seed(2)
        model = Own([keras.Input((3,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=2)
        return model

    undisturbed = _run(tmp_path / "a", DATA["reshuffled"](), model=made())
    with pytest.raises(Killed):
        _run(tmp_path / "b", DATA["reshuffled"](), model=made(), act=_kill, at=5)
    assert _run(tmp_path / "b", DATA["reshuffled"](), model=made()) == undisturbed


def test_early_stopping_and_the_learning_rate_are_resumed(tmp_path):
    def callbacks():
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=9, restore_best_weights=True)
        slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        return [stopping, slower]

    undisturbed = _run(tmp_path / "a", DATA["reshuffled"](), *callbacks())
    assert len(undisturbed[0]["loss"]) == 2
    with pytest.raises(Killed):
        _run(tmp_path / "b", DATA["reshuffled"](), *callbacks(), act=_kill, at=9)
    assert _run(tmp_path / "b", DATA["reshuffled"](), *callbacks()) == undisturbed
    assert _run(tmp_path / "c", DATA["reshuffled"](), *callbacks()) == undisturbed


def test_each_callback_gets_its_own_state_back_wherever_it_stands(tmp_path):
    def stopping(monitor, patience):
        return keras.callbacks.EarlyStopping(monitor, patience=patience, min_delta=9)

    undisturbed = _run(tmp_path / "a", DATA["reshuffled"](), stopping("loss", 2))
    assert len(undisturbed[0]["loss"]) == 3
    with pytest.raises(Killed):
        _run(tmp_path / "b", DATA["reshuffled"](), stopping("loss", 2), act=_kill, at=9)
    others = [keras.callbacks.ReduceLROnPlateau("loss", patience=9), stopping("mae", 9)]
    assert (
        _run(tmp_path / "b", DATA["reshuffled"](), *others, stopping("loss", 2))[0]["loss"]
        == undisturbed[0]["loss"]
    )
    assert others[0].wait < 3
    assert others[1].wait < 3


class Patient(keras.callbacks.EarlyStopping):
    """A callback of Keras with a state of the user's besides."""

    seen = 0

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]


def test_a_state_of_the_users_own_leaves_kerass_in_its_place():
    before, after = Patient("loss"), Patient("loss")
    before.wait, before.best, before.best_weights, before.seen = 3, 0.5, [np.ones(2)], 7
    states, weights = states_of([before], _model()), weights_of([before])
    load_states([after], _model(), states, weights)
    assert (after.wait, after.best, after.seen) == (3, 0.5, 7)
    np.testing.assert_array_equal(after.best_weights, [np.ones(2)])
    load_states(
        [after], _model(), [CallbackState("Patient of loss", {"seen": 9})], {}
    )  # of an earlier version
    assert after.seen == 9


@pytest.mark.parametrize("value", ["best.weights.h5", np.ones(2)])
def test_best_weights_of_another_callback_are_its_own(value):
    callback = keras.callbacks.Callback()
    callback.best_weights = value
    assert weights_of([callback]) == {}


def test_a_csv_file_has_each_epoch_once(tmp_path):
    class Log(keras.callbacks.CSVLogger):
        """One of the user's own."""

    _run(tmp_path / "a", DATA["reshuffled"](), Log(str(tmp_path / "a.csv")), every=4)
    killed = Log(str(tmp_path / "b.csv"))
    with pytest.raises(Killed):  # after an epoch that no checkpoint has ended
        _run(tmp_path / "b", DATA["reshuffled"](), killed, act=_kill, at=13, every=7)
    killed.csv_file.close()
    _run(tmp_path / "b", DATA["reshuffled"](), Log(str(tmp_path / "b.csv")), every=7)
    assert (tmp_path / "b.csv").read_text() == (tmp_path / "a.csv").read_text()


def test_a_csv_file_keeps_the_rows_of_earlier_trainings(tmp_path):
    def log(name):
        (tmp_path / name).exists() or (tmp_path / name).write_text("epoch,loss\n0,3.5\n1,2.5\n")
        return keras.callbacks.CSVLogger(str(tmp_path / name), append=True)

    _run(tmp_path / "a", DATA["reshuffled"](), log("a.csv"), every=2)
    killed = log("b.csv")
    with pytest.raises(Killed):  # in the first epoch
        _run(tmp_path / "b", DATA["reshuffled"](), killed, act=_kill, at=3, every=2)
    killed.csv_file.close()
    _run(tmp_path / "b", DATA["reshuffled"](), log("b.csv"), every=2)
    assert (tmp_path / "b.csv").read_text() == (tmp_path / "a.csv").read_text()


def test_a_call_again_continues_the_learning_rate_that_callbacks_have_left(tmp_path):
    def slower():
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)

    undisturbed, model = _run(tmp_path / "a", DATA["reshuffled"](), slower()), _model()
    for at in (3, 5):  # two cells of a notebook that were interrupted
        with pytest.raises(Killed):
            _run(tmp_path / "b", DATA["reshuffled"](), slower(), model=model, act=_kill, at=at)
    assert (
        _run(tmp_path / "b", DATA["reshuffled"](), slower()) == undisturbed
    )  # in a kernel that starts again


def test_an_epoch_that_its_data_have_ended_stays_ended(tmp_path):
    class Told(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            os.kill(os.getpid(), signal.SIGTERM)

    def some():
        return DATA["fixed"]().filter(lambda x, y: True)

    options = {"validation_data": (X, Y), "steps_per_epoch": 9, "epochs": 2}
    with pytest.warns(UserWarning, match="ran out of data"):
        undisturbed = _run(tmp_path / "a", some(), **options)
    with pytest.warns(UserWarning, match="ran out of data"), pytest.raises(Preempted, match="at step 6"):
        _run(tmp_path / "b", some(), Told(), **options)
    with pytest.warns(UserWarning, match="ran out of data"):
        assert _run(tmp_path / "b", some(), **options) == undisturbed


def test_an_optimizer_that_is_built_keeps_its_loss_scale(tmp_path):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    model = _model(optimizer=optimizer)
    fit(model, DATA["fixed"](), verbose=0)
    optimizer.dynamic_scale.assign(4.0)
    _run(tmp_path, DATA["fixed"](), model=model)
    assert float(optimizer.dynamic_scale) == 4.0


def test_a_state_that_cannot_be_stored_is_refused_at_the_start(tmp_path):
    class Strange(keras.callbacks.Callback):
        def get_state(self):
            return {"seen": {1, 2}}

        def set_state(self, state):
            del state

    with pytest.raises(ConfigError, match="the state of Strange, seen: expected numbers"):
        _run(tmp_path, DATA["fixed"](), Strange(), act=lambda: pytest.fail("it has trained"), at=1)


def test_states_without_their_owners_are_left_out_with_a_warning(caplog):
    """Checkpoints of earlier versions have them."""
    stopping = keras.callbacks.EarlyStopping("loss")
    with caplog.at_level(logging.WARNING, "tfdist"):
        load_states([stopping], _model(), [msgspec.convert({"wait": 7}, CallbackState)], {})
    assert "whose states of callbacks" in caplog.text
    assert stopping.wait == 0


def test_a_finished_run_trains_nothing_more_and_more_epochs_continue(tmp_path, monkeypatch, caplog):
    longer = _run(tmp_path / "a", DATA["reshuffled"](), epochs=6)
    finished = _run(tmp_path / "b", DATA["reshuffled"](), epochs=4)
    with pytest.raises(ConfigError, match="holds the training of an earlier fit of this process"):
        _run(tmp_path / "b", DATA["reshuffled"](), epochs=4)
    monkeypatch.setattr(fit_checkpoints, "_finished_here", set())
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert _run(tmp_path / "b", DATA["reshuffled"](), epochs=4) == finished
    assert [record.message.split(":")[1] for record in caplog.records] == [" nothing is left to train"]
    assert _run(tmp_path / "b", DATA["reshuffled"](), epochs=6) == longer


def test_a_damaged_checkpoint_is_left_out_and_old_ones_are_removed(tmp_path, caplog):
    undisturbed = _run(tmp_path / "a", DATA["reshuffled"]())
    with pytest.raises(Killed):
        _run(tmp_path / "b", DATA["reshuffled"](), act=_kill, at=9)
    assert list_steps(tmp_path / "b") == [4, 6, 8]
    (tmp_path / "b" / "8" / "variables.index").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert _run(tmp_path / "b", DATA["reshuffled"]()) == undisturbed
    assert "using the checkpoint before it" in caplog.text
    assert "resuming at step 6, in epoch 1" in caplog.text


def test_a_learning_rate_that_the_script_sets_anew_is_taken(tmp_path):
    with pytest.raises(Killed):
        _run(tmp_path, DATA["fixed"](), act=_kill, at=5)
    model = _model(optimizer=keras.optimizers.Adam(0.5))
    _run(tmp_path, DATA["fixed"](), model=model)
    assert float(model.optimizer.learning_rate) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": lambda: _shuffled().batch(6)}, "a run in which the data differed"),
        ({"data": lambda: tf.data.Dataset.from_tensor_slices((X + 1, Y)).batch(5)}, "the data differed"),
        ({"units": 5}, r"is of another model: it has model/0/\S+ 3x4 float32, the model of this script has"),
        ({"optimizer": "sgd"}, "the optimizer differed: 'Adam' before, 'SGD' now"),
        ({"steps_per_epoch": 3}, "steps_per_epoch differed: None before, 3 now"),
        ({"steps_per_execution": 2}, "steps_per_execution differed: 1 before, 2 now"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, options, message):
    with pytest.raises(Killed):
        _run(tmp_path, DATA["reshuffled"](), act=_kill, at=5)
    data = options.pop("data", DATA["reshuffled"])
    steps = {name: options.pop(name) for name in ("steps_per_epoch",) if name in options}
    with pytest.raises(ConfigError, match=message) as error:
        _run(tmp_path, data(), model=_model(**options), **steps)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: tf.data.Dataset.range(9).shuffle(9), "is shuffled without a seed"),
        (
            lambda: tf.data.Dataset.range(9).map(lambda x: x, num_parallel_calls=2, deterministic=False),
            "has no fixed order",
        ),
    ],
)
def test_data_in_another_order_in_each_process_are_refused(tmp_path, data, message):
    model = _model()
    tf.random.set_seed(None)
    made = data().map(lambda x: (tf.fill([3], tf.cast(x, tf.float32)), 1.0)).batch(3)
    with pytest.raises(DataError, match=message):
        _run(tmp_path, made, model=model)


def test_a_shuffle_that_training_and_validation_share_is_refused(tmp_path):
    data = _shuffled()
    with pytest.raises(DataError, match="is made from the same shuffle as the training data"):
        _run(tmp_path, data.skip(9).batch(5), validation_data=data.take(9).batch(5))


def test_random_numbers_that_cannot_be_repeated_are_named(tmp_path, caplog):
    model = _model()
    tf.random.set_seed(None)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x + tf.random.uniform([3]), y))
    with caplog.at_level(logging.WARNING, "tfdist"):
        _run(tmp_path, data.batch(5), model=model, epochs=1)
    assert "draw random numbers without a seed" in caplog.text


def test_arrays_are_shuffled_by_a_seed_in_the_checkpoint(tmp_path):
    def run(folder, **options):
        np.random.seed(len(os.listdir(tmp_path)))  # as a new process has another state
        model = _model()
        tf.random.set_seed(None)
        return _run(tmp_path / folder, X, y=Y, batch_size=5, model=model, **options)

    with pytest.raises(Killed):
        run("a", act=_kill, at=8)
    resumed = run("a")
    assert len(resumed[0]["loss"]) == 4
    with pytest.raises(ConfigError, match="batch_size differed: 5 before, 6 now"):
        _run(tmp_path / "a", X, y=Y, batch_size=6, epochs=5)


def test_an_optimizer_that_is_not_built_is_refused(tmp_path):
    model = _model()
    model.second = keras.optimizers.SGD(0.1)
    with pytest.raises(ConfigError, match="its second is not built"):
        _run(tmp_path, DATA["fixed"](), model=model)


def test_callbacks_whose_attributes_are_lost_are_named(tmp_path, caplog):
    class Mine(keras.callbacks.Callback):
        pass

    with caplog.at_level(logging.WARNING, "tfdist"):
        _run(tmp_path, DATA["fixed"](), Mine(), epochs=1)
    assert "does not hold the attributes of Mine" in caplog.text
    with pytest.raises(ConfigError, match="BackupAndRestore and CheckpointAndResume both"):
        _run(tmp_path, DATA["fixed"](), keras.callbacks.BackupAndRestore(str(tmp_path / "backup")))


def test_it_works_in_fit_alone(tmp_path):
    option = CheckpointAndResume(tmp_path)
    with pytest.raises(ConfigError, match=r"works in tfdist\.fit only"):
        _model().fit(X, Y, callbacks=[option], verbose=0)
    with pytest.raises(ConfigError, match=r"works in tfdist\.fit only"):
        evaluate(_model(), DATA["fixed"](), callbacks=[option])
    with pytest.raises(ConfigError, match="contains CheckpointAndResume twice"):
        fit(_model(), DATA["fixed"](), callbacks=[option, option])


@pytest.mark.parametrize("arguments", [{"every": 0}, {"every": 1.5}, {"keep": 0}, {"keep": True}])
def test_arguments_are_checked(arguments):
    with pytest.raises(ConfigError, match="expected a number of at least 1"):
        CheckpointAndResume("runs/mine", **arguments)


@pytest.mark.parametrize("folder", ["", 3, "gs://bucket/folder"])
def test_the_folder_is_one_of_this_machine(folder):
    with pytest.raises(ConfigError):
        CheckpointAndResume(folder)


def test_facts_of_something_else_are_one_line(tmp_path):
    from tfdist.training.checkpoints.checkpoint_files import save

    save(tmp_path, 3, {"a": tf.zeros([2])}, {"trained": {}})
    with pytest.raises(ConfigError, match="is not a checkpoint of fit"):
        _run(tmp_path, DATA["fixed"]())


class OwnState(keras.Model):
    """A model whose step uses optimizers in a list and in a layer, and a variable of TensorFlow."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (
            keras.layers.Dense(4, activation="tanh"),
            keras.Sequential([keras.layers.Dense(1)]),
        )
        self.ours = [keras.optimizers.Adam(0.01)]
        self.count = tf.Variable(0.0)

    def call(self, inputs):
        return self.other(self.one(inputs))

    def train_step(self, data):
        x, y = data
        self.count.assign_add(1.0)
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) * (1.0 + 0.1 * self.count)
        for optimizer, layer in ((self.ours[0], self.one), (self.other.optimizer, self.other)):
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def test_optimizers_and_variables_within_a_model_are_resumed(tmp_path):
    def trained(folder, act=None, at=0):
        keras.utils.set_random_seed(1)
        model = OwnState()
        model(X[:1])
        model.ours[0].build(model.one.trainable_variables)
        model.other.compile(keras.optimizers.SGD(0.01, momentum=0.9))
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
        callbacks = [CheckpointAndResume(folder, every=2), *([At(at, act)] if act else [])]
        fit(model, data, epochs=3, verbose=0, callbacks=callbacks)
        return [*model.get_weights(), model.count.numpy()]

    expected = trained(tmp_path / "straight")
    with pytest.raises(Killed):
        trained(tmp_path / "stopped", _kill, at=7)
    for mine, its in zip(trained(tmp_path / "stopped"), expected, strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("has_own_step", [False, True])
def test_optimizers_that_no_step_uses_are_no_reason_to_refuse(tmp_path, has_own_step):
    teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    teacher.compile("adam", "mse")
    teacher.trainable = False
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1)(teacher(inputs))

    class OfOne(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    model = (OfOne if has_own_step else keras.Model)(inputs, outputs)
    if not has_own_step:
        model.candidates = {"a": keras.optimizers.Adam()}
    model.compile("sgd", "mse")
    fit(model, X, Y, batch_size=5, verbose=0, shuffle=False, callbacks=[CheckpointAndResume(tmp_path)])
    [step] = list_steps(tmp_path)
    assert step == 6


@pytest.mark.parametrize(
    ("data", "begins"), [("fixed", [(0, 0), (8, None)]), ("captured", [(0, 0), (2, None)])]
)
def test_the_start_names_the_step_of_the_checkpoint(tmp_path, data, begins):
    events = []
    with listening(events.append):
        with pytest.raises(Killed):
            _run(tmp_path, DATA[data](), act=_kill, at=9)
        _run(tmp_path, DATA[data]())
    starts = [event for event in events if isinstance(event, RunStarted)]
    assert [(event.step, event.steps_lost) for event in starts] == begins


def test_a_second_run_is_refused_a_folder_until_the_first_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_folder, "_SECONDS_TO_END", 0.0)
    data = DATA["fixed"]()

    def second():
        with pytest.raises(ConfigError, match="another run is writing its checkpoints there"):
            _run(tmp_path, data)
        raise Killed

    with pytest.raises(Killed):
        _run(tmp_path, data, act=second, at=9)
    assert _run(tmp_path, data) == _run(tmp_path / "other", data)


def test_a_run_waits_for_one_that_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_folder, "_SECONDS_BETWEEN_TRIES", 0.0)
    first = contextlib.ExitStack()
    first.enter_context(lock_folder.locked(tmp_path))
    monkeypatch.setattr(lock_folder._log, "info", lambda *_: first.close())
    with lock_folder.locked(tmp_path), pytest.raises(BlockingIOError):
        _try_to_lock(tmp_path)


def test_a_process_forked_meanwhile_does_not_keep_the_lock(tmp_path, monkeypatch):
    opened, open_ = [], os.open
    monkeypatch.setattr(lock_folder.os, "open", lambda *args: opened.append(open_(*args)) or opened[-1])
    with lock_folder.locked(tmp_path):
        of_child = os.dup(opened[0])
    try:
        _try_to_lock(tmp_path)
    finally:
        os.close(of_child)


def _try_to_lock(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
