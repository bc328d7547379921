"""The `engine:` section of the config: what an engine alone needs to know."""

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["EngineSection", "SlurmSection"]


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
        Meta(description="How often the job asks to be started again after it has ended with 138."),
    ] = 10

    def sbatch_options(self) -> dict[str, str]:
        """Return the options as texts."""
        return {name: str(value) for name, value in self.sbatch.items()}


class EngineSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the engines that run the job on other machines."""

    slurm: SlurmSection = SlurmSection()
