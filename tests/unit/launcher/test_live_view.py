"""What the live view shows of each task: its state, speed and process."""

import os
import re
import sys

import pytest
from msgspec.structs import replace

from run_started import run_started
from tfdist.launcher import live_view
from tfdist.launcher.live_view import LiveView
from tfdist.launcher.process_usage import ProcessUsage
from tfdist.launcher.run_events import (
    EpochEnded,
    Evaluated,
    LaunchStarted,
    PhaseBegun,
    Progressed,
    TaskExited,
    TaskKilled,
    TaskSpeed,
    TasksRestarting,
    TaskStarted,
)

TASKS = ["chief:0", "worker:0", "worker:1", "ps:0"]
STARTED = run_started()
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")


def running(*, coloured=False):
    """Return the view of a cluster whose tasks have started."""
    view = LiveView("chief:0", coloured=coloured, encoding="utf-8")
    view.handle(LaunchStarted(tasks=dict.fromkeys(TASKS, "127.0.0.1:1"), command=["x"], shares=""))
    for name in TASKS:
        view.handle(TaskStarted(task=name, pid=os.getpid()))
    return view


def rows(view, columns=120, height=24):
    """Return the cells of each row by its task, split where there are two blanks or more."""
    return {cells[0]: cells[1:] for line in view.lines(columns, height) if (cells := re.split(r"  +", line))}


def states(view):
    return [rows(view)[name][0] for name in TASKS]


def test_tasks_follow_what_the_lead_does():
    view = running()
    assert states(view) == ["starting"] * 4
    view.handle(PhaseBegun(phase="loading data"))
    assert states(view) == ["loading data", "ready", "ready", "serving"]
    view.handle(PhaseBegun(phase="training"))
    assert states(view) == ["training", "training", "training", "serving"]
    view.handle(PhaseBegun(phase="exporting"))
    assert states(view) == ["exporting", "ready", "ready", "serving"]


def test_a_script_without_phases_trains_when_it_reports_steps():
    view = running()
    view.handle(Progressed(1, 10))
    assert states(view) == ["training", "training", "training", "serving"]


def test_a_row_has_the_speed_and_the_process_of_its_task():
    view = running()
    view.handle(STARTED)
    view.handle(Progressed(40, 100, 400.0, 0.5))
    view.handle(
        TaskSpeed(
            step=40,
            milliseconds={"worker:0": 10.0, "worker:1": 30.0},
            shares={"worker:0": 0.75, "worker:1": 0.25},
        )
    )
    view.handle(Evaluated(step=40, results={"accuracy": 0.9}))
    view.measure()
    lines = view.lines(120, 24)
    assert rows(view)["chief:0"][:2] == ["training", "40"]
    assert rows(view)["worker:0"][:5] == ["training", "30", "300", "10", "0.50"]
    assert rows(view)["worker:1"][:5] == ["training", "10", "100", "30", "1.50"]
    assert re.fullmatch(r"\d+ MB|\d+\.\d GB", rows(view)["ps:0"][-1])  # that of this process
    assert (
        lines[-1]
        == "━━━━━━━━━━────────────── step 40 of 100 (40 %), 400 examples/s, loss 0.5, test accuracy 0.9000"
    )


LARGE = Progressed(4_680, 46_800, 21_322.4, 0.0012346, 0.98765)
LEFT = "1 h 3 min left"
EVERYTHING = (
    "step 4,680 of 46,800 (10 %), 21,322 examples/s, loss 0.001235, accuracy 0.9877, test accuracy 0.9000"
)


