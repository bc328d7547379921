"""Leave out what the tasks print that is not for the screen; it stays in their log files."""

import re

from tfdist.launcher.share_cores_and_gpus import own_gpus

# Colours and cursor movements of one task would spoil the lines of the others. The log file keeps them.
# \x80 to \x9f are control characters too (C1): \x9b begins a sequence as \x1b[ does.
_CONTROL_SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Messages of TensorFlow's C++ at level INFO. Since 2.20 no variable silences them before TensorFlow is
# loaded.
_TENSORFLOW_INFO = (
    r"WARNING: All log messages before absl::InitializeLog\(\) .*|I\d{4} [\d:.]+ +\d+ \S+:\d+\] .*"
    r"|To enable the following instructions: .* rebuild TensorFlow .*"
)
# Each TensorFlow with CUDA reports this as an error where there is no GPU.
_NO_GPU = r"E\d{4} [\d:.]+ +\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: .*"
# A mirrored worker reports this as an error if worker 0 ends its script a moment before it does.
# If worker 0 is lost, tfdist and the launcher say so.
_LEADER_HAS_ENDED = (
    r"E\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\] \S+::StartAbort UNAVAILABLE: Failed to send RPC to coordination .*"
    r"(?:\nAdditional GRPC error information .* while calling /tensorflow\.CoordinationService/Heartbeat:"
    r"(?:\n:UNKNOWN:Error received from peer .*)?)?"
)
# Lines of tfdist whose content the live view shows, or the launcher's first lines.
_SHOWN_OTHERWISE = (
    r"tfdist: (?:read the cluster from .*|\S+ (?:serves at grpc://|has found the chief at ).*"
    r"|strategy \w+: .*|using the \w+ transport\b.*|the chief has ended, so .* ends too)"
)


def without_control_sequences(text: str) -> str:
    """Return a text without what a terminal would take for commands."""
    return _CONTROL_SEQUENCES.sub("", text)


class ScreenFilter:
    """A filter of the lines of all tasks."""

    def __init__(self, *, is_live: bool, verbosity: int) -> None:
        """Choose what to leave out.

        Args:
            is_live: Whether a live view shows the states of the tasks.
            verbosity: 0 for a filter, more for none.
        """
        self._is_live = is_live
        patterns = [_TENSORFLOW_INFO, _LEADER_HAS_ENDED]
        if not own_gpus():
            patterns.append(_NO_GPU)
        if is_live:
            patterns.append(_SHOWN_OTHERWISE)
        self._notes = None if verbosity > 0 else re.compile(rf"^(?:{'|'.join(patterns)})\n", re.MULTILINE)
        self._first: dict[str, str] = {}  # each line of tfdist, and the task that has written it first

    def without(self, text: str, task: str) -> str:
        """Return whole lines of a task without those for its log file alone.

        A live view shows a line of tfdist that several tasks write for the first of them only.
        """
        if self._notes is None:
            return text
        text = self._notes.sub("", text)
        if not self._is_live or "tfdist: " not in text:
            return text
        return "".join(
            line
            for line in text.splitlines(True)
            if not line.startswith("tfdist: ") or self._first.setdefault(line, task) == task
        )
