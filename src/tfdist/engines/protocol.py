"""The protocol of an engine, which a plug-in implements too."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import State, Submission


class Engine(Protocol):
    """A scheduler that runs jobs elsewhere. Options are those of the engine itself, by its own names."""

    name: str

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return what the engine reads, as a user would write it.

        Its first lines say how to submit it, where the format has comments.
        """

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Submit the job."""

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job, and the engine's own words for it."""

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the name of a task and a line that it has printed, for each line.

        Args:
            submission: The job.
            tasks: The names of tasks of the job.
            follow: Whether to continue until the job has ended.
        """

    def cancel(self, submission: Submission) -> None:
        """End a job."""
