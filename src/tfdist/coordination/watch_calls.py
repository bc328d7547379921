"""Tell the tasks of a script that works in step which call each is in, and end those that are out of step.

An exchange between tasks that are in different calls does not end. So a thread tells the first task, which
compares them, what the main thread is doing. That takes no time of a step: only what has lasted for a second
is told. TensorFlow's coordination service, which connects mirrored workers, carries the texts.
"""

import atexit
import contextlib
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

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
from tfdist.errors import ConfigError, Preempted, TaskLost, TfdistError

_SECONDS_BETWEEN_CHECKS = 1.0
_SECONDS_TO_FOLLOW = 10.0  # for a task in a call that another has left by an exception
_SECONDS_BEFORE_WARNING = 30.0
_SECONDS_BETWEEN_WARNINGS = 300.0
_SECONDS_TO_HEAR = 1.0  # for the other tasks, before the first task, at which they ask, ends
_SECONDS_TO_CLOSE = 5.0
_NOBODY = (0, 0, 0)
_log = logging.getLogger("tfdist")


class Store(Protocol):
    """A carrier of texts from one task to another. Both methods raise ConnectionError if a task is gone."""

    def put(self, key: str, text: str) -> None:
        """Store a text under a key that is not in use."""

    def take(self, key: str) -> str:
        """Wait until there is a text under a key, remove it and return it."""


