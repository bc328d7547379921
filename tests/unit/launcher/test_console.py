"""What people see of a launch, on terminals, files and pipes, whatever the tasks print."""

import contextlib
import fcntl
import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import msgspec
import pytest
from launched import SECONDS, alive, driver, holds, nothing_left, run, started, until  # noqa: F401  # a fixture

from run_started import run_started
from tfdist._utils.readable_text import duration
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import LOST
from tfdist.launcher.console import Screen, ScreenOptions
from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.progress_text import describe_progress
from tfdist.launcher.run_events import (
    LaunchEnded,
    LaunchStarted,
    Progressed,
    TaskExited,
    TaskStarted,
    read_events,
)

STARTED = run_started(cluster={"worker": 2})

pytestmark = pytest.mark.usefixtures("nothing_left")

ONE = {"workers": 1}
# Begins a command that has the terminal of its standard input as its own.
_AS_FOREGROUND = (
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])",
)
# The last step comes once there is the file that the name stands for.
REPORTING = """
import time
from pathlib import Path
from tfdist.launcher import report_progress
step = 0
while step < 300:
    step = 300 if Path({done!r}).exists() else min(step + 1, 299)
    report_progress(step, 300, examples_per_second=1234.25, loss=1 / step)
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (rb"a\n\nb\n", "[worker:0] a\n[worker:0] \n[worker:0] b\n"),
        (rb"no end", "[worker:0] no end\n"),
        (rb"\xff\xfe latin \xe9\n", "[worker:0] \\xff\\xfe latin \\xe9\n"),
        (rb"caf\xc3\xa9\r\n", "[worker:0] café\n"),
        (rb"1/3\r2/3\r3/3\n", "[worker:0] 3/3\n"),
        (
            rb"I0000 00:00:1795267459.73 299 port.cc:153] on.\nW0000 00:00:1.2 3 a.cc:1] b\n",
            "[worker:0] W0000 00:00:1.2 3 a.cc:1] b\n",
        ),
        (rb"\xc2\x9b31mred\xc2\x9b0m\xc2\x85\xc2\x9d \xc3\xa9\n", "[worker:0] red é\n"),
        (rb"\x1b[31mred\x1b[0m\x1b[2K\x07\x00!\n", "[worker:0] red!\n"),
    ],
)
def test_whatever_is_printed_is_shown_as_lines(tmp_path, printed, shown):
    _, all_shown = run(f"import os; os.write(1, b'{printed.decode()}')", tmp_path, ClusterConfig.local())
    assert "".join(line for line in all_shown.splitlines(True) if not line.startswith("[launcher]")) == shown
    log = (tmp_path / "logs/worker-0.log").read_bytes()
    assert log == printed.decode("unicode_escape").encode("latin-1")


def test_a_line_of_many_megabytes_is_cut_and_kept_whole_in_the_log(tmp_path):
    _, shown = run("print('x' * 5_000_000)", tmp_path, ClusterConfig.local())
    assert shown.count("x") == 5_000_000
    assert max(map(len, shown.splitlines())) < 200_000
    assert (tmp_path / "logs/worker-0.log").stat().st_size == 5_000_001


def test_100_megabytes_are_shown_whole_in_little_memory(tmp_path):
    code = "import os\nfor _ in range(1000): os.write(1, (b'x' * 99 + b'\\n') * 1000)"
    command = driver(code, tmp_path, cluster=ONE)
    measured = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
    with open(tmp_path / "shown", "wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", measured, *command],
            stdout=file,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=True,
        )
    assert int(done.stderr) < 100 * 1024  # KiB
    assert (tmp_path / "logs/worker-0.log").stat().st_size == 100_000_000
    with open(tmp_path / "shown") as file:
        assert sum(line == "[worker:0] " + "x" * 99 + "\n" for line in file) == 1_000_000


def test_a_full_pipe_delays_no_task_and_loses_no_line(tmp_path):
    code = "print(('y' * 99 + '\\n') * 20_000, end=''); print('all printed')"
    with started(driver(code, tmp_path, cluster=ONE)) as process:
        until(lambda: holds(tmp_path / "logs/worker-0.log", "all printed"), "the task is through")
        time.sleep(0.5)
        assert process.poll() is None  # it still has to show it
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert out.count(b"y" * 99) == 20_000


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
def test_a_full_pipe_keeps_nobody_from_stopping_the_launcher(tmp_path, nothing_left):  # noqa: F811
    code = "import time; print(('y' * 99 + '\\n') * 20_000); time.sleep(600)"
    with started(driver(code, tmp_path, cluster=ONE)) as process:
        until(lambda: holds(tmp_path / "logs/worker-0.log", "y" * 99, 20_000), "the task has printed")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        until(lambda: set(alive(nothing_left)) == {process.pid}, "only the launcher is left")
        # The first one that comes while the rest is shown; it may take its time to begin with that.
        while process.poll() is None:
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        assert process.returncode == 128 + signal.SIGINT


def test_a_closed_pipe_stops_the_showing_and_not_the_job(tmp_path):
    code = "import time\nfor i in range(20): print(i, flush=True); time.sleep(0.05)"
    with started(driver(code, tmp_path, cluster=ONE).copy()) as process:
        process.stdout.readline()
        process.stdout.close()
        process.stderr.read()
        process.wait(SECONDS)
    assert (tmp_path / "logs/worker-0.log").read_text().split() == [str(i) for i in range(20)]


def test_a_terminal_of_ascii_is_no_obstacle(tmp_path):
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    command = driver("print('caf\\u00e9 \\u2026')", tmp_path, cluster=ONE)
    command[-1] = (
        command[-1]
        .replace('"options": {', '"options": {"env": {"PYTHONIOENCODING": "utf-8"}, ')
        .replace(", }", "}")
    )
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=env, check=True)
    assert b"[worker:0] caf\\xe9 \\u2026\n" in done.stdout


def test_progress_is_a_line_a_second_at_most_where_there_is_no_terminal(tmp_path):
    began, lines = time.monotonic(), []
    with started(driver(_reporting(tmp_path), tmp_path), text=True) as process:
        for line in process.stdout:
            lines += re.findall(r"\[launcher\] (step .*)", line)
            if len(lines) == 3:
                (tmp_path / "done").touch()
    assert len(lines) <= time.monotonic() - began + 2
    assert lines[-1] == "step 300 of 300 (100 %), 1,234 examples/s, loss 0.003333"
    assert re.fullmatch(r"step \d+ of 300 \(\d+ %\), 1,234 examples/s, loss 0\.\d+, .+ left", lines[1])


def test_progress_is_a_live_bar_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    code = _reporting(tmp_path) + "print('the end')"

    def end_after_five_bars(shown):
        if len(bars_in(shown.decode(errors="replace"))) >= 5:
            (tmp_path / "done").touch()

    bars_in = re.compile(r"([━─]+ step [^\r\n\x1b]*)").findall
    shown = _on_a_terminal(driver(code, tmp_path), columns=60, watch=end_after_five_bars)
    bars = bars_in(shown)
    assert max(map(len, bars)) < 60
    assert bars[-1].startswith("━" * 8 + " ")  # shorter than on a wide terminal
    assert "\x1b[36m[worker:0]\x1b[0m the end\r\n" in shown
    assert re.search(r"\r\x1b\[\d+A\x1b\[Jdone\r\n$", shown)  # the view is taken away at the end


def test_a_terminal_without_a_size_or_colours(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "done").touch()
    shown = _on_a_terminal(driver(_reporting(tmp_path) + "print('the end')", tmp_path), columns=0)
    assert "step 300 of 300 (100 %)" in shown
    assert "[worker:0] the end\r\n" in shown
    assert "\x1b[36m" not in shown


def _reporting(folder):
    return REPORTING.format(done=str(folder / "done"))


def test_ctrl_c_on_a_terminal_is_for_the_launcher_alone(tmp_path):
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: print('task saw it'))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(138))\nprint('up', flush=True); time.sleep(600)"
    )

    def press(terminal):
        until(lambda: holds(tmp_path / "logs/worker-1.log", "up"), "worker 1 is up")
        until(lambda: holds(tmp_path / "logs/worker-0.log", "up"), "worker 0 is up")
        os.write(terminal, b"\x03")

    shown = _on_a_terminal(driver(code, tmp_path), act=press, status=138)
    assert "SIGINT: ending the tasks" in shown
    assert "task saw it" not in shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (3600, "1 h 0 min"), (360_000, "100 h 0 min")],
)
def testdurations_are_in_units_that_people_read(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([(0, Progressed(5))], "step 5"),
        ([(0, Progressed(5, 0))], "step 5"),
        ([(0, Progressed(1, 10, 0.25, float("nan")))], "step 1 of 10 (10 %), 0.25 examples/s, loss nan"),
        ([(0, Progressed(1_000, 4_000)), (9, Progressed(4_000, 4_000))], "step 4,000 of 4,000 (100 %)"),
        (
            [(5, Progressed(100, 1_000)), (15, Progressed(200, 1_000))],
            "step 200 of 1,000 (20 %), 1 min 20 s left",
        ),
    ],
)
def test_progress_is_a_sentence(reports, said):
    assert describe_progress(reports) == said


def test_json_is_an_object_a_line():
    stream = io.StringIO()
    screen = Screen(stream, [], lead="worker:0", options=ScreenOptions(json=True))
    screen.handle(LaunchStarted(tasks={"worker:0": "127.0.0.1:1"}, command=["x"], shares="1 task"))
    screen.say("first\nsecond")
    screen.handle(Progressed(3, 10, 5.0, 0.25))
    screen.refresh(to_the_end=True)
    shown = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["event"], each.get("line")) for each in shown] == [
        ("launch_started", None),
        ("output", "first"),
        ("output", "second"),
        ("progressed", None),
    ]
    assert shown[-1]["loss"] == 0.25


def test_what_is_trained_stays_above_the_view_and_is_said_once():
    stream = io.StringIO()
    screen = Screen(stream, [], lead="worker:0", place="runs/x")
    for devices in ("2 CPU devices", "2 CPU devices", "3 CPU devices"):
        screen.handle(msgspec.structs.replace(STARTED, devices=devices))
    screen.handle(msgspec.structs.replace(STARTED, data="", parameters=0, devices=""))
    assert stream.getvalue().splitlines() == [
        "[launcher] mnist_cnn (3,274,634 parameters) on digits",
        "[launcher] parameter_server on 2 CPU devices",
        "[launcher] run directory runs/x",
        "[launcher] mnist_cnn (3,274,634 parameters) on digits",
        "[launcher] parameter_server on 3 CPU devices",
        "[launcher] run directory runs/x",
        "[launcher] mnist_cnn",
        "[launcher] parameter_server",
        "[launcher] run directory runs/x",
    ]


def test_a_launch_records_its_tasks(tmp_path):
    code = "import os, sys; sys.exit(os.environ['TF_CONFIG'].count('\"index\": 1'))"
    with pytest.raises(LaunchError, match="worker:1"):
        run(code, tmp_path, ClusterConfig.local(workers=2), network_isolation="never")
    events = read_events(tmp_path / "events.jsonl")
    assert [type(event).__name__ for event in events][:2] == ["LaunchStarted", "NetworkChosen"]
    pids = {event.task: event.pid for event in events if isinstance(event, TaskStarted)}
    exits = {event.task: (event.pid, event.status) for event in events if isinstance(event, TaskExited)}
    assert exits["worker:1"] == (pids["worker:1"], 1)
    # It may still be starting when the other one fails, and is told to end then.
    assert exits["worker:0"] in [(pids["worker:0"], status) for status in (0, -signal.SIGTERM)]
    assert isinstance(events[-1], LaunchEnded)
    assert "worker:1" in events[-1].problem


def test_a_pipe_that_nobody_reads_any_more_wakes_nobody_up():
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        os.close(reader)
        screen = Screen(stream, [])
        screen.say("into the void")
        screen.refresh()
        assert not screen.has_unwritten
        poll = select.poll()
        with screen.room_wakes(poll):
            assert poll.poll(0) == []


def test_the_time_left_starts_again_with_a_run_that_went_back():
    stream = io.StringIO()
    screen = Screen(stream, [])
    for step in (500, 100):
        screen.handle(Progressed(step, 1_000))
    screen.refresh(to_the_end=True)
    assert stream.getvalue() == "[launcher] step 100 of 1,000 (10 %)\n"


def test_a_terminal_that_was_closed_ends_no_view(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    with open(slave, "w", closefd=False) as stream:
        screen = Screen(stream, [], lead="worker:0")
        screen.handle(STARTED)
        screen.refresh(to_the_end=True)
        assert b"\x1b[J" in os.read(master, 65536)
        os.close(master)
        for step in (1, 2):
            screen.handle(Progressed(step, 10))
            screen.refresh(to_the_end=True)
        assert not screen.has_unwritten
        screen.close()
    os.close(slave)


@pytest.mark.parametrize("term", ["dumb", "Unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    master, slave = os.openpty()
    with open(slave, "w", closefd=False) as stream:
        screen = Screen(stream, [], lead="worker:0")
        screen.handle(Progressed(1, 10))
        screen.refresh(to_the_end=True)
        screen.close()
        assert os.read(master, 65536) == b"[launcher] step 1 of 10 (10 %)\r\n"
    os.close(slave)
    os.close(master)


def test_tasks_save_their_work_when_the_terminal_is_closed(tmp_path):
    code = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    for step in range(20):\n"  # longer than the view needs until it is drawn again
        "        print('saving', step, flush=True)\n"
        "        time.sleep(0.05)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(138)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)\n"
    )
    launch = [sys.executable, "-m", "tfdist", "launch", "--workers", "2", "--run_dir", str(tmp_path)]
    logs = [tmp_path / "logs" / f"worker-{index}.log" for index in (0, 1)]
    master, slave = os.openpty()
    environ = {**os.environ, "TERM": "xterm"}
    terminal = {"stdin": slave, "stdout": slave, "stderr": slave, "env": environ}
    with started([*_AS_FOREGROUND, *launch, "--", sys.executable, "-c", code], **terminal) as process:
        os.close(slave)
        until(lambda: all(holds(log, "begun") for log in logs), "all have begun")
        os.read(master, 65536)
        os.close(master)
        assert process.wait(SECONDS) == LOST
    assert [log.read_text().splitlines()[-1] for log in logs] == ["saved", "saved"]


def _on_a_terminal(command, *, columns=80, act=None, watch=None, status=0):
    """Run a command as the foreground of a terminal of its own; give all that it was sent.

    `act` is called with the terminal when the command has started, and `watch` with all that has been shown.
    """
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    terminal = {"stdin": slave, "stdout": slave, "stderr": slave, "env": {**os.environ, "TERM": "xterm"}}
    with started([*_AS_FOREGROUND, *command], **terminal) as process:
        os.close(slave)
        if act:
            act(master)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: everybody has closed the terminal
            while data := os.read(master, 65536):
                shown += data
                if watch:
                    watch(shown)
        os.close(master)
        assert process.wait(SECONDS) == status
    return shown.decode()
