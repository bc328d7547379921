"""The sections `engine.vertex` and `engine.sagemaker` of the config."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tfdist.trainer.sections.values import Positive

__all__ = ["SageMakerSection", "VertexSection"]

_SHARING = (
    "Whether the tasks get a secret, which submit writes to the bucket; without it they use TensorFlow's own"
    " communication."
)


class VertexSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the CustomJob of `tfdist submit vertex`."""

    project: Annotated[str, Meta(description="The project of Google Cloud.")] = ""
    region: Annotated[str, Meta(description="The region, such as us-central1.")] = ""
    image: Annotated[str, Meta(description="The container image, with tfdist installed.")] = ""
    output: Annotated[
        str, Meta(description="A folder such as gs://bucket/runs, in which each job gets a folder.")
    ] = ""
    machine_type: Annotated[
        str | dict[str, str], Meta(description="The machine of each task, or a mapping of role to machine.")
    ] = "n1-standard-4"
    accelerator_type: Annotated[
        str | dict[str, str],
        Meta(description="The accelerator of each task, such as NVIDIA_TESLA_T4, or a mapping by role."),
    ] = ""
    accelerator_count: Annotated[
        Positive | dict[str, Positive], Meta(description="How many each task has, or a mapping by role.")
    ] = 1
    disk_gb: Annotated[Positive, Meta(description="The size of the boot disk of each task.")] = 100
    service_account: Annotated[str, Meta(description="The service account of the tasks.")] = ""
    network: Annotated[str, Meta(description="The full name of the network to which the job is peered.")] = ""
    tensorboard: Annotated[
        str, Meta(description="The full name of a Vertex AI TensorBoard, which shows the summaries.")
    ] = ""
    timeout: Annotated[
        Positive | None, Meta(description="The most seconds that the job may take; 7 days by default.")
    ] = None
    spot: Annotated[bool, Meta(description="Whether the tasks run on Spot VMs.")] = False
    restart_job: Annotated[
        bool | None,
        Meta(
            description="Whether a task that is started again restarts the job; by default, unless workers of"
            " parameter_server come and go."
        ),
    ] = None
    secret: Annotated[bool, Meta(description=_SHARING)] = True
    env: Annotated[dict[str, str], Meta(description="More environment variables of the tasks.")] = {}
    labels: Annotated[dict[str, str], Meta(description="Labels of the job.")] = {}
    request: Annotated[
        dict[str, Any],
        Meta(description="More fields of the CustomJob, such as {jobSpec: {enableWebAccess: true}}."),
    ] = {}


class SageMakerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the training job of `tfdist submit sagemaker`."""

    region: Annotated[str, Meta(description="The region; by default that of the AWS configuration.")] = ""
    image: Annotated[str, Meta(description="The container image in ECR, with tfdist installed.")] = ""
    role: Annotated[str, Meta(description="The ARN of the role that the job assumes.")] = ""
    output: Annotated[
        str, Meta(description="A folder such as s3://bucket/runs, in which each job gets a folder.")
    ] = ""
    instance_type: Annotated[
        str | dict[str, str],
        Meta(description="The instance of each task, or a mapping of role to instance."),
    ] = "ml.m5.xlarge"
    volume_gb: Annotated[Positive, Meta(description="The size of the volume of each instance.")] = 50
    timeout: Annotated[Positive, Meta(description="The most seconds that the job may train.")] = 86400
    spot: Annotated[bool, Meta(description="Whether the instances are managed spot instances.")] = False
    wait: Annotated[
        Positive | None,
        Meta(
            description="With spot, the most seconds for waiting and training; twice the timeout by default."
        ),
    ] = None
    retries: Annotated[
        int, Meta(ge=0, le=30, description="How often SageMaker starts the job again after its own errors.")
    ] = 3
    restarts: Annotated[
        int, Meta(ge=0, description="How often each task is started again after it ended with 138.")
    ] = 10
    channels: Annotated[
        dict[str, str],
        Meta(description="Data from S3 by name: {train: s3://bucket/data} is at /opt/ml/input/data/train."),
    ] = {}
    subnets: Annotated[list[str], Meta(description="The subnets of the VPC of the tasks.")] = []
    security_groups: Annotated[list[str], Meta(description="The security groups of the tasks.")] = []
    encrypt_traffic: Annotated[
        bool, Meta(description="Whether SageMaker encrypts the traffic between the tasks.")
    ] = False
    network_isolation: Annotated[bool, Meta(description="Whether the tasks reach only each other.")] = False
    secret: Annotated[bool, Meta(description=_SHARING)] = True
    env: Annotated[dict[str, str], Meta(description="More environment variables of the tasks.")] = {}
    tags: Annotated[dict[str, str], Meta(description="Tags of the job.")] = {}
    request: Annotated[
        dict[str, Any],
        Meta(description="More fields of the request, such as {OutputDataConfig: {KmsKeyId: …}}."),
    ] = {}
