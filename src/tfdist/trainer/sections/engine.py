"""The `engine:` section of the config: what an engine alone needs to know."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tfdist.trainer.sections.cloud import SageMakerSection, VertexSection
from tfdist.trainer.sections.containers import ComposeSection, DockerfileSection
from tfdist.trainer.sections.kubernetes import KubernetesSection
from tfdist.trainer.sections.ray import RaySection
from tfdist.trainer.sections.slurm_and_ssh import SlurmSection, SshSection

__all__ = ["EngineSection"]


class EngineSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the engines that run the job on other machines."""

    compose: ComposeSection = ComposeSection()
    dockerfile: DockerfileSection = DockerfileSection()
    kubernetes: KubernetesSection = KubernetesSection()
    ray: RaySection = RaySection()
    slurm: SlurmSection = SlurmSection()
    ssh: SshSection = SshSection()
    vertex: VertexSection = VertexSection()
    sagemaker: SageMakerSection = SageMakerSection()
    plugins: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="The sections of engines of other packages, by their names."),
    ] = {}  # msgspec copies it
