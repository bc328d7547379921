"""Print what a scheduler reads to run a config, or a script of your own, on its machines.

    tfdist render slurm --config cifar.yaml --sbatch partition=gpu --sbatch time=60
    tfdist render slurm --workers 4 --ps 2 -o job.sh -- python my_script.py
    tfdist render dockerfile

The first lines of the output say what made it, and how to submit it.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tfdist._utils.files import local_path, write_whole
from tfdist.cli._jobs import made_by, requested
from tfdist.engines.dockerfile import render_dockerfile
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.containers import DockerfileSection

__all__ = ["main"]


def main(command: Sequence[str], output: str | None = None, **flags: Any) -> None:
    """Print what the engine reads, or write it to a file; `requested` takes the other flags."""
    if list(command) == ["dockerfile"]:
        text = _dockerfile(**flags)
    else:
        engine, job, options = requested(command, **flags)
        text = engine.render(job, options)
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(local_path(output, "--output"), text.encode())


def _dockerfile(config: str | None = None, set: Sequence[str] = (), **_: Any) -> str:
    """Return the Dockerfile for the config, if there is one; the other flags are for jobs."""
    if config is None:
        return render_dockerfile(DockerfileSection(), made_by())
    run = read_config(config, set).config
    extras = ["tls"] if run.communication.encryption else []
    return render_dockerfile(run.engine.dockerfile, made_by(), extras)


if __name__ == "__main__":
    from absl import flags

    from tfdist.cli._jobs import define_flags
    from tfdist.cli._run_command import run

    define_flags(flags)
    flags.DEFINE_string("output", None, "The file to write; standard output by default.", short_name="o")
    run(main, takes_words=True)
