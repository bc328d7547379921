"""Tasks tell each other which calls they are in, and all end that wait for what will not come."""

import logging
import threading
import time

import pytest

from tfdist.coordination import out_of_step_watch
from tfdist.coordination.out_of_step_watch import CallWatch
from tfdist.errors import ConfigError, Preempted, TaskLost

SECONDS = 120.0  # a busy machine is no failure


def until(is_true, otherwise):
    end = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < end, otherwise
        time.sleep(0.01)


class Texts:
    """A store of texts for several watches in one process."""

    def __init__(self):
        self._texts, self._changed, self.is_gone = {}, threading.Condition(), False

    def put(self, key, text):
        with self._changed:
            if self.is_gone or key in self._texts:
                raise ConnectionError(key)
            self._texts[key] = text
            self._changed.notify_all()

    def take(self, key):
        with self._changed:
            self._changed.wait_for(lambda: self.is_gone or key in self._texts)
            if self.is_gone:
                raise ConnectionError("gone")
            return self._texts.pop(key)

    def lose(self):
        with self._changed:
            self.is_gone = True
            self._changed.notify_all()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Task:
    """A task, whose process does not end when it should."""

    def __init__(self, names, own, texts, clock):
        self.ends = []
        self.watch = CallWatch(names, own, texts, self.ends.append, clock)
        self.watch.start()

    def fail_in(self, name, error):
        """Fail in a call that all tasks have begun."""
        with self.watch.call(name, meets=True):
            self.watch.met()
            raise error

    def ended(self):
        """Return the error that it ends with, once that has come."""
        until(lambda: self.ends, "it has not ended")
        return str(self.ends[0])

    def ended_in_time(self, clock):
        """Return the error that it ends with while the time passes: it may still have to hear of the others."""

        def pass_time():
            clock.now += 11.0
            self.watch._wakes.set()
            time.sleep(0.1)
            return self.ends

        until(pass_time, "it has not ended")
        return str(self.ends[0])


@pytest.fixture
def cluster(monkeypatch):
    """Yield a function that starts tasks; end their threads afterwards."""
    monkeypatch.setattr(out_of_step_watch, "_SECONDS_BETWEEN_CHECKS", 0.05)
    monkeypatch.setattr(out_of_step_watch, "_SECONDS_TO_HEAR", 0.1)
    monkeypatch.setattr(out_of_step_watch, "_SECONDS_TO_CLOSE", SECONDS)
    monkeypatch.delattr("sys.last_type", raising=False)
    started = []

    def start(count=2):
        names, texts, clock = [f"worker:{index}" for index in range(count)], Texts(), Clock()
        started.extend(Task(names, index, texts, clock) for index in range(count))
        return started, texts, clock

    yield start
    for task in reversed(started):  # the first one last
        task.watch.close()
        out_of_step_watch.atexit.unregister(task.watch.close)
        for thread in (task.watch._ticker, *task.watch._messages.listeners.values()):
            assert not thread.is_alive()


def test_tasks_in_different_calls_all_end_with_one_line(cluster):
    (chief, other, third), *_ = cluster(3)
    with chief.watch.call("predict", meets=True), other.watch.call("evaluate", meets=True):
        ends = [task.ended() for task in (chief, other, third)]
    assert ends[0] == ends[1] == ends[2]
    assert (
        "worker:0 is in its 1st call, predict; worker:1 is in its 1st call, evaluate; worker:2 has" in ends[0]
    )


def test_one_whose_script_has_ended_is_named_by_the_first_task(cluster):
    (chief, other), *_ = cluster()
    with chief.watch.call("predict", meets=True):
        other.watch.close()
        assert "worker:1 has ended its script without a call" in chief.ended()


def test_the_first_task_that_has_ended_is_named_by_the_others(cluster):
    (chief, other), *_ = cluster()
    for task in (chief, other):
        with task.watch.call("fit", meets=True):
            pass
    with other.watch.call("predict", meets=True):
        chief.watch.close()
        assert (
            "worker:0 has ended its script after its 1st call, fit; worker:1 is in its 2nd" in other.ended()
        )