@pytest.mark.parametrize(
    ("columns", "report", "text"),
    [
        (80, LARGE, f"step 4,680 of 46,800, loss 0.001235, accuracy 0.9877, {LEFT}"),
        (100, LARGE, f"step 4,680 of 46,800, 21,322 examples/s, loss 0.001235, accuracy 0.9877, {LEFT}"),
        (120, LARGE, f"step 4,680 of 46,800 (10 %), 21,322 examples/s, loss 0.001235, accuracy 0.9877, {LEFT}"),
        (130, LARGE, f"{EVERYTHING}, {LEFT}"),
        (80, replace(LARGE, loss=0.25, accuracy=None), f"step 4,680 of 46,800, loss 0.25, test accuracy 0.9000, {LEFT}"),
        (80, replace(LARGE, steps=12_345_678), "step 4,680 of 12,345,678, loss 0.001235, 308 h 31 min left"),
        (30, LARGE, "step 4,680 of 46,800"),
    ],
)  # fmt: skip
def test_the_bar_gives_way_to_whole_numbers(columns, report, text, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(live_view.time, "monotonic", lambda: now[0])
    view = running()
    view.handle(Evaluated(step=40, results={"accuracy": 0.9}))
    view.handle(replace(report, step=4_580))
    now[0] = 9.0
    view.handle(report)
    line = view.lines(columns - 1, 24)[-1]
    assert len(line) <= columns - 3  # with room for `^C`, without which a terminal would begin another line
    bar, _, shown = line.partition(" ")
    assert shown == text
    assert 6 <= len(bar) <= 24
    assert set(bar) <= set("━─")


def test_a_lost_task_is_shown_until_it_runs_again():
    view = running()
    view.measure()
    assert re.fullmatch(r"\d+ MB|\d+\.\d GB", rows(view)["worker:1"][-1])
    view.handle(TaskKilled(task="worker:1", seconds=30.0))
    assert rows(view)["worker:1"][0] == "silent: killing"
    view.handle(TaskExited(task="worker:1", pid=1, status=-9, was_asked=False, starts_again=True))
    assert rows(view)["worker:1"] == ["ended with -9"]
    view.handle(TasksRestarting(task="worker:1", all_tasks=False, pause=4.0, restart=1, restarts=3))
    assert rows(view)["worker:1"] == ["again in 4 s", "1"]
    view.handle(TaskStarted(task="worker:1", pid=os.getpid()))
    assert rows(view)["worker:1"] == ["starting", "1"]
    assert rows(view)["worker:0"][0] == "starting"


@pytest.mark.parametrize(
    ("columns", "restarts", "names"),
    [
        (80, 0, "task state step examples/s ms/step x median CPU memory"),
        (80, 1, "task state examples/s ms/step x median CPU memory restarts"),
        (130, 1, "task state step examples/s ms/step x median CPU memory restarts"),
        (60, 0, "task state examples/s ms/step x median"),
        (31, 0, "task state"),
        (20, 0, "task state"),
    ],
)
def test_the_columns_that_matter_most_fit_the_terminal(columns, restarts, names):
    view = running()
    view.handle(Progressed(400_000, 999_999, 40_000.0, 0.5))
    for _ in range(restarts):
        view.handle(TasksRestarting(task="ps:0", all_tasks=False, pause=0, restart=1, restarts=3))
    view.measure()
    head, *lines = view.lines(columns - 1, 24)
    assert " ".join(head.split()) == names
    assert max(map(len, [head, *lines])) < columns


def test_long_names_and_large_numbers_are_whole():
    view = LiveView("preprocessing:0", coloured=False, encoding="utf-8")
    names = ["preprocessing:0", "preprocessing:1"]
    view.handle(LaunchStarted(tasks=dict.fromkeys(names, "127.0.0.1:1"), command=["x"], shares=""))
    view.handle(Progressed(40, 100, 123_456_789_012.0, 0.5))
    milliseconds = dict.fromkeys(names, 1_234_567.0)
    view.handle(TaskSpeed(step=40, milliseconds=milliseconds, shares=dict.fromkeys(names, 1.0)))
    _, *lines = (line.split() for line in view.lines(120, 24)[:3])
    assert [(line[0], *line[-3:-1]) for line in lines] == [
        (name, "123,456,789,012", "1,234,567") for name in names
    ]


@pytest.mark.parametrize("speed", [float("nan"), float("inf"), 1e300])
def test_an_absurd_speed_fills_no_line(speed):
    view = running()
    view.handle(Progressed(40, 100, speed, float("inf")))
    last = view.lines(120, 24)[-1]
    assert last.endswith("step 40 of 100 (40 %)" + ", 1e+300 examples/s" * (speed == 1e300) + ", loss inf")


def test_mirrored_workers_have_the_step_of_the_run():
    view = running()
    view.handle(replace(STARTED, strategy="parameter_server_sync"))
    view.handle(Progressed(1_234_567, None, 400.0, 0.5))
    milliseconds = {"worker:0": 10.0, "worker:1": 10.0}
    view.handle(TaskSpeed(step=1_234_000, milliseconds=milliseconds, shares=dict.fromkeys(milliseconds, 0.5)))
    assert [rows(view)[name][1] for name in ("chief:0", "worker:0", "worker:1")] == ["1.23M"] * 3
    assert rows(view)["ps:0"] == ["serving"]


def test_the_last_epoch_of_fit_has_an_accuracy():
    view = running()
    view.handle(Progressed(40, 100))
    view.handle(EpochEnded(epoch=0, epochs=1, logs={"acc": 0.5, "val_acc": 0.75}))
    assert view.lines(120, 24)[-1].endswith("step 40 of 100 (40 %), validation accuracy 0.7500")
    view.handle(EpochEnded(epoch=0, epochs=1, logs={"val_acceleration_loss": 12.5}))
    assert view.lines(120, 24)[-1].endswith("step 40 of 100 (40 %)")


def test_a_low_terminal_shows_some_tasks_and_counts_the_others():
    view = running()
    names = [line.split()[0] for line in view.lines(79, 8)]
    assert names == ["task", "chief:0", "worker:0", "…"]
    assert view.lines(79, 5) == []


def test_a_slow_task_is_yellow_and_a_lost_one_red():
    view = running(coloured=True)
    view.handle(TaskSpeed(step=1, milliseconds={"chief:0": 1.0, "worker:0": 1.0, "worker:1": 9.0}, shares={}))
    view.handle(TaskExited(task="ps:0", pid=1, status=1, was_asked=False, starts_again=False))
    painted = {line.split()[0]: line for line in view.lines(79, 24)}
    assert "\x1b[33mworker:1" in painted
    assert "\x1b[31mps:0" in painted
    assert "worker:0" in painted


def test_a_look_right_after_another_tells_no_share_of_a_core(monkeypatch):
    now = 100.0
    monkeypatch.setattr(live_view.time, "monotonic", lambda: now)
    usage = ProcessUsage()
    first = usage.of(os.getpid())
    now += 0.001
    second = usage.of(os.getpid())
    assert (first.cores, second.cores) == (None, None)
    assert first.memory > 0
    now += 10.0  # of which this process has used a moment
    assert 0.0 <= usage.of(os.getpid()).cores < 1.0


def test_a_process_that_has_ended_uses_nothing():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert ProcessUsage().of(child) is None
