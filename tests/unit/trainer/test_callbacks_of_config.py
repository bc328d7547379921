"""Check that a config's callbacks are called as Keras's fit calls them, and may end a run."""

import json
from pathlib import Path

import numpy as np
import own_objects
import pytest
import tensorflow as tf

from again import again
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.end_announcements import ServerTermination
from tfdist.coordination.stop_signals import Notice
from tfdist.datasets.open_data import open_data
from tfdist.errors import ConfigError, Preempted
from tfdist.launcher.record_events import listening
from tfdist.launcher.run_events import Progressed, RunStarted
from tfdist.strategies import current_cluster_and_strategy
from tfdist.trainer import call_callbacks
from tfdist.trainer.callbacks_of_config import check_named_callbacks, named_callbacks
from tfdist.trainer.config import read_config
from tfdist.trainer.model_of_config import compiled_model
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.train_loop import Run
from tfdist.training.checkpoints.checkpoint_files import list_steps
from tfdist.training.workers.stop_together import Stopping

CONFIGS = Path(__file__).parents[3] / "configs"
keras = tf.keras


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data("digits", examples=(640, 100), cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def train(tmp_path, data):
    """Train for two epochs of five steps on one device, and return the run, its results and its model."""

    def run(*changes, notice=None):
        changes = ("model.name=own_objects:build", "train.epochs=2", "train.schedule=constant", "train.steps_per_execution=1", *changes)  # fmt: skip
        config = read_config(CONFIGS / "local.yaml", changes).config
        tf.keras.utils.set_random_seed(config.train.seed)
        strategy = tf.distribute.get_strategy()
        context = RunContext(
            config,
            ClusterConfig(),
            strategy,
            data,
            RunFolder.at(tmp_path),
            notice or Notice(),
            ServerTermination(()),
        )
        model = compiled_model(config, data, "logits")
        one = Run(context, model)
        try:
            return one, one.train(), model
        finally:
            one.close()

    return run


def calls(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def close(one, other):
    assert [call[:2] for call in one] == [call[:2] for call in other]
    for (hook, index, logs), (_, _, wanted) in zip(one, other, strict=True):
        assert logs == pytest.approx(wanted, rel=1e-4), (hook, index)


def test_the_calls_are_those_of_keras(train, data, tmp_path):
    ours, kerass = tmp_path / "ours", tmp_path / "kerass"
    train(f"train.callbacks=[{{name: own_objects:recorders, path: {ours}}}]")
    keras.utils.set_random_seed(0)
    model = own_objects.build(data.image_shape, 10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    options = {"epochs": 2, "steps_per_epoch": 5, "verbose": 0, "shuffle": False}
    recorder = own_objects.Recorder(kerass)
    model.fit(data.train(128), validation_data=data.test(128), callbacks=[recorder], **options)
    *told, test_begin, test_end = calls(ours)
    close(told, calls(kerass))
    assert [test_begin[0], test_end[0]] == ["test_begin", "test_end"]  # of the weights after on_train_end


def test_logs_are_those_of_the_whole_epoch_whatever_is_saved_within_it(train, tmp_path):
    train(f"train.callbacks=[{{name: own_objects:recorders, path: {tmp_path / 'whole'}}}]")
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    train(
        f"train.callbacks=[{{name: own_objects:recorders, path: {tmp_path / 'parts'}}}]",
        "checkpoint.every=2",
        # Keras 2 counts in the same variables for training and evaluation.
        *([] if keras.__version__.startswith("2.") else ["evaluation.every=3"]),
    )

    def epochs(name):
        logs = [call[2] for call in calls(tmp_path / name) if call[0] == "epoch_end"]
        return [{key: value for key, value in log.items() if not key.startswith("val_")} for log in logs]

    assert len(epochs("parts")) == 2
    for one, other in zip(epochs("parts"), epochs("whole"), strict=True):
        assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize(("stop", "step"), [("{name: own_objects:stop, epoch: 1, batch: 2}", 8), ("{name: early_stopping, monitor: loss, min_delta: 100, patience: 1}", 10)])  # fmt: skip
def test_a_callback_ends_the_run_for_good(train, tmp_path, stop, step):
    callbacks = f"train.callbacks=[{stop}, {{name: own_objects:recorders, path: {tmp_path / 'calls'}}}]"
    events = []
    with listening(events.append):
        run, results, _ = train(callbacks, "train.epochs=4")
    last = [event for event in events if isinstance(event, Progressed)][-1]
    assert (last.step, last.steps) == (step, step)
    assert (run.step, list_steps(tmp_path / "checkpoints")[-1]) == (step, step)
    assert [call[:2] for call in calls(tmp_path / "calls") if call[0] in ("epoch_end", "train_end")] == [
        ["epoch_end", 0],
        ["epoch_end", 1],
        ["train_end", None],
    ]
    again, same, _ = train(callbacks, "train.epochs=4")
    assert (again.step, same) == (step, pytest.approx(results))
    longer, _, _ = train("train.epochs=4")  # without callbacks it goes on
    assert longer.step == 20


def test_the_strategy_that_was_made_is_recorded(train, monkeypatch):
    monkeypatch.setattr(
        current_cluster_and_strategy, "_strategy", None
    )  # restored after the test, as are the others
    monkeypatch.setattr(current_cluster_and_strategy, "_cluster", None)
    monkeypatch.setattr(current_cluster_and_strategy, "_name", "")
    current_cluster_and_strategy.remember(ClusterConfig(), tf.distribute.get_strategy(), "mirrored")
    events = []
    with listening(events.append):
        train("strategy.name=auto", "train.epochs=1")
    assert [event.strategy for event in events if isinstance(event, RunStarted)] == ["mirrored"]


def test_a_run_does_not_end_before_its_checkpoint(train, tmp_path):
    train()
    with pytest.raises(ConfigError, match="has a checkpoint of step 10, but the run ends at step 5 now"):
        train("train.epochs=1")
    assert list_steps(tmp_path / "checkpoints")[-1] == 10


PLATEAU = (
    "train.callbacks=[{name: reduce_lr_on_plateau, monitor: loss, min_delta: 100, patience: 1, factor: 0.5}]"
)
STOPPING = "{name: early_stopping, monitor: loss, min_delta: 100, patience: 3, restore_best_weights: true}"


def test_a_lowered_learning_rate_is_resumed_unless_the_config_sets_another(train, tmp_path):
    _, wanted, whole = train(PLATEAU, "train.epochs=4")
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    train(PLATEAU)
    _, results, resumed = train(PLATEAU, "train.epochs=4")
    assert float(resumed.optimizer.learning_rate) == float(whole.optimizer.learning_rate)
    assert (
        float(resumed.optimizer.learning_rate)
        < 0.5 * read_config(CONFIGS / "local.yaml").config.train.learning_rate
    )
    assert results == pytest.approx(wanted, rel=1e-6)
    _, _, changed = train(PLATEAU, "train.epochs=5", "train.learning_rate=0.25")
    assert float(changed.optimizer.learning_rate) in (0.25, 0.125)


def test_patience_and_the_best_weights_are_resumed(train, tmp_path):
    once, wanted, _ = train(f"train.callbacks=[{STOPPING}]", "train.epochs=9")
    assert once.step < 45
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    train(f"train.callbacks=[{STOPPING}]")
    # Another callback before it leaves it its own state.
    more = f"{{name: own_objects:recorders, path: {tmp_path / 'calls'}}}"
    resumed, results, _ = train(f"train.callbacks=[{more}, {STOPPING}]", "train.epochs=9")
    assert resumed.step == once.step
    assert results == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "epochs"),
    [(4, 3), again(None, 3), again(4, 1), (None, 1), again("end", 1)],
    ids=["epoch", "evaluation", "run", "last test", "test after callbacks"],
)
def test_the_end_of_an_epoch_comes_after_a_stop_at_it(train, tmp_path, monkeypatch, batch, epochs):
    def callbacks(name):
        told = "own_objects:told" if batch is None else f"{{name: own_objects:told, batch: {batch}}}"
        recorder = f"{{name: own_objects:recorders, path: {tmp_path / name}}}"
        return f"train.callbacks=[{told}, {STOPPING}, {recorder}]", f"train.epochs={epochs}"

    _, wanted, whole = train(*callbacks("whole"))
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    notice = Notice()
    monkeypatch.setattr(own_objects, "NOTICE", notice)
    with pytest.raises(Preempted):
        train(*callbacks("parts"), notice=notice)
    assert list_steps(tmp_path / "checkpoints")[-1] == 5
    monkeypatch.setattr(own_objects, "NOTICE", None)
    monkeypatch.setattr(own_objects, "SEEN", [])
    _, results, model = train(*callbacks("parts"))
    assert results == pytest.approx(wanted, rel=1e-6)
    for mine, its in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-7)
    # Callbacks begin with the model of the checkpoint, if there is anything left for them.
    assert ([] if batch == "end" else [5]) == own_objects.SEEN
    ends = [
        [call for call in calls(tmp_path / name) if call[0] in ("epoch_end", "train_end")]
        for name in ("parts", "whole")
    ]
    close(*ends)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 names the option in another way")
