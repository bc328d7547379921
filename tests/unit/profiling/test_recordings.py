"""What the profiler records becomes spans, shares of the steps, and one file that Perfetto opens."""

import gzip
import json
import time

import pytest
import tensorflow as tf
from recorded import START, exchange, operation, recorded, step, waiting

from tfdist._utils.profiler_span import EXCHANGE, STEP, span
from tfdist.errors import ConfigError, DataError
from tfdist.profiling.clock_alignment import align
from tfdist.profiling.cluster_recording import _as_numbers, _parts
from tfdist.profiling.read_recording import Span, read_recording
from tfdist.profiling.tensorflow_profiler import Recorded, Recorder, pack, unpack
from tfdist.profiling.time_shares import kind_of, shares_of, summary
from tfdist.profiling.timeline_file import write_timeline


def contents(timeline):
    return json.loads(gzip.decompress(timeline.path.read_bytes()))


def test_a_process_records_what_it_does_and_when():
    multiply = tf.function(lambda matrix: tf.reduce_sum(matrix @ matrix))
    multiply(tf.ones([500, 500]))
    recorder, begun = Recorder("worker:3"), time.time_ns()
    recorder.begin()
    with span(STEP, step_num=4, steps=1, _r=1):
        with span(EXCHANGE, round=2, other="ps:0"):
            time.sleep(0.001)
        multiply(tf.ones([500, 500]))
    recording, ended = read_recording(unpack(pack(recorder.end()))), time.time_ns()
    [of_step], [exchanged] = recording.steps, recording.named(EXCHANGE)
    assert recording.task == "worker:3"
    assert (of_step.facts, exchanged.facts) == (
        {"step_num": 4, "steps": 1},
        {"round": 2, "other": "ps:0"},
    )
    assert begun < of_step.begin <= exchanged.begin < exchanged.end <= of_step.end < ended
    assert exchanged.end - exchanged.begin >= 1_000_000
    assert "MatMul" in "".join(each.operation for each in recording.spans)


def test_two_profilers_in_a_process_are_a_mistake_of_one_line(tmp_path):
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(ConfigError, match=r"a profiler runs already in this process\. Leave the other"):
            Recorder("worker:0").begin()
    finally:
        tf.profiler.experimental.stop(save=False)


def test_a_recording_that_nobody_ended_is_forgotten():
    recorder = Recorder("ps:0")
    recorder.begin()
    recorder.begin()
    assert recorder.end().planes
    assert not recorder.end().planes


def test_nothing_is_recorded_of_what_has_no_profiler():
    with span(EXCHANGE, round=1):
        pass
    recorder = Recorder("worker:0")
    recorder.begin()
    assert not read_recording(recorder.end()).named(EXCHANGE)


def test_the_start_is_that_of_the_recorder_where_tensorflow_does_not_say_it():
    for says_start in (True, False):
        [found] = read_recording(recorded("worker:0", [[step(1, 5, 9)]], says_start=says_start)).spans
        assert (found.begin - START, found.end - START) == (5_000, 9_000)


def test_damaged_recordings_are_mistakes_of_one_line():
    with pytest.raises(DataError, match=r"^recording of ps:0: is damaged: .*Record again$"):
        read_recording(Recorded("ps:0", "here", 1, b"\xff\xff nonsense"))
    with pytest.raises(DataError, match=r"a task sent something else"):
        unpack(b"nonsense")


def test_recordings_of_any_length_travel_as_numbers():
    parts = [bytes(range(size)) for size in range(9)]
    numbers = [number for part in parts for number in _as_numbers(part)]
    array = _as_numbers(b"")[:0].__class__(len(numbers), dtype="int32")
    array[:] = numbers
    assert _parts(array) == parts


