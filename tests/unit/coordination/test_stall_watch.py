"""A process that is stuck in one thing is noticed, and one that is only slow is not."""

import subprocess
import sys
import threading

import pytest

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.stall_limit import LEAST_SECONDS, Activity, StallLimit, checked_timeout
from tfdist.coordination.stall_watch import StallWatch, doing, exchanging, timeout_in_force
from tfdist.errors import ConfigError

STEP = Activity("in a step", "step")
HOOK = Activity("in a callback", "at_each_step")
SAVING = Activity("saving a checkpoint")


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def watched(timeout=10.0, **options):
    """Return a watch whose clock a test moves, and which no thread checks."""
    clock = Clock()
    return StallWatch("worker:1", "worker:1 at b:2", timeout, clock=clock, **options), clock


def take(watch, clock, activity, seconds):
    """Do something for some seconds, to its end."""
    before = watch.begin(activity)
    clock.now += seconds
    watch.begin(before)


def stuck_after(watch, clock, most=100_000):
    """Return the error of a watch that checks each second, and after how many seconds it came."""
    watch.check()
    for seconds in range(1, most):
        clock.now += 1
        if (error := watch.check()) is not None:
            return str(error), seconds
    return None


@pytest.mark.parametrize(
    ("steps", "limit"),
    [
        ([], LEAST_SECONDS),
        ([0.01] * 50, LEAST_SECONDS),
        ([14.0] * 50, LEAST_SECONDS),  # 20 times the median is 280
        ([60.0] * 50, 1200.0),
        ([1.0] * 50 + [200.0], 600.0),  # one that was slow, and ended
    ],
)
def test_the_limit_follows_from_the_steps_so_far(steps, limit):
    derived = StallLimit("auto")
    for seconds in steps:
        derived.note(STEP, seconds)
    derived.note(HOOK, 0.0)
    assert derived.seconds(HOOK) == limit
    assert derived.seconds(SAVING) == 10 * limit
    assert derived.seconds(HOOK, is_waiting=True) == 20 * limit
    assert derived.seconds(SAVING, is_waiting=True) == 20 * limit


def test_only_the_last_steps_make_the_median():
    derived = StallLimit("auto")
    for seconds in [30.0] * 100 + [1.0] * 101:
        derived.note(STEP, seconds)
    assert derived.seconds(STEP) == LEAST_SECONDS


def test_a_checkpoint_that_takes_long_makes_no_step_slow_but_the_limit_longer():
    derived = StallLimit("auto")
    derived.note(STEP, 1.0)
    derived.note(SAVING, 500.0)
    assert derived.seconds(STEP) == 1500.0


def test_given_seconds_are_the_limit_whatever_the_steps():
    given = StallLimit(60.0)
    assert given.seconds(STEP) == 600.0  # the first step traces and compiles
    for _ in range(9):
        given.note(STEP, 59.0)
    assert given.seconds(STEP) == 60.0


@pytest.mark.parametrize("timeout", ["auto", "off", 5, 60.5])
def test_a_script_gives_auto_or_off_or_seconds(timeout):
    assert checked_timeout("start: stall_timeout", timeout) == timeout


@pytest.mark.parametrize("timeout", [4, 0, -1, True, None, "soon", float("inf"), float("nan"), [60]])
def test_what_else_a_script_gives_is_refused(timeout):
    with pytest.raises(ConfigError, match="start: stall_timeout: expected auto, off, or a number of seconds"):
        checked_timeout("start: stall_timeout", timeout)


def test_what_is_stuck_is_named_with_how_long_and_the_limit():
    watch, clock = watched()
    take(watch, clock, STEP, 1)
    watch.begin(STEP)
    error, seconds = stuck_after(watch, clock)
    assert seconds == 10
    assert error == (
        "worker:1 at b:2: is stuck: it has been in a step for 10 s, and the limit (stall_timeout) is 10 s."
        " Its log shows the stack of each of its Python threads; start the cluster again"
    )


def test_the_first_step_may_take_ten_times_as_long():
    watch, clock = watched()
    watch.begin(STEP)
    assert stuck_after(watch, clock)[1] == 100


def test_each_end_of_something_is_progress():
    watch, clock = watched()
    for _ in range(30):
        take(watch, clock, STEP, 9)
        assert watch.check() is None
        take(watch, clock, HOOK, 9)
        assert watch.check() is None


def test_what_may_last_as_long_as_it_likes_is_not_stuck():
    watch, clock = watched()
    assert stuck_after(watch, clock, 1000) is None  # before anything has begun
    take(watch, clock, STEP, 1)
    watch.begin(Activity(""))
    assert stuck_after(watch, clock, 1000) is None


def test_a_process_that_was_stopped_itself_is_not_stuck():
    watch, clock = watched()
    take(watch, clock, STEP, 1)
    watch.begin(STEP)
    watch.check()
    clock.now += 10_000  # SIGSTOP and SIGCONT, or a machine that slept
    assert watch.check() is None
    assert stuck_after(watch, clock)[1] == 5  # 5 s of that time count


def test_who_waits_in_an_exchange_is_not_the_stuck_one():
    watch, clock = watched(has_peers=True)
    take(watch, clock, STEP, 1)
    watch.begin(STEP)
    watch.exchange(is_in_one=True)
    error, seconds = stuck_after(watch, clock)
    assert seconds == 200
    assert "in a step, where it may wait for another task for 200 s" in error


