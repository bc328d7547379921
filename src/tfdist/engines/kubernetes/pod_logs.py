"""Read the logs of a job's pods, of all tasks at the same time."""

import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from tfdist.engines.follow_logs import Line, lines_until_end
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.kubernetes.kubectl import list_objects, within
from tfdist.engines.kubernetes.objects import INSTANCE, ROLE, Object
from tfdist.errors import ConfigError, TfdistError

_SECONDS_BETWEEN_LOOKS = 2.0
_INDEXES = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
_STAMPED = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\S+) ?(?P<text>.*)")
_Answer = TypeVar("_Answer")


class _Pod(NamedTuple):
    """A pod that has started."""

    name: str
    uid: str  # TFJob gives a pod that is made again the name of the one before
    has_ended: bool


def list_pods(submission: Submission, tasks: Sequence[str]) -> list[Object]:
    """Return the pods of tasks, and perhaps of others."""
    labels = f"{INSTANCE}={submission.handle.number}"
    if len(roles := {task.partition(":")[0] for task in tasks}) == 1:
        labels += f",{ROLE}={roles.pop()}"
    return list_objects(submission, "pods", f"--selector={labels}")


def pods_of(found: Sequence[Object], task: str) -> list[_Pod]:
    """Return a task's pods that have started, the oldest first."""
    role, _, index = task.partition(":")
    pods = [
        pod
        for pod in found
        if pod["status"].get("phase") != "Pending"
        and pod["metadata"]["labels"].get(ROLE) == role
        and index in (pod["metadata"]["labels"].get(label) for label in _INDEXES)
    ]
    pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    return [
        _Pod(
            pod["metadata"]["name"],
            pod["metadata"].get("uid") or pod["metadata"]["name"],
            pod["status"].get("phase") in ("Succeeded", "Failed"),
        )
        for pod in pods
    ]


class _SharedAnswer(Generic[_Answer]):
    """An answer of kubectl that several threads use for some seconds, or its error."""

    def __init__(self, ask: Callable[[], _Answer]) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._asked_at = self.answered_at = float("-inf")
        self._answer: _Answer | TfdistError

    def get(self, since: float = float("-inf")) -> _Answer:
        """Return the answer to a question that was asked after a time of `time.monotonic`."""
        with self._lock:
            now = time.monotonic()
            if self._asked_at < since or now - self.answered_at >= _SECONDS_BETWEEN_LOOKS:
                self._asked_at = now
                try:
                    self._answer = self._ask()
                except TfdistError as error:
                    self._answer = error
                self.answered_at = time.monotonic()
            answer = self._answer
        if isinstance(answer, TfdistError):
            raise answer
        return answer


class LogReader:
    """Read the logs of tasks, each in a thread: they share what kubectl says of the job and its pods."""

    def __init__(
        self, submission: Submission, tasks: Sequence[str], is_over: Callable[[], bool] | None
    ) -> None:
        self.lines: queue.Queue[Line | None] = queue.Queue()
        self.errors: dict[str, TfdistError] = {}
        self._submission = submission
        self._pods = _SharedAnswer(lambda: list_pods(submission, tasks))
        self._is_over = _SharedAnswer(is_over) if is_over else None

    def read(self, task: str) -> None:
        """Put the lines of a task into the queue, the errors of those that cannot be read, and last None."""
        newest: dict[str, str] = {}  # the time of each pod's last line
        complete: set[str] = set()  # of their numbers

        def logs(is_last: bool) -> Iterator[tuple[str, Iterator[Line]]]:
            # The last pods are those after the job's end.
            since = self._is_over.answered_at if self._is_over and is_last else float("-inf")
            for pod in pods_of(self._pods.get(since), task):
                if pod.uid not in complete:
                    yield f"{task} ({pod.name})", lines_of(pod)

        def lines_of(pod: _Pod) -> Iterator[Line]:
            for line in _log(self._submission, pod, newest, follow=self._is_over is not None):
                yield task, line
            if pod.has_ended:  # otherwise the connection was lost, and continues after the last line
                complete.add(pod.uid)

        is_over = self._is_over.get if self._is_over else None
        try:
            for line in lines_until_end(logs, is_over, _SECONDS_BETWEEN_LOOKS, self.errors):
                self.lines.put(line)
        except TfdistError as error:
            self.errors[task] = error
        finally:
            self.lines.put(None)


def _log(submission: Submission, pod: _Pod, newest: dict[str, str], *, follow: bool) -> Iterator[str]:
    """Yield the lines of a pod, and what kubectl says if it cannot read them, which is an error then.

    If they are followed, those after `newest`, the times of the last lines by pod.
    """
    before = newest.get(pod.uid, "")
    since = [f"--since-time={before}"] if before else []
    options = ["--follow", "--timestamps", *since] if follow else []
    with subprocess.Popen(
        ["kubectl", "logs", *within(submission), *options, pod.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
    ) as process:
        try:
            for line in process.stdout or ():
                match = _STAMPED.fullmatch(line.rstrip("\n")) if follow else None
                if match is None:
                    yield line.rstrip("\n")
                # Of some nodes, the fraction of a second has no zeros at its end.
                elif match["at"].rstrip("Z") > before.rstrip("Z"):
                    newest[pod.uid] = match["at"]
                    yield match["text"]
            if status := process.wait():
                raise ConfigError("kubectl logs", f"exited with {status}")
        finally:
            process.terminate()
