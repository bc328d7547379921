"""Submit a config, or a script of your own, to a scheduler, and print a handle.

    tfdist submit slurm --config cifar.yaml --sbatch partition=gpu
    tfdist submit slurm --workers 4 --ps 2 -- python my_script.py

`tfdist status`, `logs` and `cancel` take the handle.
"""

from collections.abc import Sequence
from typing import Any

from tfdist.cli._jobs import requested
from tfdist.cli._run_command import run
from tfdist.engines.records import record

__all__ = ["main"]


def main(command: Sequence[str], **flags: Any) -> None:
    """Submit a job; `requested` takes the flags."""
    engine, job, options = requested(command, **flags)
    submission = engine.submit(job, options)
    record(submission)
    print(submission.handle)


if __name__ == "__main__":
    run(main, flags_from=requested, takes_words=True)
