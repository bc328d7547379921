import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.end_announcements import ServerTermination
from tfdist.coordination.stop_signals import Notice
from tfdist.datasets.open_data import open_data
from tfdist.errors import ConfigError
from tfdist.launcher.record_events import events_to_file, record
from tfdist.launcher.run_events import FILE, Evaluated, read_events
from tfdist.trainer.checkpoint_manager import CheckpointManager
from tfdist.trainer.config import read_config
from tfdist.trainer.evaluator_notes import note_results
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.run_folder import RunFolder
from tfdist.training.checkpoints.checkpoint_files import list_steps


def manager_of(folder, text, cache, **data_fields):
    config = folder / "x.yaml"
    config.write_text(text)
    strategy = tf.distribute.get_strategy()
    data = replace(open_data("digits", cache_dir=cache), **data_fields)
    context = RunContext(
        read_config(config).config,
        ClusterConfig(),
        strategy,
        data,
        RunFolder.at(folder),
        Notice(),
        ServerTermination(()),
    )
    return CheckpointManager(context)


@pytest.mark.parametrize("number", [float, np.float32])
def test_an_accuracy_is_enough_whatever_it_was_counted_in(number, tmp_path, cache):
    checkpoint_manager = manager_of(tmp_path, "train: {until_accuracy: 0.9}", cache)
    assert [
        checkpoint_manager.has_enough({"accuracy": float(number(each))}) for each in (0.8999, 0.9, 1.0)
    ] == [
        False,
        True,
        True,
    ]
    assert not checkpoint_manager.has_enough({})


def test_a_checkpoint_has_no_secret_and_a_renewed_one_resumes(tmp_path, cache):
    text = "model: {name: 'my_module:build', options: {api_key: %s, layers: %d}}"
    manager_of(tmp_path, text % ("first", 3), cache).save(4, {"a": np.zeros(2)}, {"accuracy": 0.5})
    about = tmp_path / "checkpoints/4/about.json"
    assert "first" not in about.read_text()
    assert manager_of(tmp_path, text % ("second", 3), cache).find() == 4
    # An earlier version stored it.
    facts = json.loads(about.read_text())
    facts["facts"]["trained"]["model.options.api_key"] = "first"
    about.write_text(json.dumps(facts))
    assert manager_of(tmp_path, text % ("second", 3), cache).find() == 4
    with pytest.raises(ConfigError, match=r"model\.options\.layers 3, but now it is 5"):
        manager_of(tmp_path, text % ("first", 5), cache).find()


def test_the_best_checkpoint_is_kept_among_those_that_were_evaluated(tmp_path, cache):
    manager = manager_of(tmp_path, "checkpoint: {keep: 1}", cache)
    for step, results in (
        (2, {"accuracy": 0.5}),
        (4, {"accuracy": 0.9}),
        (6, {}),
        (8, {"accuracy": 0.7}),
        (9, {}),
    ):
        manager.save(step, {"a": np.zeros(2)}, results)
    assert list_steps(tmp_path / "checkpoints") == [4, 9]


@pytest.mark.parametrize(("earlier", "now", "is_own"), [("", "", False), ("a", "b", False), ("a", "a", True)])
def test_never_to_resume_refuses_only_checkpoints_of_other_launches(
    tmp_path, cache, monkeypatch, earlier, now, is_own
):
    text = "checkpoint: {resume: never}"
    monkeypatch.setenv("TFDIST_START", earlier)
    manager_of(tmp_path, text, cache).save(4, {"a": np.zeros(2)}, {})
    monkeypatch.setenv("TFDIST_START", now)
    if is_own:
        assert manager_of(tmp_path, text, cache).find() == 4
        return
    with pytest.raises(ConfigError, match=r"step 4, and checkpoint\.resume is never"):
        manager_of(tmp_path, text, cache).find()