def test_each_instant_of_a_step_counts_once():
    # An exchange is hidden while the task computes, and waiting is a part of an exchange.
    threads = [
        [step(3, 0, 100)],
        [operation("MatMul", 0, 40), operation("PyFunc", 40, 100), operation("IteratorGetNext", 90, 95)],
        [exchange(0, 20, 80), waiting(30, 60)],
    ]
    recording = read_recording(recorded("worker:0", threads))
    [found] = shares_of([recording], align([recording]))
    assert found.steps == 1
    assert found.seconds == pytest.approx(100e-6)
    expected = {"compute": 0.4, "input": 0.05, "waiting": 0.2, "exchange": 0.2, "other": 0.15}
    assert found.shares == pytest.approx(expected)
    assert summary([found], align([recording]))[1].split() == [
        "worker:0", "0.1", "ms", "40%", "5%", "20%", "20%", "15%",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "exchange"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "exchange"),
        ("MemcpyP2P", "exchange"),
        ("MemcpyD2D", "compute"),
        ("ampere_sgemm_128x64_nn", "compute"),
    ],
)
def test_kernels_of_nccl_exchange(name, kind):
    assert kind_of(Span(name, "/device:GPU:0 Stream #1", 0, 1, operation=name)) == kind


def test_a_task_that_serves_is_measured_over_the_steps_of_the_others():
    chief = read_recording(recorded("chief:0", [[step(1, 100, 200, steps=4)]]))
    ps = read_recording(recorded("ps:0", [[operation("AssignAddVariableOp", 0, 150)]]))
    found = {each.task: each for each in shares_of([chief, ps], align([chief, ps]))}
    assert (found["chief:0"].steps, found["ps:0"].steps) == (4, 0)
    assert found["ps:0"].shares["compute"] == pytest.approx(0.5)


def test_the_file_has_a_process_for_each_task_and_a_lane_for_each_thread(tmp_path):
    worker = [[step(20, 10, 90), step(21, 90, 95, steps=3), step(24, 95, 96, steps=0)], [exchange(1, 20, 30)]]
    given = [recorded("ps:0", [[operation("Sum", 40, 50)]]), recorded("worker:1", worker)]
    timeline = write_timeline(tmp_path, given, {"first step": 20})
    assert timeline.path == tmp_path / "timeline/timeline.json.gz"
    assert timeline.tasks == ("worker:1", "ps:0")
    trace = contents(timeline)
    named = {"process_name": {}, "thread_name": {}}
    for event in trace["traceEvents"]:
        if event["name"] in named:
            named[event["name"]][event["pid"], event["tid"]] = event["args"]["name"]
    assert named["process_name"] == {(1, 0): "worker:1", (2, 0): "ps:0"}
    assert named["thread_name"] == {(1, 1): "steps 0", (1, 2): "exchange 1", (2, 1): "tf_Compute 0"}
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(each["name"], each["cat"], each["pid"], each["tid"], each["ts"], each["dur"]) for each in spans] == [
        ("step 20", "other", 1, 1, 0, 80),
        ("exchange", "exchange", 1, 2, 10, 10),
        ("steps 21 to 23", "other", 1, 1, 80, 5),
        ("end of steps", "other", 1, 1, 85, 1),
        ("layer/op:Sum", "compute", 2, 1, 30, 10),
    ]  # fmt: skip
    assert spans[-1]["args"] == {"name": "a/b/layer/op:Sum"}
    about = trace["metadata"]
    assert about["first step"] == 20
    assert about["began"] == "2023-11-14T22:13:20Z"
    assert about["clocks"]["aligned by"] == "one machine, one clock"
    assert [each["task"] for each in about["shares"]] == ["worker:1", "ps:0"]
    beside = json.loads((tmp_path / "timeline/timeline.shares.json").read_text())
    assert beside == {"first step": 20, "clocks": "one machine, one clock", "tasks": about["shares"]}


def test_nothing_recorded_is_a_mistake_of_one_line(tmp_path):
    with pytest.raises(DataError, match=r"^timeline: the profiler has recorded nothing in any task\. Record"):
        write_timeline(tmp_path, [Recorded("worker:0", "here", 0, b"")], {})
    assert not (tmp_path / "timeline").exists()
