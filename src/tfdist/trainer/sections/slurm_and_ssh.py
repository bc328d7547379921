"""The sections `engine.slurm` and `engine.ssh`."""

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["SlurmSection", "SshSection"]


class SlurmSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the job of `tfdist submit slurm`."""

    sbatch: Annotated[
        dict[str, str | int],
        Meta(
            description="Options of sbatch by their long names, such as partition: gpu. worker:partition is"
            " for the tasks of that role alone, which makes the job heterogeneous."
        ),
    ] = {}  # msgspec copies it
    srun: Annotated[
        dict[str, str | int],
        Meta(
            description="Options of the srun that starts the tasks, by their long names, such as"
            " container-image: my.sqsh where the site has containers."
        ),
    ] = {}
    python: Annotated[
        str | None,
        Meta(description="The interpreter of the tasks, such as python3 of a container; that of submit."),
    ] = None
    setup: Annotated[
        list[str],
        Meta(description="Lines of the script before the tasks start, such as module load cuda."),
    ] = []
    restarts: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(
            description="How often the job asks to be started again after a task was lost or has saved its"
            " work, without a new checkpoint in between."
        ),
    ] = 10

    def sbatch_options(self) -> dict[str, str]:
        """Return the options as texts."""
        return {name: str(value) for name, value in self.sbatch.items()}


class SshSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the hosts of `tfdist submit ssh`."""

    hosts: Annotated[
        list[str] | dict[str, list[str]],
        Meta(
            description="The hosts, as ssh names them, to which the tasks are dealt in turn; or those of each"
            " role, such as ps: [node1]. A host that is named twice gets twice as many tasks."
        ),
    ] = []  # msgspec copies it
    python: Annotated[
        str | None,
        Meta(description="The interpreter on the hosts; by default, the path of the one that submits."),
    ] = None
    folder: Annotated[
        str | None,
        Meta(description="The folder on the hosts in which tasks start; by default, the one of here."),
    ] = None
    options: Annotated[
        dict[str, str | int],
        Meta(description="Options of ssh by the names of ssh_config, such as Port: 2022."),
    ] = {}
    setup: Annotated[
        list[str],
        Meta(description="Lines for the shell of each host before a task starts. They are no secret there."),
    ] = []
    restarts: Annotated[
        int, Meta(ge=0, description="How often lost tasks start again without a new checkpoint in between.")
    ] = 3
