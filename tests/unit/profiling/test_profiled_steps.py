"""Which steps of a run are recorded, and what is told of them."""

import gzip
import json

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError
from tfdist.profiling.parse_step_range import parse_steps
from tfdist.profiling.profiled_steps import ProfiledSteps
from tfdist.profiling.timeline_paths import FILE, timelines_in
from tfdist.trainer.config import Config, read_config
from tfdist.trainer.sections.train import TrainSection
from tfdist.trainer.step_counts import profiled_range


def steps_in(folder, file=FILE):
    trace = json.loads(gzip.decompress((folder / file).read_bytes()))
    return [event["name"] for event in trace["traceEvents"] if event["name"].startswith("step")]


@pytest.mark.parametrize(
    "text", ["30:20", "0:5", "5", ":", "5:", "a:b", "1:2:3", "-1:5", "", "1" * 30 + ":2"]
)
def test_what_is_no_range_of_steps_is_a_mistake_of_one_line(text):
    with pytest.raises(ConfigError, match=r"^--profile: expected the first and the last step to record"):
        parse_steps(text, "--profile")


def test_a_config_names_the_place_of_a_wrong_range(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("train:\n  profile: 30:20\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:2: train\.profile: .*, received '30:20'\. Steps count"):
        read_config(path)


def test_a_range_beyond_the_run_is_a_mistake_of_one_line():
    config = Config(train=TrainSection(profile="5:20"))
    assert profiled_range(config, 20) == (5, 20)
    assert profiled_range(Config(), 20) is None
    with pytest.raises(ConfigError) as error:
        profiled_range(config, 10)
    assert str(error.value) == (
        "train.profile: expected steps of the run, which has 10, received 5:20. End at 10 or before"
    )


def test_executions_end_where_the_recording_begins_and_ends(tmp_path):
    profiled = ProfiledSteps((20, 30), tf.distribute.get_strategy(), tmp_path)
    reached, ends = 0, []
    while reached < 50:
        reached = profiled.boundary(reached, reached + 8)
        ends.append(reached)
    assert ends == [8, 16, 19, 27, 30, 38, 46, 54]


def test_steps_are_recorded_once_and_only_where_they_are(tmp_path):
    told = []
    profiled = ProfiledSteps((3, 4), tf.distribute.get_strategy(), tmp_path, say=told.append)
    for step in (0, 1):
        profiled.begin_if_due(step)
        profiled.end_if_due(step + 1)
    assert not told
    profiled.begin_if_due(2)
    with tf.profiler.experimental.Trace("train", step_num=3, _r=1):
        profiled.end_if_due(3)
    profiled.end_if_due(4)
    assert told[0] == f"timeline of steps 3 to 4: {tmp_path / FILE}"
    assert steps_in(tmp_path) == ["step 3"]
    (tmp_path / FILE).unlink()
    profiled.begin_if_due(2)  # back at a checkpoint
    profiled.end_if_due(4)
    assert not (tmp_path / FILE).exists()


def test_a_run_that_resumes_after_the_steps_records_nothing(tmp_path):
    profiled = ProfiledSteps((3, 4), tf.distribute.get_strategy(), tmp_path)
    profiled.begin_if_due(4)
    profiled.end_if_due(5, is_over=True)
    assert not (tmp_path / FILE).exists()


def test_nothing_recorded_is_a_warning_and_no_end_of_the_training(tmp_path, caplog):
    profiled = ProfiledSteps((1, 2), tf.distribute.get_strategy(), tmp_path)
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        profiled.begin_if_due(0)
        profiled.end_if_due(2)
    finally:
        tf.profiler.experimental.stop(save=False)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("the timeline will lack worker:0: profile: a profiler runs already in this")
    assert lines[1].startswith(
        "there is no timeline: timeline: the profiler has recorded nothing in any task."
    )


def test_fit_records_the_steps_that_a_variable_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDIST_PROFILE", "6:9")
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.ones((20, 3), "float32"), np.ones((20, 1), "float32")
    tfdist.fit(model, *data, batch_size=5, epochs=3, verbose=0)  # four steps an epoch
    assert steps_in(tmp_path) == ["step 6", "step 7", "step 8", "step 9"]
    assert f"timeline of steps 6 to 9: {tmp_path / FILE}" in capsys.readouterr().out
    second = "timeline/timeline-2.json.gz"
    monkeypatch.setenv("TFDIST_PROFILE", "6:8")
    tfdist.fit(model, *data, batch_size=5, epochs=2, verbose=0)
    assert f"timeline of steps 6 to 8: {tmp_path / second}" in capsys.readouterr().out
    assert steps_in(tmp_path, second) == ["step 6", "step 7", "step 8"]
    assert steps_in(tmp_path) == ["step 6", "step 7", "step 8", "step 9"]
    tfdist.fit(model, *data, batch_size=5, epochs=1, verbose=0)  # does not reach the range
    assert timelines_in(tmp_path) == [tmp_path / FILE, tmp_path / second]
    monkeypatch.setenv("TFDIST_PROFILE", "9:6")
    with pytest.raises(ConfigError, match=r"^TFDIST_PROFILE: expected the first and the last step"):
        tfdist.fit(model, *data, batch_size=5, epochs=1, verbose=0)
