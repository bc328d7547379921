"""Call a function on the chief alone, with the same result or the same error on all workers."""

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError, StorageError, TfdistError
from tfdist.training.workers.exchange_numbers import take_text_from_chief


def call_on_chief(
    strategy: tf.distribute.Strategy, act: Callable[[], Any], *, is_chief: bool
) -> dict[str, Any]:
    """Call a function on the chief; return its result on all workers, or raise its error on all of them.

    The result is None or a dict of plain values. All workers must call this. If the chief alone raised, the
    others would wait for it.
    """
    message: dict[str, Any] = {}
    if is_chief:
        try:
            message = {"result": act() or {}}
        except (ConfigError, StorageError) as error:
            kind = type(error).__name__
            message = {"error": [kind, error.where, error.problem, error.remedy]}
    text = take_text_from_chief(strategy, json.dumps(message), is_chief=is_chief)
    message = json.loads(text)
    if "error" in message:
        kind, where, problem, remedy = message["error"]
        error_class: type[TfdistError] = StorageError if kind == "StorageError" else ConfigError
        raise error_class(where, problem, remedy=remedy)
    return dict(message["result"])
