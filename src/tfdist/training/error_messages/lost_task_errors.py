"""Find out from TensorFlow's long errors which task is gone, and name it in one line."""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence

import tensorflow as tf

from tfdist._utils.strategy_kinds import has_mirrored_workers, is_asynchronous
from tfdist.cluster.config import Task
from tfdist.coordination.calls_between_tasks import addresses_of
from tfdist.coordination.end_announcements import keep_servers_at_exit
from tfdist.coordination.grpc_health_probe import answers
from tfdist.coordination.heartbeat_watch import is_continued_without
from tfdist.errors import TaskLost
from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.training.error_messages.uneven_rows import uneven_rows
from tfdist.training.error_messages.whole_batch_size_errors import explaining_sizes
from tfdist.training.workers.same_call import in_call, why_out_of_step
from tfdist.transport.listen_and_call import ExchangeError

_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
# Tasks that TensorFlow names for another reason than that they are gone: the device of an operation.
_NOT_GONE = re.compile(r"\{\{.*?\}\}")
# The error of an exchange over tfdist's own connections, at the end of a Python traceback.
_BROKEN = re.compile(rf"{re.escape(ExchangeError.__module__)}\.ExchangeError: (.*)")
_FROM_PS = "GRPC error information from remote target /job:ps"
# The answers of a task that was started again since the last call to it.
_FORGOTTEN = (
    "unknown device",
    "not remote",
    "unable to find the relevant tensor remote_handle",
    "different device incarnation",
)


@contextlib.contextmanager
def naming_lost_tasks(what: str, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raise one line that says why an exchange has failed, or data, in the place of TensorFlow's error.

    Raises:
        TaskLost: A task is gone or silent.
        ConfigError: The workers are in different calls.
        DataError: The tensors of a batch have other numbers of rows.
    """
    try:
        yield
    except TaskLost:
        keep_servers_at_exit()
        raise
    except (ExchangeError, tf.errors.OpError) as error:  # ExchangeError: the exchange was outside a graph
        if (uneven := uneven_rows(error)) is not None:
            raise uneven from error
        broken = str(error) if isinstance(error, ExchangeError) else _broken(error)
        is_shared = broken or _names_a_task(error) or "ollective" in str(error)
        if is_shared and (other := why_out_of_step(are_all_there=_are_all_there(strategy))):
            raise other from error
        if not broken and not _names_a_task(error):
            raise
        gone, waited = _missing(str(error), strategy), isinstance(error, tf.errors.DeadlineExceededError)
        if not gone and not waited and not broken:  # such as storage that is unavailable
            raise
        problem = f"lost {' and '.join(gone)}" if gone else "waited for a task, but all tasks answer"
        if waited:
            problem += ": an exchange waited for a task for longer than communication.timeout"
        if broken:
            problem = f"lost {' and '.join(gone)}: {broken}" if gone else broken
        keep_servers_at_exit()
        raise TaskLost(what, problem, remedy=_remedy(what, strategy)) from error


@contextlib.contextmanager
def public_call(name: str, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Count the block as a call of tfdist, which all workers must make, and explain its errors."""
    with in_call(name, strategy), naming_lost_tasks(name, strategy), explaining_sizes(strategy):
        yield


def _remedy(what: str, strategy: tf.distribute.Strategy) -> str:
    """Return what to do about a lost task; the chief may be alone in a call that all workers must make."""
    is_mirrored = has_mirrored_workers(strategy)
    if what not in ("evaluate", "predict") or not is_mirrored or not is_chief_of(strategy):
        return "Its own log says why; start the cluster again, from the last checkpoint"
    return (
        f"If only the chief called {what}, let all workers call it, or let all call tfdist.save(model, path) "
        f"and {what} in another process, which loads the file. If all called it, the task's log says why"
    )


def is_lost_worker(error: tf.errors.OpError) -> bool:
    """Return whether an error means that an asynchronous worker is gone, which training survives."""
    text = str(error)
    return _names_a_task(error) and "/job:worker" in text and _FROM_PS not in text


def is_about_a_task(error: BaseException) -> bool:
    """Return whether an error says that a task is lost, and not that a computation failed."""
    if isinstance(error, tf.errors.OpError):
        return bool(_broken(error)) or _names_a_task(error)
    return isinstance(error, (TaskLost, ExchangeError))


def named(tasks: Sequence[Task], strategy: tf.distribute.Strategy) -> list[str]:
    """Return the tasks with their addresses."""
    addresses = addresses_of(strategy)
    return [f"{task} at {addresses[task]}" if task in addresses else str(task) for task in tasks]


def servers_needed(strategy: tf.distribute.Strategy) -> list[Task]:
    """Return the tasks that serve this chief, and without which it cannot continue."""
    tasks = list(addresses_of(strategy))
    others = ("chief", "evaluator", *(["worker"] if is_asynchronous(strategy) else []))
    if not any(task.type == "ps" for task in tasks):
        return []
    return [task for task in tasks if task.type not in others]


def silent_tasks(strategy: tf.distribute.Strategy, job: str) -> list[str]:
    """Return the tasks of a job that neither answer nor refuse; TensorFlow itself notices lost tasks."""
    return _tasks_whose_answer_is(None, strategy, job)


def refusing_tasks(strategy: tf.distribute.Strategy, job: str) -> list[str]:
    """Return the tasks of a job that refuse connections: they are gone."""
    return _tasks_whose_answer_is(False, strategy, job)


def are_lost(workers: Collection[int], strategy: tf.distribute.Strategy) -> bool:
    """Return whether all of these workers are gone, or the chief continues without them."""
    addresses = addresses_of(strategy)
    tasks = [Task("worker", index) for index in workers]
    return all(is_continued_without(task) or answers(addresses[task]) is False for task in tasks)


def _tasks_whose_answer_is(answer: bool | None, strategy: tf.distribute.Strategy, job: str) -> list[str]:
    addresses = addresses_of(strategy)
    tasks = [task for task in addresses if task[0] == job]
    return named([task for task in tasks if answers(addresses[task]) is answer], strategy)


def _broken(error: tf.errors.OpError) -> str:
    match = _BROKEN.search(str(error))
    return match[1] if match else ""


def _names_a_task(error: Exception) -> bool:
    text = str(error)
    if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
        return True
    if isinstance(error, tf.errors.DeadlineExceededError):
        return "Collective" in text
    if isinstance(error, (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)):
        return any(phrase in text.lower() for phrase in _FORGOTTEN)
    # TensorFlow's heartbeats report a task that was lost between calls.
    return "heartbeat" in text and "/task:" in text


def _are_all_there(strategy: tf.distribute.Strategy) -> bool:
    return all(answers(address) for address in addresses_of(strategy).values())


def _missing(text: str, strategy: tf.distribute.Strategy) -> list[str]:
    """Return the lost tasks: those that do not answer among the tasks in the message, or else among all.

    Calls fail in chains (the chief's call to a ps, whose call to a worker failed), so a message may name
    tasks that are well. A task that refuses connections is gone; then tasks that are only slow are left out.
    """
    plain = _NOT_GONE.sub("", text)
    said = list(dict.fromkeys(Task(job, int(index)) for job, index in _TASK.findall(plain)))
    addresses = addresses_of(strategy)
    for tasks in (said, list(addresses)):
        known = {task: answers(addresses[task]) for task in tasks if task in addresses}
        refusing = [task for task, answer in known.items() if answer is False]
        silent = refusing or [task for task, answer in known.items() if not answer]
        if silent:
            return named(silent, strategy)
    return named(said, strategy)  # all tasks answer again, or have no known address