def test_who_is_in_a_step_and_in_no_exchange_is_the_stuck_one():
    watch, clock = watched(has_peers=True)
    watch.exchange(is_in_one=True)
    watch.exchange(is_in_one=False)
    take(watch, clock, STEP, 1)
    watch.begin(STEP)
    assert stuck_after(watch, clock)[1] == 10


@pytest.mark.parametrize(("activity", "seconds"), [(STEP, 200), (HOOK, 10)])
def test_where_exchanges_are_unknown_each_step_may_be_one(activity, seconds):
    watch, clock = watched(has_peers=True)
    take(watch, clock, activity, 1)
    watch.begin(activity)
    assert stuck_after(watch, clock)[1] == seconds


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        ({}, None, ("this process", False)),
        ({"workers": 2}, "worker:1", ("worker:1 at 127.0.0.1:", True)),
        ({"workers": 1}, "worker:0", ("worker:0 at 127.0.0.1:", False)),
        ({"workers": 2, "ps": 1}, "chief:0", ("chief:0 at 127.0.0.1:", False)),
        ({"workers": 2, "evaluator": 1}, "evaluator:0", ("evaluator:0 at 127.0.0.1:", False)),
    ],
)
def test_mirrored_workers_alone_wait_for_peers(cluster, task, expected):
    made = ClusterConfig.local(**cluster) if cluster else ClusterConfig()
    watch = StallWatch.of(made.with_task(*Task.parse(task)) if task else made, 10.0)
    watch._clock = clock = Clock()
    watch._seen_at = watch._began = clock.now
    take(watch, clock, STEP, 1)
    watch.begin(STEP)
    error, seconds = stuck_after(watch, clock)
    assert error.startswith(expected[0])
    assert (seconds == 200) == expected[1]


def test_other_threads_do_not_count():
    watch, clock = watched()
    take(watch, clock, STEP, 1)
    watch.begin(STEP)
    thread = threading.Thread(target=take, args=(watch, clock, HOOK, 0))
    thread.start()
    thread.join()
    assert stuck_after(watch, clock)[1] == 10


def test_what_is_done_is_noted_by_the_watch_in_force():
    clock = Clock()
    assert timeout_in_force() == "off"
    with StallWatch("chief:0", "chief:0", 7.0, clock=clock) as watch:
        assert timeout_in_force() == 7.0
        with doing(STEP):
            clock.now += 1
        with StallWatch("chief:0", "chief:0", "auto"), doing(STEP), exchanging():  # the outer one is in force
            assert timeout_in_force() == 7.0
            assert stuck_after(watch, clock)[1] == 7
        assert timeout_in_force() == 7.0
    assert timeout_in_force() == "off"
    with StallWatch("chief:0", "chief:0", "off"):
        assert timeout_in_force() == "off"


def test_each_call_of_a_function_is_noted():
    clock = Clock()

    @doing(SAVING)
    def save(seconds):
        clock.now += seconds
        return seconds

    assert save(1) == 1  # without a watch
    with StallWatch("chief:0", "chief:0", "auto", clock=clock) as watch:
        assert save(700) == 700
        watch.begin(HOOK)
        assert (
            stuck_after(watch, clock)[1] == 10 * 2100
        )  # three times the longest, and it is the first callback


STUCK = """
import resource, sys, tempfile, threading, time
from tfdist.coordination import stall_watch
from tfdist.coordination.stall_limit import Activity

stall_watch._SECONDS_BETWEEN_CHECKS = 0.05
stall_watch._MOST_COUNTED_AT_ONCE = 0.5  # a busy machine is not what hangs
step = Activity("in a step", "step")

def hang():
    time.sleep(600)

def refuse(*_, **__):
    raise RuntimeError("can't start new thread")

with stall_watch.StallWatch("worker:1", "worker:1 at b:2", 5.0 if sys.argv[1] == "works" else 0.5):
    with stall_watch.doing(step):
        pass
    if sys.argv[1] == "without files":
        tempfile.TemporaryFile = refuse
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    if sys.argv[1] == "without threads":
        threading.Thread = refuse
    if sys.argv[1] != "works":
        with stall_watch.doing(step):
            hang()
    for _ in range(60):
        with stall_watch.doing(step):
            time.sleep(0.1)
time.sleep(1)
print("went on")
"""


def run(what):
    return subprocess.run(
        [sys.executable, "-c", STUCK, what], capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.parametrize("what", ["hangs", "without files"])
def test_a_stuck_process_shows_its_stacks_and_ends_with_138(what):
    ended = run(what)
    assert ended.returncode == 138, ended.stderr
    *stacks, last = ended.stderr.splitlines()
    assert last.startswith("tfdist: worker:1 at b:2: is stuck: it has been in a step for ")
    assert any("in hang" in line for line in stacks)
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_stuck_process_ends_even_if_it_cannot_say_why():
    assert run("without threads").returncode == 138


def test_a_process_that_makes_progress_goes_on():
    ended = run("works")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "went on\n", "")


def test_an_evaluator_without_an_address_is_watched_too():
    environ = {"TF_CONFIG": '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}'}
    cluster = ClusterConfig.from_environment(environ=environ)  # as Kubeflow's TFJob has it
    assert StallWatch.of(cluster, "off")._where == "evaluator:0"