def test_an_end_by_accuracy_has_the_averaged_weights_too(train, tmp_path):
    averaged = "train.optimizer={name: sgd, use_ema: true, ema_momentum: 0.5}"
    early, _, model = train(averaged, "train.until_accuracy=0.001", "evaluation.every=3")
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    whole, _, expected = train(averaged, "train.steps=3")
    assert early.step == whole.step == 3
    for mine, its in zip(model.get_weights(), expected.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-6)


def test_what_a_callback_changes_at_the_end_is_evaluated_and_saved(train, tmp_path):
    _, results, model = train("train.callbacks=[{name: own_objects:stop, epoch: 9, clears: true}]")
    assert not any(np.any(weight) for weight in model.get_weights())
    assert results["loss"] == pytest.approx(np.log(10), rel=1e-5)
    reader = tf.train.load_checkpoint(str(tmp_path / "checkpoints" / "10" / "variables"))
    kernels = [reader.get_tensor(name) for name, shape in reader.get_variable_to_shape_map().items() if shape == [784, 10]]  # fmt: skip
    assert any(not kernel.any() for kernel in kernels)


@pytest.mark.parametrize(
    ("callbacks", "problem"),
    [
        ("early_stoping", "train.callbacks: there is no 'early_stoping'. Did you mean 'early_stopping'?"),
        ("{name: EarlyStopping, patients: 3}", "train.callbacks: EarlyStopping: has no argument 'patients'. Did you mean 'patience'?"),
        ("BackupAndRestore", "train.callbacks: BackupAndRestore: is not supported: tfdist saves checkpoints of its own"),
        ("model_checkpoint", "train.callbacks: model_checkpoint: does not accept its arguments: missing a required argument: 'filepath'"),
        ("own_objects:nothing", "train.callbacks: own_objects:nothing: expected a callback of Keras or a list of them, received None"),
        ("own_objects:stopp", "train.callbacks own_objects:stopp: own_objects has no 'stopp'. Did you mean 'stop'?"),
        ("own_objects:stop", "train.callbacks: own_objects:stop: does not accept its arguments: missing a required argument: 'epoch'"),
    ],
)  # fmt: skip
def test_what_is_no_callback_is_refused(tmp_path, callbacks, problem):
    (tmp_path / "x.yaml").write_text(f"train: {{callbacks: [{callbacks}]}}")
    with pytest.raises(ConfigError) as caught:
        named_callbacks(read_config(tmp_path / "x.yaml").config)
    assert str(caught.value).startswith(problem)


