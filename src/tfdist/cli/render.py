"""Print what a scheduler reads to run a config, or a script of your own, on its machines.

    tfdist render slurm --config cifar.yaml --sbatch partition=gpu --sbatch time=60
    tfdist render slurm --workers 4 --ps 2 -o job.sh -- python my_script.py

The first lines of the output say what made it, and how to submit it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist._utils.files import write_whole
from tfdist.cli._jobs import job_of, options_of
from tfdist.engines.registry import find_engine

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
    output: str | None = None,
) -> None:
    """Print the files of a job, or write them to a file."""
    name, job = job_of(command, config, set, workers, ps, run_dir, alone)
    text = find_engine(name).render(job, options_of([*sbatch, *option]))
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(Path(output), text.encode())


if __name__ == "__main__":
    from absl import flags

    from tfdist.cli._jobs import define_flags
    from tfdist.cli._run import run

    define_flags(flags)
    flags.DEFINE_string("output", None, "The file to write; standard output by default.", short_name="o")
    run(main, takes_words=True)
