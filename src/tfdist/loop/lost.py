"""Name the task that is gone, where TensorFlow says in many lines that something is."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdist.calls import resolver_of
from tfdist.errors import TaskLost
from tfdist.exchange import Broken
from tfdist.farewell import withhold_farewell
from tfdist.probing import answers

__all__ = ["is_lost_worker", "named", "naming_lost_tasks", "silent_tasks"]

_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
# Where TensorFlow names tasks for other reasons than that they are gone: the device that an operation was on.
_NOT_GONE = re.compile(r"\{\{.*?\}\}")
# What an exchange over connections of our own says, at the end of the lines of Python that led there.
_BROKEN = re.compile(rf"{re.escape(Broken.__module__)}\.Broken: (.*)")  # in a traceback
_FROM_PS = "GRPC error information from remote target /job:ps"
# What a task that was started again, between two calls to it, answers to the second.
_FORGOTTEN = (
    "unknown device",
    "not remote",
    "unable to find the relevant tensor remote_handle",
    "different device incarnation",
)


@contextlib.contextmanager
def naming_lost_tasks(what: str, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Report in one line which task of the cluster is gone or silent."""
    try:
        yield
    except TaskLost:
        withhold_farewell()
        raise
    except (Broken, tf.errors.OpError) as error:  # the first where the exchange was no part of a graph
        broken = str(error) if isinstance(error, Broken) else _broken(error)
        if not broken and not _is_about_a_task(error):
            raise
        gone, waited = _missing(str(error), strategy), isinstance(error, tf.errors.DeadlineExceededError)
        if not gone and not waited and not broken:  # such as storage that is unavailable
            raise
        problem = f"lost {' and '.join(gone)}" if gone else "waited for a task, and all of them answer"
        if waited:
            problem += ": an exchange lacked somebody for longer than communication.timeout"
        if broken:
            problem = f"lost {' and '.join(gone)}: {broken}" if gone else broken
        withhold_farewell()
        remedy = "Its own log says why; start the cluster again, from the last checkpoint"
        raise TaskLost(what, problem, remedy=remedy) from error


def is_lost_worker(error: tf.errors.OpError) -> bool:
    """Say whether a worker of asynchronous parameter servers is gone, which training survives."""
    text = str(error)
    return _is_about_a_task(error) and "/job:worker" in text and _FROM_PS not in text


def named(tasks: Sequence[tuple[str, int]], strategy: tf.distribute.Strategy) -> list[str]:
    """Give the tasks with their addresses."""
    addresses = _addresses(strategy)
    return [
        f"{job}:{index} at {addresses[job, index]}" if (job, index) in addresses else f"{job}:{index}"
        for job, index in tasks
    ]


def silent_tasks(strategy: tf.distribute.Strategy, job: str) -> list[str]:
    """Give the tasks of a job that neither answer nor refuse; TensorFlow notices those that are gone."""
    addresses = _addresses(strategy)
    tasks = [task for task in addresses if task[0] == job]
    return named([task for task in tasks if answers(addresses[task]) is None], strategy)


def _broken(error: tf.errors.OpError) -> str:
    found = _BROKEN.search(str(error))
    return found[1] if found else ""


def _is_about_a_task(error: Exception) -> bool:
    text = str(error)
    if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
        return True
    if isinstance(error, tf.errors.DeadlineExceededError):
        return "Collective" in text
    if isinstance(error, (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)):
        return any(each in text.lower() for each in _FORGOTTEN)
    # The heartbeats of TensorFlow's tasks, where no call to the lost one was under way.
    return "heartbeat" in text and "/task:" in text


def _missing(text: str, strategy: tf.distribute.Strategy) -> list[str]:
    """Find the lost tasks: those that do not answer, of those that the message names or else of all.

    Calls fail in chains (the chief's to a ps, whose call to a worker failed), so a message may name tasks
    that are well. Where one refuses, and so is gone, those that are merely slow are not named.
    """
    plain = _NOT_GONE.sub("", text)
    said = list(dict.fromkeys((job, int(index)) for job, index in _TASK.findall(plain)))
    addresses = _addresses(strategy)
    for tasks in (said, list(addresses)):
        known = {each: answers(addresses[each]) for each in tasks if each in addresses}
        refusing = [each for each, answer in known.items() if answer is False]
        silent = refusing or [each for each, answer in known.items() if not answer]
        if silent:
            return named(silent, strategy)
    return named(said, strategy)  # all are back, or nowhere known


def _addresses(strategy: tf.distribute.Strategy) -> dict[tuple[str, int], str]:
    resolver = resolver_of(strategy)
    spec = {} if resolver is None else resolver.cluster_spec().as_dict()
    return {(job, index): address for job, known in spec.items() for index, address in enumerate(known)}