def test_a_task_without_callbacks_agrees_as_often_as_one_with_them(train, tmp_path, monkeypatch):
    agreed = {"with": [], "without": []}

    class Counted(Stopping):
        def __init__(self, callbacks, model, strategy):
            self._agreed = agreed["with" if callbacks else "without"]
            super().__init__(callbacks, model, strategy)

        def after_execution(self):
            self._agreed.append("execution")
            return super().after_execution()

        def after_epoch(self):
            self._agreed.append("epoch")
            return super().after_epoch()

        def _any(self, value):
            self._agreed.append("exchange")
            return super()._any(value)

    monkeypatch.setattr(call_callbacks, "Stopping", Counted)
    for name, path in (("with", tmp_path / "calls"), ("without", "")):
        train(f"train.callbacks=[{{name: own_objects:recorders, path: '{path}'}}]", "checkpoint.every=4")
        (tmp_path / "checkpoints").rename(tmp_path / f"checkpoints of the run {name}")
    assert agreed["with"] == agreed["without"]
    assert agreed["with"].count("epoch") > 2


def test_a_check_does_not_call_functions_of_the_users(tmp_path):
    def check(*named):
        (tmp_path / "x.yaml").write_text(f"train: {{callbacks: [{', '.join(named)}]}}")
        check_named_callbacks(read_config(tmp_path / "x.yaml").config)

    check("own_objects:begins_a_run", "early_stopping", "{name: own_objects:stop, epoch: 1}")
    with pytest.raises(ConfigError, match="own_objects has no 'stopp'"):
        check("own_objects:stopp")
    with pytest.raises(ConfigError, match="missing a required argument: 'epoch'"):
        check("own_objects:stop")
    with pytest.raises(ConfigError, match="has no argument 'patients'"):
        check("{name: early_stopping, patients: 3}")


