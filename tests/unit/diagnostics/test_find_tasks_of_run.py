"""Which tasks of a run are under way, and where: what `tfdist timeline` finds, and refuses."""

import os
import socket

import pytest
from runs import events_of_a_run, write_run

from tfdist.cli.timeline import main
from tfdist.diagnostics.find_tasks_of_run import RunningTasks, check_answers, find_running_tasks
from tfdist.errors import ConfigError
from tfdist.launcher.run_events import (
    LaunchEnded,
    LaunchStarted,
    NetworkChosen,
    PhaseBegun,
    RunEnded,
    RunStarted,
    TaskExited,
    TaskStarted,
)

ADDRESSES = {"chief:0": "10.0.0.1:1", "worker:0": "10.0.0.2:2", "evaluator:0": "10.0.0.3:3"}
ENDS = (RunEnded, LaunchEnded, TaskExited)
OF_LAUNCHER = (LaunchStarted, TaskStarted, TaskExited, LaunchEnded, NetworkChosen)


def under_way(*, pid=None, is_launched=True):
    """Return the events of a run that has not ended, whose tasks are a process of this machine."""
    events = [event for event in events_of_a_run() if not isinstance(event, ENDS)]
    for event in events:
        if isinstance(event, TaskStarted):
            event.pid = pid or os.getpid()
    if not is_launched:
        events = [event for event in events if not isinstance(event, OF_LAUNCHER)]
    return events


def refusal(folder):
    with pytest.raises(ConfigError) as error:
        find_running_tasks(folder)
    return str(error.value)


def test_a_launch_on_this_machine_is_found(tmp_path):
    events = under_way()
    events.insert(1, NetworkChosen(is_private=True, reason="", time=events[0].time))
    found = find_running_tasks(write_run(tmp_path, events))
    assert found.addresses == {
        "chief:0": "127.0.0.1:1",
        "worker:0": "127.0.0.1:2",
        "worker:1": "127.0.0.1:3",
    }
    assert found.is_private
    assert set(found.pids.values()) == {os.getpid()}


def test_tasks_of_several_machines_are_found_by_what_the_chief_has_recorded(tmp_path):
    events = under_way(is_launched=False)
    for event in events:
        if isinstance(event, RunStarted):
            event.addresses = ADDRESSES
    found = find_running_tasks(write_run(tmp_path, events))
    assert found == RunningTasks({"chief:0": "10.0.0.1:1", "worker:0": "10.0.0.2:2"}, False, {})


def test_a_run_that_does_not_run_is_a_mistake_of_one_line(tmp_path):
    assert "is no folder of a run" in refusal(tmp_path)
    done = write_run(tmp_path / "done", events_of_a_run())
    assert refusal(done) == (
        f"{done}: is the folder of a run that is done. Name one that trains, or train with --profile 20:30"
    )
    failed = write_run(tmp_path / "failed", [*under_way(), LaunchEnded(seconds=1.0, restarts=0, problem="x")])
    assert "is the folder of a run that has failed. Name" in refusal(failed)
    killed = write_run(tmp_path / "killed", under_way(pid=2**22 + 1))  # more than Linux gives to a process
    assert "a run that was killed, as no process of its tasks is left. Name" in refusal(killed)
    started = [event for event in under_way() if not isinstance(event, TaskStarted | RunStarted)]
    assert "has not started its tasks yet. Name" in refusal(write_run(tmp_path / "new", started))


def test_a_run_without_ports_is_a_mistake_of_one_line(tmp_path):
    alone = write_run(tmp_path / "alone", under_way(is_launched=False))
    assert refusal(alone) == (
        f"{alone}: is no run of a cluster, whose tasks have ports. Train with --profile 20:30"
    )
    early = write_run(tmp_path / "early", [PhaseBegun(phase="connecting")])
    assert "has no tasks that are known yet. Wait until it trains" in refusal(early)


def test_a_cluster_whose_ports_are_closed_is_a_mistake_of_one_line():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # held, and not listened to: connections are refused
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^timeline: no task answers: ps:0 at {address}\. Wait"):
            check_answers(RunningTasks({"ps:0": address}, False, {}))


@pytest.mark.parametrize(
    ("words", "seconds", "message"),
    [
        ([], 2.0, r"^command line: expected the folder of one run, received 0\. Name it"),
        (["a", "b"], 2.0, r"^command line: expected the folder of one run, received 2\. Name it"),
        (["a"], 0.0, r"^--seconds: expected from 0\.01 to 600, received 0$"),
        (["a"], float("nan"), r"^--seconds: expected from 0\.01 to 600, received nan$"),
    ],
)
def test_wrong_words_are_a_mistake_of_one_line(words, seconds, message):
    with pytest.raises(ConfigError, match=message):
        main(words, seconds)
