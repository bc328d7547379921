"""Submit a config, or a script of your own, to a scheduler, and print a handle.

    tfdist submit slurm --config cifar.yaml --sbatch partition=gpu
    tfdist submit slurm --workers 4 --ps 2 -- python my_script.py

`tfdist status`, `logs` and `cancel` take the handle.
"""

import time
from collections.abc import Sequence

from tfdist.cli._jobs import job_of, options_of
from tfdist.engines.registry import find_engine
from tfdist.engines.submissions import Submission

__all__ = ["main"]


def main(
    command: Sequence[str],
    config: str | None = None,
    set: Sequence[str] = (),
    workers: int | None = None,
    ps: int = 0,
    run_dir: str | None = None,
    alone: Sequence[str] = (),
    sbatch: Sequence[str] = (),
    option: Sequence[str] = (),
) -> None:
    """Submit a job."""
    name, job = job_of(command, config, set, workers, ps, run_dir, alone)
    handle = find_engine(name).submit(job, options_of([*sbatch, *option]))
    Submission(
        handle=str(handle),
        name=job.name,
        run_dir=str(job.run_dir(handle.number)),
        tasks=tuple(map(str, job.tasks)),
        made_by=job.made_by,
        at=time.time(),
    ).save()
    print(handle)


if __name__ == "__main__":
    from absl import flags

    from tfdist.cli._jobs import define_flags
    from tfdist.cli._run import run

    define_flags(flags)
    run(main, takes_words=True)
