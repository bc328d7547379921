"""End a submitted job; its tasks get SIGTERM, and save their work.

tfdist cancel slurm://cluster/123
"""

from collections.abc import Sequence

from tfdist.cli._jobs import submission_of
from tfdist.engines.engine import Handle
from tfdist.engines.registry import find_engine

__all__ = ["main"]


def main(command: Sequence[str]) -> None:
    """End the job."""
    handle = Handle.parse(submission_of(command).handle)
    find_engine(handle.engine).cancel(handle)


if __name__ == "__main__":
    from tfdist.cli._run import run

    run(main, takes_words=True)