def test_one_that_makes_a_variable_alone_is_named(cluster):
    (chief, other), _, clock = cluster()
    for task in (chief, other):
        with task.watch.variable("kernel"):
            pass
    with chief.watch.variable("bias"):
        with other.watch.call("barrier", meets=True):
            time.sleep(0.3)
            assert not chief.ends  # the barrier might make it
            said = chief.ended_in_time(clock)
        assert "worker:0 makes the variable bias of a model; worker:1 is in its 1st call, barrier" in said
        assert other.ended() == said


def test_a_variable_that_fails_does_not_count(cluster):
    (chief, other), *_ = cluster()
    with pytest.raises(ValueError, match="shape"), chief.watch.variable("kernel"):
        raise ValueError("shape")
    assert chief.watch.state == other.watch.state
    other.watch.close()
    time.sleep(0.3)
    assert not chief.ends


def test_a_call_that_comes_after_the_end_of_another_script_is_refused_at_once(cluster):
    (chief, other), *_ = cluster()
    chief.watch.close()
    until(lambda: 0 in other.watch._known.sorted(), "nothing was heard")
    late = other.watch.call("barrier", meets=True)
    with pytest.raises(ConfigError, match="worker:0 has ended its script without a call"), late:
        pytest.fail("it began")
    assert other.ends == []


@pytest.mark.parametrize("error", [TaskLost("fit", "lost worker:2"), Preempted("SIGTERM", "told to end")])
def test_a_task_that_was_lost_or_told_to_end_is_not_out_of_step(cluster, error):
    (chief, other), _, clock = cluster()
    with pytest.raises(type(error)):
        other.fail_in("fit", error)
    with chief.watch.call("fit", meets=True):
        other.watch.close()
        time.sleep(0.3)
        clock.now = 11.0
        time.sleep(0.3)
    assert chief.ends == []


def test_a_task_that_has_failed_tells_no_end(cluster, monkeypatch):
    (chief, other), *_ = cluster()
    monkeypatch.setattr("sys.last_type", ValueError, raising=False)
    with chief.watch.call("predict", meets=True):
        other.watch.close()
        time.sleep(0.3)
    assert chief.ends == []


def test_one_that_has_left_by_an_exception_is_named_after_some_time(cluster):
    (chief, other), _, clock = cluster()
    with pytest.raises(ValueError, match="a bad file"):
        other.fail_in("fit", ValueError("a bad file"))
    with chief.watch.call("fit", meets=True), other.watch.call("evaluate", meets=True):
        time.sleep(0.5)
        assert chief.ends == []  # it may leave by the same
        assert "and has left its 1st call, fit, by ValueError: a bad file" in chief.ended_in_time(clock)


def test_a_call_that_no_other_task_has_seen_does_not_count(cluster):
    (chief, _), *_ = cluster()
    with pytest.raises(OSError, match="gone"), chief.watch.call("fit", meets=True):
        raise OSError("gone")
    assert chief.watch.state.number == 0
    with pytest.raises(OSError, match="gone"), chief.watch.call("train_on_batch", meets=False):
        raise OSError("gone")
    assert (chief.watch.state.number, chief.watch.state.failed) == (1, 1)


def test_the_main_thread_raises_the_error_itself_when_an_exchange_has_failed(cluster):
    (chief, other), *_ = cluster()
    with chief.watch.call("predict", meets=True), other.watch.call("evaluate", meets=True):
        error = chief.watch.why_broken(SECONDS, is_broken=True)
        assert "worker:0 is in its 1st call, predict" in str(error)
        other.ended()
        time.sleep(0.3)
    assert chief.ends == []
    # A script that has caught it, as any ValueError, gets it again.
    with pytest.raises(ConfigError, match=r"worker:0 is in its 1st call, predict"):
        chief.fail_in("fit", AssertionError("it should not come to this"))


