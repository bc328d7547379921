"""Tell which lines of the tasks are only for their log files, and not for the launcher's screen."""

import re

from tfdist.launcher.resources import own_gpus

__all__ = ["NotesForLogs"]

# Messages of TensorFlow's C++ at level INFO. Since 2.20 no variable silences them before TensorFlow is
# loaded.
_TENSORFLOW_INFO = (
    r"WARNING: All log messages before absl::InitializeLog\(\) .*|I\d{4} [\d:.]+ +\d+ \S+:\d+\] .*"
    r"|To enable the following instructions: .* rebuild TensorFlow .*"
)
# Each TensorFlow with CUDA reports this as an error where there is no GPU.
_NO_GPU = r"E\d{4} [\d:.]+ +\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: .*"
# Lines of tfdist whose content the live view shows, or the launcher's first lines.
_SHOWN_OTHERWISE = (
    r"tfdist: (?:read the cluster from .*|\S+ serves at grpc://.*|strategy \w+: .*"
    r"|using the \w+ transport\b.*|the chief has ended, so .* ends too)"
)


class NotesForLogs:
    """A filter of the lines of all tasks."""

    def __init__(self, *, is_live: bool, verbosity: int) -> None:
        """Choose what to leave out.

        Args:
            is_live: Whether a live view shows the states of the tasks.
            verbosity: 0 for a filter, more for none.
        """
        self._is_live = is_live
        patterns = [_TENSORFLOW_INFO]
        if not own_gpus():
            patterns.append(_NO_GPU)
        if is_live:
            patterns.append(_SHOWN_OTHERWISE)
        self._notes = None if verbosity > 0 else re.compile(rf"^(?:{'|'.join(patterns)})\n", re.MULTILINE)
        self._first: dict[str, str] = {}  # each line of tfdist, and the task that has written it first

    def without(self, text: str, task: str) -> str:
        """Return whole lines of a task without those for its log file alone.

        Where there is a live view, a line of tfdist that several tasks write is shown for the first of them.
        """
        if self._notes is None:
            return text
        text = self._notes.sub("", text)
        if not self._is_live or "tfdist: " not in text:
            return text
        return "".join(line for line in text.splitlines(True) if not self._is_repeated(line, task))

    def _is_repeated(self, line: str, task: str) -> bool:
        return line.startswith("tfdist: ") and self._first.setdefault(line, task) != task
