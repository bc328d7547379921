"""Print what a scheduler reads to run a config, or a script of your own, on its machines.

    tfdist render slurm --config cifar.yaml --sbatch partition=gpu --sbatch time=60
    tfdist render slurm --workers 4 --ps 2 -o job.sh -- python my_script.py
    tfdist render dockerfile

The first lines of the output say what made it, and how to submit it. The JSON for vertex and sagemaker has no
such lines.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tfdist._utils.check_and_expand_paths import local_path
from tfdist._utils.write_files import write_output
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.cli._job_from_command_line import made_by, options_of, requested
from tfdist.engines.compose.dockerfile import render_dockerfile
from tfdist.engines.options_into_section import with_options
from tfdist.errors import ConfigError, shown
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.engine import DockerfileSection


def main(
    command: Sequence[str],
    output: Annotated[
        str | None, Flag("The file to write; standard output by default.", short_name="o")
    ] = None,
    **flags: Any,
) -> None:
    """Print what the engine reads, or write it to a file; `requested` takes the other flags."""
    path = None if output is None else _file(output)
    is_private = False
    if list(command) == ["dockerfile"]:
        text = _dockerfile(**flags)
    else:
        engine, job, options = requested(command, **flags)
        text = engine.render(job, options)
        # A config may have secrets too.
        is_private = getattr(engine, "renders_secret", False) or job.config is not None
    if path is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())  # whatever the encoding of the terminal: programs read it
    else:
        write_output(path, text.encode(), is_private=is_private)


def _file(output: str) -> Path:
    path = local_path(output, "--output")
    if path.is_dir():
        raise ConfigError("--output", f"{shown(output)} is a folder", remedy="Name a file in it")
    return path


def _dockerfile(
    config: str | None = None, set: Sequence[str] = (), option: Sequence[str] = (), **others: Any
) -> str:
    """Return the Dockerfile for the config, if there is one."""
    for name, value in others.items():
        if value:
            raise ConfigError(f"--{name}", "is for a job, and a Dockerfile has none", remedy="Leave it out")
    if config is None and set:
        raise ConfigError("--set", "changes a config, but --config is missing", remedy="Add --config FILE")
    run = None if config is None else read_config(config, set).config
    section = with_options(run.engine.dockerfile if run else DockerfileSection(), options_of(option))
    extras = ["tls"] if run and run.communication.encryption else []
    extras += ["metrics"] if run and run.metrics.prometheus_port is not None else []
    return render_dockerfile(section, made_by(), extras)


if __name__ == "__main__":
    run(main, flags_from=requested, takes_words=True)