def test_the_fingerprint_decides_whether_the_data_are_the_same(tmp_path, cache):
    manager_of(tmp_path, "{}", cache, name="/a/photos").save(4, {"a": np.zeros(2)}, {})
    assert manager_of(tmp_path, "{}", cache, name="/b/photos").find() == 4
    with pytest.raises(ConfigError, match=r"data\.name '/a/photos', but now it is '/b/photos'"):
        manager_of(tmp_path, "{}", cache, name="/b/photos", fingerprint="0" * 12).find()
    with pytest.raises(ConfigError, match=r"data\.fingerprint '[0-9a-f]{12}', but now it is '000000000000'"):
        manager_of(tmp_path, "{}", cache, name="/a/photos", fingerprint="0" * 12).find()


def test_another_spelling_of_the_same_class_is_the_same_setting(tmp_path, cache):
    def manager(optimizer, loss):
        return manager_of(tmp_path, f"train: {{optimizer: {optimizer}, loss: {loss}}}", cache)

    manager("Adam", "SparseCategoricalCrossentropy").save(4, {"a": np.zeros(2)}, {"accuracy": 0.5})
    assert manager("{name: adam}", "sparse_categorical_crossentropy").find() == 4
    for optimizer in ("adamax", "{name: adam, beta_1: 0.8}"):
        with pytest.raises(ConfigError, match=r"was trained with train.optimizer 'Adam', but now it is "):
            manager(optimizer, "SparseCategoricalCrossentropy").find()


def test_a_checkpoint_has_the_seconds_of_all_starts(tmp_path, cache, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tfdist.trainer.checkpoint_manager.time.monotonic", lambda: now[0])
    for before, after in ((0.0, 30.0), (30.0, 60.0)):
        manager = manager_of(tmp_path, "{}", cache)
        manager.find()
        assert manager.seconds_before == before
        now[0] += 30.0
        manager.save(int(after), {"a": np.zeros(2)}, {})
        assert manager.find() == after  # as after a NaN
        assert manager.seconds_before == before


def test_the_best_checkpoint_of_an_evaluator_is_kept(tmp_path, cache, caplog):
    text = "cluster: {chief: 1, worker: 1, ps: 1, evaluator: 1}\ncheckpoint: {keep: 1}"
    manager = manager_of(tmp_path, text, cache)
    folder = RunFolder.at(tmp_path)
    for step, accuracy in ((2, 0.5), (4, 0.9), (6, 0.7), (8, 0.6)):
        manager.save(step, {"a": np.zeros(2)}, {})
        note_results(folder, step, {"accuracy": accuracy})
    assert list_steps(tmp_path / "checkpoints") == [4, 8]
    note_results(RunFolder.at(tmp_path / "x.yaml"), 8, {"accuracy": 1.0})  # cannot be written
    assert "step 8: the chief is not told that this is the best so far" in caplog.text
    folder.best_file.write_text("damaged")
    manager.save(10, {"a": np.zeros(2)}, {})
    assert list_steps(tmp_path / "checkpoints") == [10]


def test_the_results_of_an_evaluator_are_events_of_the_chief(tmp_path, cache):
    text = "cluster: {chief: 1, worker: 1, ps: 1, evaluator: 1}"
    folder = RunFolder.at(tmp_path)

    def found():
        events = read_events(tmp_path / FILE) if (tmp_path / FILE).exists() else []
        return [(event.step, event.results["accuracy"]) for event in events if isinstance(event, Evaluated)]

    def saved(manager, step, results):
        with events_to_file(tmp_path / FILE):
            manager.save(step, {"a": np.zeros(2)}, results)
        return found()

    manager = manager_of(tmp_path, text, cache)
    assert saved(manager, 2, {}) == []
    for step in (2, 4, 2):  # it begins again
        note_results(folder, step, {"accuracy": step / 10})
    assert saved(manager, 4, {}) == [(2, 0.2), (4, 0.4)]
    note_results(folder, 5, {"accuracy": 0.5})  # while the chief is gone
    later = manager_of(tmp_path, text, cache)  # which records none again
    assert saved(later, 6, {}) == [(2, 0.2), (4, 0.4), (5, 0.5)]
    note_results(folder, 6, {"accuracy": 0.6})
    with events_to_file(tmp_path / FILE):
        later.record_evaluator()
        record(Evaluated(step=8, results={"accuracy": 0.8}))
    assert saved(later, 8, {"accuracy": 0.8})[-2:] == [(6, 0.6), (8, 0.8)]  # its own stays the last
