"""Carry messages between the first task of a cluster and each other one, through a store of texts.

The store is TensorFlow's coordination service, which connects mirrored workers.
"""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

_log = logging.getLogger("tfdist")


class Store(Protocol):
    """A carrier of texts from one task to another. Both methods raise ConnectionError if a task is gone."""

    def put(self, key: str, text: str) -> None:
        """Store a text under a key that is not in use."""

    def take(self, key: str) -> str:
        """Wait until there is a text under a key, remove it and return it."""


class Messages:
    """The messages of one task: the first task hears each other one, and the others hear the first.

    Attributes:
        can_send: Whether the store has taken all messages.
        hears_all: Whether this task still listens to all others that it began with.
        listeners: The threads that listen, by the index of the task that is not the first.
    """

    def __init__(
        self,
        names: Sequence[str],
        own: int,
        store: Store,
        receive: Callable[[int, str], object],
        lose: Callable[[int], object],
    ) -> None:
        """Store who takes part.

        Args:
            names: The tasks.
            own: The index of this task among them.
            store: What carries texts from one task to another.
            receive: Called with the index of a task and a message; may raise MsgspecError.
            lose: Called with the index of a task that is not heard any more.
        """
        self._names, self._store, self._receive, self._lose = names, store, receive, lose
        self._sends, self._hears = ("of", "to") if own else ("to", "of")  # texts of or to a task
        self._sent, self._heard, self._lock = Counter[int](), Counter[int](), threading.Lock()
        self._is_over = False
        self.can_send = self.hears_all = True
        self.listeners = {
            index: threading.Thread(target=self._listen, args=(index,), daemon=True)
            for index in ([own] if own else range(1, len(names)))
        }

    def listen(self) -> None:
        """Start to listen."""
        for listener in self.listeners.values():
            listener.start()

    def send(self, message: Any, index: int | None = None) -> None:
        """Send a message to the first task; or, from that, to one other task or to all."""
        for receiver in self.listeners if index is None else (index,):
            with self._lock:
                number = self._sent[receiver]
                self._sent[receiver] += 1
            try:
                text = msgspec.json.encode(message).decode()
                self._store.put(f"{self._sends}/{receiver}/{number}", text)
            except ConnectionError as error:
                _log.info("calls are not told any more: %s", error)
                self.can_send = False

    def _listen(self, index: int) -> None:
        try:
            while not self._is_over:
                text = self._store.take(f"{self._hears}/{index}/{self._heard[index]}")
                self._heard[index] += 1
                if not self._is_over:
                    self._receive(index, text)
        except (ConnectionError, msgspec.MsgspecError) as error:  # gone, or of another version of tfdist
            _log.info("%s is not heard any more: %s", self._names[index], error)
            self.hears_all = False
            self._lose(index)

    def ignore(self) -> None:
        """Receive no message any more."""
        self._is_over = True

    def close(self) -> None:
        """Wake the threads that listen, and wait for their end."""
        self.ignore()
        for index, listener in self.listeners.items():
            if listener.is_alive():
                with contextlib.suppress(ConnectionError):  # it has just been told something
                    self._store.put(f"{self._hears}/{index}/{self._heard[index]}", "")
                listener.join()
