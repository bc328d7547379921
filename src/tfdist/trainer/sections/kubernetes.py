"""The section `engine.kubernetes` of the config, for all engines whose tasks are pods."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["KubernetesSection", "ResourcesSection"]


class ResourcesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request the resources of each task of a role on Kubernetes."""

    cpu: Annotated[str | int | float | None, Meta(description="Cores, such as 4 or 500m.")] = None
    memory: Annotated[str | None, Meta(description="Memory, such as 8Gi; it is the limit too.")] = None
    gpus: Annotated[Annotated[int, Meta(ge=0)], Meta(description="Whole GPUs.")] = 0


class VolumeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Claim the volume on Kubernetes that all tasks share: runs, prepared data, downloads."""

    claim: Annotated[str, Meta(description="The name of the PersistentVolumeClaim; jobs share it.")] = (
        "tfdist"
    )
    size: Annotated[
        str | None, Meta(description="The size that is claimed; with null, the claim must exist already.")
    ] = "10Gi"
    storage_class: Annotated[
        str | None, Meta(description="The storage class; by default that of the cluster.")
    ] = None
    access_mode: Annotated[
        Literal["ReadWriteMany", "ReadWriteOnce"],
        Meta(description="ReadWriteMany for tasks on several nodes; ReadWriteOnce is enough on one node."),
    ] = "ReadWriteMany"


class TolerationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tolerate a taint of nodes on Kubernetes."""

    key: str
    operator: Literal["Equal", "Exists"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the pods of `tfdist submit kubernetes`, `jobset`, `tfjob` and `trainjob`."""

    image: Annotated[
        str | None, Meta(description="The image, with Python, tfdist and your own modules and scripts.")
    ] = None
    namespace: Annotated[
        str, Meta(pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", description="The namespace of the job.")
    ] = "default"
    resources: Annotated[
        dict[str, ResourcesSection],
        Meta(description="Resources by role, such as worker: {gpus: 1}; all is for the roles not named."),
    ] = {}  # msgspec copies it
    gpu_resource: Annotated[str, Meta(description="The name of GPUs as a resource.")] = "nvidia.com/gpu"
    volume: VolumeSection = VolumeSection()
    env: Annotated[dict[str, str], Meta(description="More variables of the tasks' environment.")] = {}
    node_selector: Annotated[dict[str, str], Meta(description="Labels that a task's node must have.")] = {}
    tolerations: Annotated[list[TolerationSection], Meta(description="Taints that nodes may have.")] = []
    service_account: Annotated[
        str | None, Meta(description="The service account of the pods; they get its token then.")
    ] = None
    image_pull_secrets: Annotated[
        list[str], Meta(description="Names of Secrets with which the image is pulled.")
    ] = []
    user: Annotated[int, Meta(ge=1, description="The user and group, by number, of the tasks.")] = 1000
    restarts: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="How often a task, or the whole job, starts again after it has ended with 138."),
    ] = 3