class _Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the first task: an error to end with, a warning to log, or that itself has ended."""

    error: tuple[str, str, str] | None = None
    warning: str = ""
    lead: CallState | None = None


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
        self._names, self._own, self._store = names, own, store
        self._end, self._clock = end or end_process, clock
        self._known: dict[int, CallState] = {index: CallState() for index in range(len(names)) if own == 0}
        self._has_met, self._is_over, self._is_taken = False, False, False
        self._was_lost = self._has_one_ended = False
        self._hears_all = self._is_heard = True
        self._error: ConfigError | None = None
        self._found, self._wakes, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._sent, self._heard = Counter[str](), Counter[int]()
        self._parted_at = clock()  # not before
        self._waits = _NOBODY
        self._waits_since = self._warns_at = 0.0
        # The first task hears each other one; the others hear the first.
        self._listened = [own] if own else range(1, len(names))
        self._listeners = [
            threading.Thread(target=self._listen, args=(index,), daemon=True) for index in self._listened
        ]
        self._ticker = threading.Thread(target=self._run, daemon=True, name="tfdist-call-watch")

    def start(self) -> None:
        """Start to watch, until the script ends."""
        for thread in (self._ticker, *self._listeners):
            thread.start()
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
        if not self._has_one_ended:
            return
        known = self._with(self.state)
        if are_out_of_step([state for _, state in known]):
            error = self._explained(known)
            self._tell(error)
            raise error

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
            if self._own and is_due and self._is_heard:
                self._send("of", self._own, state)
                told = state

    def _listen(self, index: int) -> None:
        """Wait for what another task tells this one, and heed it, until this script ends."""
        kind = "to" if self._own else "of"
        try:
            while not self._is_over:
                text = self._store.take(f"{kind}/{index}/{self._heard[index]}")
                self._heard[index] += 1
                if not self._is_over:
                    self._heed(index, text)
        except (ConnectionError, msgspec.MsgspecError) as error:  # gone, or of another version of tfdist
            _log.info("%s is not heard any more: %s", self._names[index], error)
            self._hears_all = False
            if not self._own:
                with self._lock:
                    self._known.pop(index)  # what it did last would soon seem out of step

    def _heed(self, index: int, text: str) -> None:
        """Note what another task is doing, or do what the first task asks for."""
        if not self._own:
            self._note(index, msgspec.json.decode(text, type=CallState))
            self._wakes.set()
            return
        notice = msgspec.json.decode(text, type=_Notice)
        if notice.error:
            where, problem, remedy = notice.error
            self._stop(ConfigError(where, problem, remedy=remedy))
        elif notice.warning:
            _log.warning("%s", TfdistError(self._names[self._own], notice.warning))
        elif notice.lead is not None:
            self._note(0, notice.lead)
            self._wakes.set()

    def _note(self, index: int, state: CallState) -> None:
        with self._lock:
            self._known[index] = state
        self._has_one_ended = self._has_one_ended or state.has_ended

    def _with(self, state: CallState) -> list[tuple[int, CallState]]:
        """Return what is known of each task, with the state of this one."""
        with self._lock:
            self._known[self._own] = state
            return sorted(self._known.items())

    def _explained(self, states: Sequence[tuple[int, CallState]]) -> ConfigError:
        return out_of_step([self._names[index] for index, _ in states], [state for _, state in states])

    def _compare(self, state: CallState) -> None:
        """End all tasks if they are out of step, and warn of one that is late."""
        known = self._with(state)
        states = [state for _, state in known]
        if self._is_over or self._found.is_set() or len(states) < 2:
            return
        now = self._clock()
        if not have_parted(states):
            self._parted_at = now
        has_parted = now - self._parted_at >= _SECONDS_TO_FOLLOW
        if has_parted or are_out_of_step(states):
            error = self._explained(known)
            self._tell(error)
            self._stop(error)
        elif not self._own and self._hears_all:
            self._warn_of_late(states, now)

    def _tell(self, error: ConfigError) -> None:
        """Tell all other tasks to end with an error, if this is the first task."""
        if not self._own:
            self._send_to_all(_Notice(error=(error.where, error.problem, error.remedy)))

    def _send_to_all(self, notice: _Notice) -> None:
        for index in range(1, len(self._names)):
            self._send("to", index, notice)

    def _stop(self, error: ConfigError) -> None:
        """End this process, unless its main thread raises the error itself."""
        self._error = error
        self._found.set()
        if not self._own:
            time.sleep(_SECONDS_TO_HEAR)
        if not (self._is_taken or self._is_over):
            self._end(error)

    def _warn_of_late(self, states: Sequence[CallState], now: float) -> None:
        """Log from time to time, in the first task that waits, which other task has not come to its call."""
        waiting = first_waiting(states)
        key = _NOBODY if waiting is None else (waiting, states[waiting].inside, states[waiting].made)
        if key != self._waits or waiting is None:
            self._waits, self._waits_since, self._warns_at = key, now, now + _SECONDS_BEFORE_WARNING
            return
        if now < self._warns_at:
            return
        self._warns_at = now + _SECONDS_BETWEEN_WARNINGS
        text = waits_text(self._names, states, waiting, now - self._waits_since)
        if waiting == self._own:
            _log.warning("%s", TfdistError(self._names[waiting], text))
        else:
            self._send("to", waiting, _Notice(warning=text))

    def _send(self, kind: str, index: int, message: Any) -> None:
        """Send the next of the texts to a task, or of a task; do nothing if the first task is gone."""
        with self._lock:
            key = f"{kind}/{index}"
            number = self._sent[key]
            self._sent[key] += 1
        try:
            self._store.put(f"{key}/{number}", msgspec.json.encode(message).decode())
        except ConnectionError as error:
            _log.info("calls are not told any more: %s", error)
            self._is_heard = False

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
        self._wakes.set()
        self._ticker.join()  # the end is the last that it tells
        self._tell_end()
        kind = "to" if self._own else "of"
        for index, listener in zip(self._listened, self._listeners, strict=True):
            if listener.is_alive():
                with contextlib.suppress(ConnectionError):  # it has just been told something
                    self._store.put(f"{kind}/{index}/{self._heard[index]}", "")
                listener.join()

    def _tell_end(self) -> None:
        if self._was_lost or hasattr(sys, "last_type"):  # of an exception that nothing has caught
            return
        ended = msgspec.structs.replace(self.state, inside=0, inside_name="", making="", has_ended=True)
        if self._own:
            self._send("of", self._own, ended)
        else:
            self._send_to_all(_Notice(lead=ended))