@pytest.mark.parametrize("rate", ["train.schedule=cosine", "train.warmup=0.1"])
def test_a_callback_that_lowers_the_learning_rate_of_a_schedule_is_refused_at_once(train, tmp_path, rate):
    named = "train.callbacks=[{name: reduce_lr_on_plateau, patience: 2}]"
    problem = "train.callbacks: ReduceLROnPlateau: sets the learning rate, but that is a schedule"
    with pytest.raises(ConfigError, match=problem):
        check_named_callbacks(read_config(CONFIGS / "local.yaml", [named, rate]).config)
    with pytest.raises(ConfigError, match=problem):
        train(named, rate)
    check_named_callbacks(read_config(CONFIGS / "local.yaml", [named, "train.schedule=constant"]).config)


def test_a_mapping_needs_a_name(tmp_path):
    (tmp_path / "x.yaml").write_text("train:\n  callbacks:\n    - {patience: 3}\n")
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "x.yaml")
    assert str(caught.value).startswith(
        f"{tmp_path}/x.yaml:3: train.callbacks[0]: expected a name, or a mapping with"
    )


@pytest.mark.skipif(not hasattr(keras.callbacks, "SwapEMAWeights"), reason="this Keras has no such callback")
def test_averages_in_the_place_of_weights_are_refused(train):
    with pytest.raises(ConfigError, match="swap_on_epoch changes the weights of checkpoints"):
        train("train.callbacks=[{name: SwapEMAWeights, swap_on_epoch: true}]")


@pytest.mark.parametrize(
    ("callback", "is_refused"),
    [
        ("early_stopping", True),
        ("{name: early_stopping, monitor: loss}", False),
        ("{name: model_checkpoint, filepath: x.keras, save_best_only: true}", True),
        ("{name: model_checkpoint, filepath: x.keras}", False),
        ("terminate_on_nan", False),
    ],
)
def test_a_callback_that_waits_for_evaluations_is_refused_beside_an_evaluator(tmp_path, callback, is_refused):
    (tmp_path / "x.yaml").write_text(
        f"cluster: {{chief: 1, worker: 1, ps: 1, evaluator: 1}}\ntrain: {{callbacks: [{callback}]}}"
    )
    config = read_config(tmp_path / "x.yaml").config
    if not is_refused:
        assert len(named_callbacks(config)) == 1
        return
    with pytest.raises(
        ConfigError, match=r"monitors val_loss, .* Set monitor: loss, or leave the evaluator out"
    ):
        named_callbacks(config)


@pytest.mark.skipif(not hasattr(keras.callbacks, "SwapEMAWeights"), reason="Keras has no such callback")
def test_an_evaluation_that_is_left_has_swapped_no_averages(train, tmp_path, monkeypatch):
    averaged = "train.optimizer={name: sgd, use_ema: true, ema_momentum: 0.5}", "train.epochs=3"
    _, wanted, whole = train(*averaged, "train.callbacks=[swap_ema_weights]")
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    notice = Notice()
    monkeypatch.setattr(own_objects, "NOTICE", notice)
    with pytest.raises(Preempted):
        train(*averaged, "train.callbacks=[swap_ema_weights, own_objects:told]", notice=notice)
    monkeypatch.setattr(own_objects, "NOTICE", None)
    _, results, model = train(*averaged, "train.callbacks=[swap_ema_weights]")
    assert results == wanted
    for mine, its in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_a_csv_file_continues(train, tmp_path):
    logger = f"train.callbacks=[{{name: csv_logger, filename: {tmp_path / 'log.csv'}}}]"
    train(logger, "train.epochs=2")
    train(logger, "train.epochs=3")
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1", "2"]


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 tracks optimizers of a model itself")
def test_an_optimizer_and_a_variable_within_the_model_are_resumed(train, tmp_path):
    own = "model.name=own_objects:with_own_optimizer"
    _, wanted, whole = train(own, "train.epochs=3")
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    train(own, "train.epochs=2")
    _, results, model = train(own, "train.epochs=3")
    assert results == pytest.approx(wanted, rel=1e-6)
    assert int(model.head_optimizer.iterations) == int(whole.head_optimizer.iterations) == 15
    assert int(model.seen) == int(whole.seen) == 15
