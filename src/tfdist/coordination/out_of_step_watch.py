"""Tell the tasks of a script that works in step which call each is in, and end those that are out of step.

An exchange between tasks that are in different calls does not end. So a thread tells the first task, which
compares them, what the main thread is doing. That takes no time of a step: only what has lasted for a second
is told.
"""

import atexit
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from tfdist.coordination.background_threads import end_process
from tfdist.coordination.calls_out_of_step import (
    CallState,
    are_out_of_step,
    first_waiting,
    have_parted,
    out_of_step,
    waits_text,
)
from tfdist.coordination.messages_through_store import Messages, Store
from tfdist.errors import ConfigError, Preempted, TaskLost, TfdistError

_SECONDS_BETWEEN_CHECKS = 1.0
_SECONDS_TO_FOLLOW = 10.0  # for a task in a call that another has left by an exception
_SECONDS_BEFORE_WARNING = 30.0
_SECONDS_BETWEEN_WARNINGS = 300.0
_SECONDS_TO_HEAR = 1.0  # for the other tasks, before the first task, at which they ask, ends
_SECONDS_TO_CLOSE = 5.0
_NOBODY = (0, 0, 0)
_log = logging.getLogger("tfdist")


class _LeadMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the first task: an error to end with, a warning to log, or that itself has ended."""

    error: tuple[str, str, str] | None = None
    warning: str = ""
    lead: CallState | None = None


class _KnownStates:
    """The last known states of the tasks, which several threads note.

    Attributes:
        has_one_ended: Whether the script of a task has ended.
    """

    def __init__(self, count: int) -> None:
        self._states = {index: CallState() for index in range(count)}
        self._lock = threading.Lock()
        self.has_one_ended = False

    def note(self, index: int, state: CallState) -> None:
        with self._lock:
            self._states[index] = state
        self.has_one_ended = self.has_one_ended or state.has_ended

    def forget(self, index: int) -> None:
        with self._lock:
            self._states.pop(index)

    def sorted(self) -> dict[int, CallState]:
        with self._lock:
            return dict(sorted(self._states.items()))


class _Wait:
    """The wait of one task for others: which task waits in which call, and when a warning is due."""

    def __init__(self) -> None:
        self._key = _NOBODY
        self._since = self._warns_at = 0.0

    def due(self, states: Sequence[CallState], now: float) -> tuple[int, float] | None:
        """Return the place of the first task that waits and its seconds, from time to time."""
        waiting = first_waiting(states)
        key = _NOBODY if waiting is None else (waiting, states[waiting].inside, states[waiting].made)
        if key != self._key or waiting is None:
            self._key, self._since, self._warns_at = key, now, now + _SECONDS_BEFORE_WARNING
            return None
        if now < self._warns_at:
            return None
        self._warns_at = now + _SECONDS_BETWEEN_WARNINGS
        return waiting, now - self._since


class CallWatch:
    """The calls of this task, and what is known of those of the others.

    Attributes:
        state: How far this task has come.
    """

    def __init__(
        self,
        names: Sequence[str],
        own: int,
        store: Store,
        end: Callable[[ConfigError], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store who takes part.

        Args:
            names: The tasks, of which the first compares all.
            own: The index of this task among them.
            store: What carries texts from one task to another.
            end: Called with the error instead of ending this process, whose main thread waits in an exchange.
            clock: Returns seconds.
        """
        self.state = CallState()
        self._names, self._own = names, own
        self._end, self._clock = end or end_process, clock
        self._known, self._wait = _KnownStates(0 if own else len(names)), _Wait()
        self._messages = Messages(names, own, store, self._heed, self._forget)
        self._has_met = self._is_over = self._is_taken = self._was_lost = False
        self._error: ConfigError | None = None
        self._found, self._wakes = threading.Event(), threading.Event()
        self._parted_at = clock()  # not before
        self._ticker = threading.Thread(target=self._run, daemon=True, name="tfdist-call-watch")

    def start(self) -> None:
        """Start to watch, until the script ends."""
        self._ticker.start()
        self._messages.listen()
        atexit.register(self.close)

    # -- in the main thread --

    @contextlib.contextmanager
    def call(self, name: str, *, meets: bool) -> Iterator[None]:
        """Count the block as a call, which may be within another one.

        Args:
            name: The name of the call.
            meets: Whether the call notes with `met` that all tasks are in it. If it fails before that, it
                does not count: no task has waited for another.

        Raises:
            ConfigError: Another task has ended its script without this call.
        """
        before, had_met = self.state, self._has_met
        self.state, self._has_met = before.begun(name), not meets
        try:
            self._raise_if_certain()
            yield
        except (TaskLost, Preempted):
            self.state, self._was_lost = self.state.left(before), True
            raise
        except BaseException as error:
            self.state = self.state.left(before, error) if self._has_met else before
            raise
        else:
            self.state = self.state.left(before)
        finally:
            self._has_met = had_met

    @contextlib.contextmanager
    def variable(self, name: str) -> Iterator[None]:
        """Count the block as the making of a variable, for which all tasks wait.

        Raises:
            ConfigError: Another task has ended its script without this variable.
        """
        before = self.state
        self.state = msgspec.structs.replace(before, made=before.made + 1, making=name)
        try:
            self._raise_if_certain()
            yield
        except BaseException:
            self.state = before  # no task has waited for another, or the cluster is lost
            raise
        self.state = msgspec.structs.replace(self.state, making=before.making)

    def met(self) -> None:
        """Note that all tasks are in this call."""
        self._has_met = True

    def why_broken(self, seconds: float, *, is_broken: bool) -> ConfigError | None:
        """Return the error if an exchange has failed because tasks are out of step; wait for some seconds.

        Args:
            seconds: How long the others may take to tell what they are doing.
            is_broken: Whether all tasks are there, so that the exchange has failed for such a reason.
        """
        self._is_taken = True  # the caller raises the error
        if (self.state.inside or self.state.making) and is_broken:
            self.state = msgspec.structs.replace(self.state, is_broken=True)
        self._wakes.set()
        if self._found.wait(seconds):
            return self._error
        self._is_taken = False
        return None

    def _raise_if_certain(self) -> None:
        if self._error is not None:
            raise self._error  # the script has caught it, but no later call can meet those of the others
        if not self._known.has_one_ended:
            return
        known = self._with(self.state)
        if are_out_of_step([*known.values()]):
            raise self._told_error(known)

    # -- in threads of its own --

    def _run(self) -> None:
        """Tell the first task what this one is doing, if that has lasted, and compare what is known."""
        told, seen = CallState(), CallState()
        while not self._is_over:
            is_woken = self._wakes.wait(_SECONDS_BETWEEN_CHECKS)
            self._wakes.clear()
            if self._is_over:
                return
            state = self.state
            is_due = state != told and (is_woken or state == seen)
            seen = state
            self._compare(state)
            if self._own and is_due and self._messages.can_send:
                self._messages.send(state)
                told = state

    def _heed(self, index: int, text: str) -> None:
        """Note what another task is doing, or do what the first task asks for."""
        if not self._own:
            self._known.note(index, msgspec.json.decode(text, type=CallState))
            self._wakes.set()
            return
        message = msgspec.json.decode(text, type=_LeadMessage)
        if message.error:
            where, problem, remedy = message.error
            self._stop(ConfigError(where, problem, remedy=remedy))
        elif message.warning:
            _log.warning("%s", TfdistError(self._names[self._own], message.warning))
        elif message.lead is not None:
            self._known.note(0, message.lead)
            self._wakes.set()

    def _forget(self, index: int) -> None:
        if not self._own:
            self._known.forget(index)  # what it did last would soon seem out of step

    def _with(self, state: CallState) -> dict[int, CallState]:
        """Return what is known of each task, with the state of this one."""
        self._known.note(self._own, state)
        return self._known.sorted()

    def _compare(self, state: CallState) -> None:
        """End all tasks if they are out of step, and warn of one that is late."""
        known = self._with(state)
        states = [*known.values()]
        if self._is_over or self._found.is_set() or len(states) < 2:
            return
        now = self._clock()
        if not have_parted(states):
            self._parted_at = now
        has_parted = now - self._parted_at >= _SECONDS_TO_FOLLOW
        if has_parted or are_out_of_step(states):
            self._stop(self._told_error(known))
        elif not self._own and self._messages.hears_all and (wait := self._wait.due(states, now)):
            self._warn_of_late(states, *wait)

    def _told_error(self, known: Mapping[int, CallState]) -> ConfigError:
        """Return the error of tasks that are out of step; the first task tells the others to end with it."""
        error = out_of_step([self._names[index] for index in known], [*known.values()])
        if not self._own:
            self._messages.send(_LeadMessage(error=(error.where, error.problem, error.remedy)))
        return error

    def _stop(self, error: ConfigError) -> None:
        """End this process, unless its main thread raises the error itself."""
        self._error = error
        self._found.set()
        if not self._own:
            time.sleep(_SECONDS_TO_HEAR)
        if not (self._is_taken or self._is_over):
            self._end(error)

    def _warn_of_late(self, states: Sequence[CallState], waiting: int, seconds: float) -> None:
        """Log, in the first task that waits, which other task has not come to its call."""
        text = waits_text(self._names, states, waiting, seconds)
        if waiting == self._own:
            _log.warning("%s", TfdistError(self._names[waiting], text))
        else:
            self._messages.send(_LeadMessage(warning=text), waiting)

    # -- at the end of the script --

    def close(self) -> None:
        """Tell the others that the script has ended, unless an exception has ended it; stop the threads.

        A thread that waited in TensorFlow while Python ends would crash the process.
        """
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(_SECONDS_TO_CLOSE)  # the first task may be stopped

    def _close(self) -> None:
        self._is_over = True
        self._messages.ignore()
        self._wakes.set()
        self._ticker.join()  # the end is the last that it tells
        self._tell_end()
        self._messages.close()

    def _tell_end(self) -> None:
        if self._was_lost or hasattr(sys, "last_type"):  # of an exception that nothing has caught
            return
        ended = msgspec.structs.replace(self.state, inside=0, inside_name="", making="", has_ended=True)
        self._messages.send(ended if self._own else _LeadMessage(lead=ended))
