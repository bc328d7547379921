"""What `fit` in a script of the user's own reports: the start, its speed, and that of each task."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.cluster.config import ClusterConfig  # noqa: E402
from tfdist.launcher.record_events import listening  # noqa: E402
from tfdist.launcher.run_events import (  # noqa: E402
    EpochEnded,
    PhaseBegun,
    Progressed,
    RunStarted,
    TaskSpeed,
)
from tfdist.strategies import current_cluster_and_strategy  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.reports import report_progress_to_launcher  # noqa: E402
from tfdist.training.reports.report_progress_to_launcher import FitReports  # noqa: E402
from training_helpers import batches, points  # noqa: E402

keras = tf.keras


@pytest.fixture
def strategy(monkeypatch):
    made = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    monkeypatch.setattr(current_cluster_and_strategy, "_strategy", made)
    monkeypatch.setattr(current_cluster_and_strategy, "_cluster", ClusterConfig.local(workers=1))
    monkeypatch.setattr(current_cluster_and_strategy, "_name", "one_device")
    return made


def reported(strategy, data=None, **options):
    """Return the events of a call of `fit`, which reports each step."""
    events = []
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="line")
        model.compile("sgd", "mse", metrics=[keras.metrics.BinaryAccuracy()])
    with listening(events.append):
        fit(model, batches() if data is None else data, strategy=strategy, verbose=0, **options)
    return events


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def test_the_start_names_what_trains_and_phases_follow(strategy):
    events = reported(strategy, epochs=2, validation_data=batches())
    [started] = of(RunStarted, events)
    assert (started.model, started.parameters, started.strategy) == ("line", 4, "one_device")
    assert (started.step, started.steps, started.devices) == (0, 8, "1 CPU device")
    assert started.cluster == {"worker": 1}
    assert started.versions["keras"] == keras.__version__
    phases = [event.phase for event in of(PhaseBegun, events)]
    assert phases == ["training", "evaluating", "training", "evaluating", "after fit"]
    assert set(of(EpochEnded, events)[-1].logs) >= {"loss", "val_loss", "val_binary_accuracy"}


def test_the_default_strategy_is_named_by_its_class():
    [started] = of(RunStarted, reported(tf.distribute.get_strategy()))
    assert (started.strategy, started.devices) == ("_DefaultDistributionStrategy", "1 CPU device")


def test_an_epoch_without_evaluation_begins_no_phase(strategy):
    phases = [event.phase for event in of(PhaseBegun, reported(strategy, epochs=3))]
    assert phases == ["training", "after fit"]


def test_the_speed_counts_the_examples_after_the_first_step(strategy, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(report_progress_to_launcher.time, "monotonic", lambda: now[0])

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            now[0] += 30.0 if batch == 0 else 1.0  # the first step traces the graph

    uneven = tf.data.Dataset.from_tensor_slices(points(18)).batch(5)
    events = of(Progressed, reported(strategy, uneven, callbacks=[Clock()]))
    assert [event.step for event in events] == [1, 2, 3, 4, 4]
    assert [event.examples_per_second for event in events] == pytest.approx([None, 5, 5, 13 / 3, 13 / 3])
    assert all(0 <= event.accuracy <= 1 for event in events)
    assert all(event.loss > 0 for event in events)


@pytest.mark.parametrize("data", ["generator", "arrays"])
def test_any_data_have_a_speed(strategy, monkeypatch, data):
    monkeypatch.setattr(report_progress_to_launcher, "SECONDS_BETWEEN_REPORTS", 0.0)
    x, y = points()
    options = {"x": x, "y": y} if data == "arrays" else {"x": batches().map(lambda x, y: (2 * x, y))}
    events = reported(strategy, options.pop("x"), batch_size=5 if data == "arrays" else None, **options)
    assert of(Progressed, events)[-1].examples_per_second > 0
    [speed, *_] = of(TaskSpeed, events)
    assert speed.milliseconds["worker:0"] > 0
    assert speed.shares == {"worker:0": 1.0}


class _Strategy:
    """What the reports read of a strategy of two workers."""

    num_replicas_in_sync = 2

    class extended:
        should_checkpoint = True
        worker_devices = ("/job:worker/device:CPU:0",)


@pytest.fixture
def two_workers(monkeypatch):
    strategy = _Strategy()
    monkeypatch.setattr(current_cluster_and_strategy, "_strategy", strategy)
    monkeypatch.setattr(current_cluster_and_strategy, "_cluster", ClusterConfig.local(workers=2))
    monkeypatch.setattr(current_cluster_and_strategy, "_name", "multi_worker_mirrored")
    return strategy


def test_each_worker_has_its_own_speed_since_the_last_report(two_workers, monkeypatch):
    monkeypatch.setattr(report_progress_to_launcher, "SECONDS_BETWEEN_REPORTS", 0.0)
    reports, events = FitReports(None, two_workers, epochs=2, steps=20), []
    first = np.array([[0.1, 10, 0, 0, 80], [0.3, 10, 0, 0, 80]])
    with listening(events.append):
        reports.after_steps(0, 10, {"loss": 1.0}, first)
        reports.after_epoch(0, 20, {"loss": 1.0}, 2 * first + [[0.1, 0, 0, 0, 0], [0.3, 0, 0, 0, 0]])
        reports.after_steps(1, 10, {"loss": 1.0}, first)
    speeds = [event.milliseconds for event in of(TaskSpeed, events)]
    assert speeds == [
        pytest.approx({"worker:0": 10.0, "worker:1": 30.0}),
        pytest.approx({"worker:0": 20.0, "worker:1": 60.0}),
        pytest.approx({"worker:0": 10.0, "worker:1": 30.0}),
    ]


def test_many_short_epochs_are_not_as_many_reports_of_the_tasks(two_workers):
    reports, events = FitReports(None, two_workers, epochs=100, steps=1), []
    table = np.array([[0.1, 1, 0, 0, 8], [0.1, 1, 0, 0, 8]])
    with listening(events.append):
        for epoch in range(100):
            reports.after_epoch(epoch, 1, {}, table)
    assert 1 <= len(of(TaskSpeed, events)) < 50


def test_a_model_that_measures_nothing_reports_its_steps(two_workers, monkeypatch):
    monkeypatch.setattr(report_progress_to_launcher, "SECONDS_BETWEEN_REPORTS", 0.0)
    reports, events = FitReports(None, two_workers, epochs=1, steps=20), []
    with listening(events.append):
        reports.after_steps(0, 10, {}, None)
        reports.after_epoch(0, 20, {}, None)
    assert [(event.step, event.examples_per_second) for event in events] == [(10, None), (20, None)]


def test_the_first_step_after_an_evaluation_is_not_reported_alone(two_workers, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(report_progress_to_launcher.time, "monotonic", lambda: now[0])
    reports, events = FitReports(None, two_workers, epochs=2, steps=20), []
    table = np.array([[0.1, 10, 0, 0, 80], [0.3, 10, 0, 0, 80]])
    with listening(events.append):
        for phase, seconds in (("training", 1.0), ("evaluating", 1.0), ("training", 0.1)):
            reports.phase(phase)
            now[0] += seconds
            if phase == "training":
                reports.after_steps(0, 10, {}, table)
    assert [event.step for event in of(Progressed, events)] == [10]


def test_only_the_chief_reports(two_workers, monkeypatch):
    monkeypatch.setattr(_Strategy.extended, "should_checkpoint", False)
    reports, events = FitReports(None, two_workers, epochs=1, steps=20), []
    with listening(events.append):
        reports.begin(0, 0)
        reports.phase("training")
        reports.after_epoch(0, 20, {}, None)
        reports.after_evaluation(0, {})
    assert events == []


def test_an_epoch_that_ends_early_reports_the_steps_that_were_done(two_workers):
    reports, events = FitReports(None, two_workers, epochs=3, steps=20), []
    with listening(events.append):
        reports.after_epoch(0, 20, {}, None)
        reports.after_epoch(1, 7, {}, None)
    assert [(event.step, event.steps) for event in events] == [(20, 60), (27, 60)]


def test_an_execution_beyond_the_end_of_the_epoch_does_not_count(two_workers):
    reports, events = FitReports(None, two_workers, epochs=1, steps=10), []
    with listening(events.append):
        reports.after_epoch(0, 12, {}, None)  # executions of 4 steps
    assert [(event.step, event.steps) for event in events] == [(10, 10)]


def test_a_loss_whose_name_begins_like_an_accuracy_is_none(two_workers):
    reports, events = FitReports(None, two_workers, epochs=1, steps=2), []
    with listening(events.append):
        reports.after_epoch(0, 2, {"loss": 20.0, "acceleration_loss": 12.5}, None)
    assert [(event.loss, event.accuracy) for event in events] == [(20.0, None)]
