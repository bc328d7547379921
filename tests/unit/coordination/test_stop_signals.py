"""Being told to end while the cluster is connected, when a thread hears it in the place of the main one."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tfdist.coordination import stop_signals
from tfdist.errors import Preempted

SECONDS = 300  # a busy machine is no failure

CONNECTING = """
import sys
from tfdist.coordination.stop_signals import Notice

with Notice().kept():
    print("connecting", flush=True)
    sys.stdin.read()
print("connected", flush=True)
"""


HANDLING = """
import signal, sys, time
from tfdist.coordination.stop_signals import handling_stop_signals
from tfdist.errors import TfdistError

if sys.argv[1:]:
    signal.signal(signal.SIGUSR1, lambda *_: print("mine", flush=True))
try:
    with handling_stop_signals() as notice:
        print("ready", flush=True)
        time.sleep(600)
except TfdistError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def connecting():
    with subprocess.Popen(
        [sys.executable, "-c", CONNECTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "connecting\n"
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS cannot wait for a signal in a thread")
def test_being_told_to_end_ends_what_connects(connecting):
    connecting.terminate()
    assert connecting.wait(SECONDS) == 138
    assert (
        connecting.stderr.read()
        == "tfdist: SIGTERM: this task was told to end. Start it again: it continues\n"
    )


def test_being_stopped_for_a_while_is_not_being_told_to_end(connecting):
    for _ in range(5):  # each at another moment of its looks
        os.kill(connecting.pid, signal.SIGSTOP)
        time.sleep(2.3 * stop_signals._SECONDS_BETWEEN_POLLS)
        os.kill(connecting.pid, signal.SIGCONT)
        time.sleep(0.4 * stop_signals._SECONDS_BETWEEN_POLLS)
    said, warned = connecting.communicate(timeout=SECONDS)
    assert (connecting.returncode, said, warned) == (0, "connected\n", "")


def handling(*words, **variables):
    return subprocess.Popen(
        [sys.executable, "-c", HANDLING, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("SIGTERM", {}),
        ("SIGUSR1", {"SLURM_JOB_ID": "7"}),
        ("SIGUSR2", {"SLURM_JOB_ID": "7"}),
        ("SIGUSR2", {"TFDIST_STOP_SIGNALS": "sigusr2"}),
    ],
)
def test_signals_that_slurm_sends_before_the_end_are_heard_like_sigterm(name, variables):
    with handling(**variables) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        said, _ = process.communicate(timeout=SECONDS)
    assert said == f"{name}: this task was told to end. Start it again: it continues\n"
    assert process.returncode == 138


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_the_first_signal_of_a_terminal_is_deferred_and_a_second_sigint_interrupts(first):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)]
    with stop_signals.handling_stop_signals((signal.SIGINT, signal.SIGHUP)) as notice:
        with notice.deferred():
            signal.raise_signal(first)
            assert (notice.is_received, notice.name) == (True, first.name)
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        with pytest.raises(Preempted, match=r"^SIGHUP: this task was told to end"):
            notice.raise_if_received()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)] == before


def test_a_sigint_interrupts_where_there_is_nothing_to_save():
    with (
        stop_signals.handling_stop_signals((signal.SIGINT,)) as notice,
        pytest.raises(KeyboardInterrupt),
    ):
        signal.raise_signal(signal.SIGINT)
    assert not notice.is_received


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_signals.handling_stop_signals((signal.SIGINT, signal.SIGHUP)) as notice:
            signal.raise_signal(signal.SIGHUP)
        assert not notice.is_received
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_of_the_scripts_own_keeps_its_signal():
    with handling("own", SLURM_JOB_ID="7") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "mine\n"
        process.terminate()
        assert process.wait(SECONDS) == 138


def test_a_name_that_is_no_signal_is_a_mistake_in_one_line():
    with handling(TFDIST_STOP_SIGNALS="USR1,USR3") as process:
        said, _ = process.communicate(timeout=SECONDS)
    assert said == "TFDIST_STOP_SIGNALS: expected names of signals, such as USR1,USR2, received 'USR3'\n"
    assert process.returncode == 2