def test_a_variable_whose_exchange_meets_that_of_a_later_call_is_named(cluster):
    (chief, other), *_ = cluster()
    with chief.watch.variable("kernel"), other.watch.call("barrier", meets=True):
        errors = []
        asking = threading.Thread(
            target=lambda: errors.append(chief.watch.why_broken(SECONDS, is_broken=True))
        )
        asking.start()
        while not chief.watch._is_taken:  # otherwise the chief would end by itself
            time.sleep(0.01)
        errors.append(other.watch.why_broken(SECONDS, is_broken=True))
        asking.join()
    assert len(errors) == 2
    for error in errors:
        assert "worker:0 makes the variable kernel of a model; worker:1 is in its 1st call, barrier" in str(
            error
        )
    assert chief.ends == other.ends == []


def test_an_exchange_that_fails_in_one_call_has_another_reason(cluster):
    (chief, other), *_ = cluster()
    with chief.watch.call("fit", meets=True), other.watch.call("fit", meets=True):
        assert other.watch.why_broken(0.3, is_broken=True) is None
        assert chief.watch.why_broken(0.3, is_broken=True) is None
    assert chief.ends == other.ends == []


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_task_that_is_busy_is_named_once_by_the_one_that_waits(cluster, caplog, waiting):
    tasks, _, clock = cluster()

    def warned():
        return [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]

    with caplog.at_level(logging.WARNING, "tfdist"), tasks[waiting].watch.call("predict", meets=True):
        until(lambda: tasks[0].watch._wait._key != out_of_step_watch._NOBODY, "nobody waits")
        time.sleep(0.3)
        assert warned() == []
        for now, count in ((31.0, 1), (60.0, 1), (340.0, 2)):
            clock.now = now
            time.sleep(0.3)
            until(lambda count=count: len(warned()) >= count, "nothing was logged")
        busy = f"worker:{1 - waiting} has made no call"
        assert warned() == [
            f"worker:{waiting}: has waited {now} s in its 1st call, predict: {busy}" for now in (31, 340)
        ]
    assert tasks[0].ends == tasks[1].ends == []


def test_many_quick_calls_tell_nothing(cluster, monkeypatch):
    (_, other), *_ = cluster()
    told, looks, is_over = [], [], threading.Event()

    def look(state):
        """Look again only after another call, however slow the machine is."""
        looks.append(state)
        until(lambda: is_over.is_set() or other.watch.state.number > state.number, "no call follows")

    monkeypatch.setattr(other.watch._messages, "send", told.append)
    monkeypatch.setattr(other.watch, "_compare", look)
    while len(looks) < 10:
        with other.watch.call("train_on_batch", meets=False):
            pass
    assert told == []
    is_over.set()


def test_what_another_version_tells_is_not_heeded(cluster):
    (chief, other), texts, _ = cluster()
    texts.put("of/1/0", '{"number": 1, "of_another_version": 2}')
    with chief.watch.call("predict", meets=True):
        chief.watch._messages.listeners[1].join(SECONDS)
        time.sleep(0.3)
    assert chief.ends == []
    assert not chief.watch._messages.listeners[1].is_alive()
    other.watch.close()


def test_without_a_connection_nothing_is_compared_and_the_end_does_not_wait(cluster):
    (chief, other), texts, _ = cluster()
    texts.lose()
    with chief.watch.call("predict", meets=True), other.watch.call("evaluate", meets=True):
        assert other.watch.why_broken(0.3, is_broken=True) is None
    began = time.monotonic()
    other.watch.close()
    assert time.monotonic() - began < out_of_step_watch._SECONDS_TO_CLOSE


def test_one_that_is_not_heard_any_more_is_not_taken_for_one_that_stays_behind(cluster):
    (chief, deaf, third), texts, clock = cluster(3)
    with deaf.watch.call("fit", meets=True):
        until(lambda: chief.watch._known.sorted()[1].inside, "nothing was heard")
        texts.put("of/1/1", "what breaks the connection")
        chief.watch._messages.listeners[1].join(SECONDS)
        for task in (chief, third):
            with pytest.raises(ValueError, match="a bad file"):
                task.fail_in("fit", ValueError("a bad file"))
        with chief.watch.call("evaluate", meets=True), third.watch.call("evaluate", meets=True):
            time.sleep(0.3)
            clock.now = 11.0
            time.sleep(0.3)
            assert chief.ends == []
