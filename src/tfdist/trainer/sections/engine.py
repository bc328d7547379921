"""The section `engine` of the config: what each engine that runs the job on other machines needs to know."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tfdist._utils.shared_config_types import AboveZero, NotNegative, Positive, doc

Placement = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
_SHARING = (
    "Whether the tasks get a secret, which submit writes to the bucket; without it they use TensorFlow's own"
    " communication."
)


class ResourcesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request the resources of each task of a role on Kubernetes."""

    cpu: Annotated[str | int | float | None, doc("Cores, such as 4 or 500m.")] = None
    memory: Annotated[str | None, doc("Memory, such as 8Gi; it is the limit too.")] = None
    gpus: Annotated[NotNegative | None, doc("Whole GPUs.")] = None


class VolumeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Claim the volume on Kubernetes that all tasks share: runs, prepared data, downloads."""

    claim: Annotated[str, doc("The name of the PersistentVolumeClaim; jobs share it.")] = "tfdist"
    size: Annotated[str | None, doc("The size that is claimed; with null, the claim must exist already.")] = (
        "10Gi"
    )
    storage_class: Annotated[str | None, doc("The storage class; by default that of the cluster.")] = None
    access_mode: Annotated[
        Literal["ReadWriteMany", "ReadWriteOnce"],
        doc("ReadWriteMany for tasks on several nodes; ReadWriteOnce is enough on one node."),
    ] = "ReadWriteMany"


class TolerationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tolerate a taint of nodes on Kubernetes."""

    key: str
    operator: Literal["Equal", "Exists"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the pods of `tfdist submit kubernetes`, `jobset`, `tfjob` and `trainjob`."""

    image: Annotated[str | None, doc("The image, with Python, tfdist and your own modules and scripts.")] = (
        None
    )
    namespace: Annotated[str, doc("The namespace of the job.", pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")] = (
        "default"
    )
    resources: Annotated[
        dict[str, ResourcesSection],
        doc("Resources by role, such as worker: {gpus: 1}; all has those that a role does not name."),
    ] = {}
    gpu_resource: Annotated[str, doc("The name of GPUs as a resource.")] = "nvidia.com/gpu"
    volume: VolumeSection = VolumeSection()
    env: Annotated[dict[str, str], doc("More variables of the tasks' environment.")] = {}
    node_selector: Annotated[dict[str, str], doc("Labels that a task's node must have.")] = {}
    tolerations: Annotated[list[TolerationSection], doc("Taints that nodes may have.")] = []
    service_account: Annotated[
        str | None, doc("The service account of the pods; they get its token then.")
    ] = None
    image_pull_secrets: Annotated[list[str], doc("Names of Secrets with which the image is pulled.")] = []
    user: Annotated[int, doc("The user and group, by number, of the tasks.", ge=1)] = 1000
    labels: Annotated[
        dict[str, str], doc("More labels of all objects, such as kueue.x-k8s.io/queue-name: train.")
    ] = {}
    pod: Annotated[
        dict[str, Any], doc("More fields of the spec of all pods, such as {priorityClassName: high}.")
    ] = {}
    container: Annotated[
        dict[str, Any],
        doc(
            "More fields of the container of all pods, such as {imagePullPolicy: Always}. Lists, such as"
            " volumeMounts, are added to those of tfdist, as in pod."
        ),
    ] = {}
    restarts: Annotated[
        int, doc("How often a lost task starts again without a new checkpoint in between.", ge=0)
    ] = 3


class RaySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the job of `tfdist submit ray`."""

    address: Annotated[
        str | None,
        doc("The address of the head's dashboard, such as http://head:8265; by default RAY_ADDRESS."),
    ] = None
    resources: Annotated[
        dict[str, dict[str, Annotated[float, Meta(ge=0)]]],
        doc(
            "What each task of a role needs, by Ray's names, such as worker: {CPU: 8, GPU: 1}. By default one"
            " CPU. A task uses as many threads as it has CPUs."
        ),
    ] = {}
    placement: Annotated[Placement, doc("Ray's strategy of placement: on few nodes or on many.")] = "PACK"
    max_failures: Annotated[
        int, doc("How often lost tasks are started again without a new checkpoint in between.", ge=0)
    ] = 3
    start_timeout: Annotated[
        AboveZero | None,
        doc(
            "Seconds to wait for the resources of all tasks, at the start and after a node was lost; by"
            " default strategy.start_timeout, or 600."
        ),
    ] = None
    runtime_env: Annotated[
        dict[str, Any], doc("Ray's runtime environment, such as working_dir: . or pip: [tfdist].")
    ] = {}


class ComposeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the containers of `tfdist submit compose`, one for each task."""

    image: Annotated[
        str, doc("The image of the tasks, which has tfdist; `tfdist render dockerfile` makes one.")
    ] = "tfdist"
    code: Annotated[
        Literal["mount", "image"],
        doc(
            "Where the code of scripts and of my_package.my_module is: in the current folder, which the"
            " containers mount at the same path, or in the image."
        ),
    ] = "mount"
    runs: Annotated[
        str | None, doc("A named volume for the runs; by default, a folder of this machine: --run_dir.")
    ] = None
    cache: Annotated[
        str | None,
        doc(
            "A named volume for prepared data; by default, the cache folder of this machine:"
            " TFDIST_CACHE_DIR."
        ),
    ] = None
    data: Annotated[
        str | None,
        doc(
            "A named volume or a folder with the data sets of tensorflow-datasets; by default, TFDS_DATA_DIR"
            " or ~/tensorflow_datasets of this machine."
        ),
    ] = None
    volumes: Annotated[
        list[str], doc("More volumes of each container, such as /data/images:/data/images:ro.")
    ] = []
    environment: Annotated[dict[str, str | int | float], doc("More variables of each container.")] = {}
    gpus: Annotated[
        dict[str, NotNegative],
        doc("How many GPUs of the machine each task of a role has to itself: {worker: 1}."),
    ] = {}
    internal: Annotated[
        bool | None,
        doc(
            "Whether the tasks reach nothing but each other; with false they can download. True by default;"
            " false if the run is in an object store."
        ),
    ] = None
    restarts: Annotated[
        int, doc("How often a lost task starts again without a new checkpoint in between.", ge=0)
    ] = 3
    stop_grace_period: Annotated[
        int, doc("Seconds that a task has to save its work when it is told to end.", ge=1)
    ] = 60
    service: Annotated[
        dict[str, Any],
        doc(
            "Any other keys of a service of Compose, such as mem_limit: 8g. worker:mem_limit is for the tasks"
            " of that role alone."
        ),
    ] = {}


class DockerfileSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the image of `tfdist render dockerfile`."""

    base: Annotated[
        str | None, doc("The image to begin with, which has Python; by default, Debian's of this Python.")
    ] = None
    tfdist: Annotated[
        str | None,
        doc(
            "What pip installs as tfdist: a requirement, or the name of a wheel in the folder of the"
            " Dockerfile; by default, this version."
        ),
    ] = None
    packages: Annotated[list[str], doc("More packages for pip, such as matplotlib==3.10.0.")] = []
    copy: Annotated[list[str], doc("Files and folders of your code that the image contains, in /app.")] = []


class SlurmSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the job of `tfdist submit slurm`."""

    sbatch: Annotated[
        dict[str, str | int],
        doc(
            "Options of sbatch by their long names, such as partition: gpu. worker:partition is for the tasks"
            " of that role alone, which makes the job heterogeneous."
        ),
    ] = {}
    srun: Annotated[
        dict[str, str | int],
        doc(
            "Options of the srun that starts the tasks, by their long names, such as container-image: my.sqsh"
            " where the site has containers."
        ),
    ] = {}
    python: Annotated[
        str | None,
        doc(
            "The interpreter of the tasks, such as python3 of a container; by default, the path of the one"
            " that submits."
        ),
    ] = None
    setup: Annotated[
        list[str], doc("Lines of the script before the tasks start, such as module load cuda.")
    ] = []
    restarts: Annotated[
        int,
        doc(
            "How often the job asks to be started again after a task was lost or has saved its work, without"
            " a new checkpoint in between.",
            ge=0,
        ),
    ] = 10

    def sbatch_options(self) -> dict[str, str]:
        """Return the options as texts."""
        return {name: str(value) for name, value in self.sbatch.items()}


class SshSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the hosts of `tfdist submit ssh`."""

    hosts: Annotated[
        list[str] | dict[str, list[str]],
        doc(
            "The hosts, as ssh names them, to which the tasks are dealt in turn; or those of each role, such"
            " as ps: [node1]. A host that is named twice gets twice as many tasks."
        ),
    ] = []
    python: Annotated[
        str | None, doc("The interpreter on the hosts; by default, the path of the one that submits.")
    ] = None
    folder: Annotated[
        str | None,
        doc("The folder on the hosts in which tasks start; by default, the path of the current folder."),
    ] = None
    options: Annotated[
        dict[str, str | int], doc("Options of ssh by the names of ssh_config, such as Port: 2022.")
    ] = {}
    setup: Annotated[
        list[str],
        doc(
            "Lines for the shell of each host before a task starts. Other users of the host can see them, so"
            " they must contain no secret."
        ),
    ] = []
    restarts: Annotated[
        int, doc("How often lost tasks start again without a new checkpoint in between.", ge=0)
    ] = 3
    grace: Annotated[
        AboveZero | None,
        doc("Seconds from SIGTERM to SIGKILL, in which a task saves; by default, those of launch.grace."),
    ] = None


class VertexSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the CustomJob of `tfdist submit vertex`."""

    project: Annotated[str, doc("The project of Google Cloud.")] = ""
    region: Annotated[str, doc("The region, such as us-central1.")] = ""
    image: Annotated[str, doc("The container image, with tfdist installed.")] = ""
    output: Annotated[str, doc("A folder such as gs://bucket/runs, in which each job gets a folder.")] = ""
    machine_type: Annotated[
        str | dict[str, str], doc("The machine of each task, or a mapping of role to machine.")
    ] = "n1-standard-4"
    accelerator_type: Annotated[
        str | dict[str, str],
        doc("The accelerator of each task, such as NVIDIA_TESLA_T4, or a mapping by role."),
    ] = ""
    accelerator_count: Annotated[
        Positive | dict[str, Positive], doc("How many each task has, or a mapping by role.")
    ] = 1
    disk_gb: Annotated[Positive, doc("The size of the boot disk of each task.")] = 100
    service_account: Annotated[str, doc("The service account of the tasks.")] = ""
    network: Annotated[str, doc("The full name of the network to which the job is peered.")] = ""
    tensorboard: Annotated[
        str, doc("The full name of a Vertex AI TensorBoard, which shows the summaries.")
    ] = ""
    timeout: Annotated[Positive | None, doc("The most seconds that the job may take; 7 days by default.")] = (
        None
    )
    spot: Annotated[bool, doc("Whether the tasks run on Spot VMs.")] = False
    restart_job: Annotated[
        bool | None,
        doc(
            "Whether a task that is started again restarts the job; by default, unless workers of"
            " parameter_server come and go."
        ),
    ] = None
    secret: Annotated[bool, doc(_SHARING)] = True
    env: Annotated[dict[str, str], doc("More environment variables of the tasks.")] = {}
    labels: Annotated[dict[str, str], doc("Labels of the job.")] = {}
    request: Annotated[
        dict[str, Any], doc("More fields of the CustomJob, such as {jobSpec: {enableWebAccess: true}}.")
    ] = {}


class SageMakerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the training job of `tfdist submit sagemaker`."""

    region: Annotated[str, doc("The region; by default that of the AWS configuration.")] = ""
    image: Annotated[str, doc("The container image in ECR, with tfdist installed.")] = ""
    role: Annotated[str, doc("The ARN of the role that the job assumes.")] = ""
    output: Annotated[str, doc("A folder such as s3://bucket/runs, in which each job gets a folder.")] = ""
    instance_type: Annotated[
        str | dict[str, str], doc("The instance of each task, or a mapping of role to instance.")
    ] = "ml.m5.xlarge"
    volume_gb: Annotated[Positive, doc("The size of the volume of each instance.")] = 50
    timeout: Annotated[Positive, doc("The most seconds that the job may train.")] = 86400
    spot: Annotated[bool, doc("Whether the instances are managed spot instances.")] = False
    wait: Annotated[
        Positive | None,
        doc("With spot, the most seconds for waiting and training; twice the timeout by default."),
    ] = None
    retries: Annotated[
        int, doc("How often SageMaker starts the job again after its own errors.", ge=0, le=30)
    ] = 3
    restarts: Annotated[
        int,
        doc(
            "How often lost tasks are started again without a new checkpoint in between.",
            ge=0,
        ),
    ] = 10
    channels: Annotated[
        dict[str, str], doc("Data from S3 by name: {train: s3://bucket/data} is at /opt/ml/input/data/train.")
    ] = {}
    subnets: Annotated[list[str], doc("The subnets of the VPC of the tasks.")] = []
    security_groups: Annotated[list[str], doc("The security groups of the tasks.")] = []
    encrypt_traffic: Annotated[bool, doc("Whether SageMaker encrypts the traffic between the tasks.")] = False
    network_isolation: Annotated[bool, doc("Whether the tasks reach only each other.")] = False
    secret: Annotated[bool, doc(_SHARING)] = True
    env: Annotated[dict[str, str], doc("More environment variables of the tasks.")] = {}
    tags: Annotated[dict[str, str], doc("Tags of the job.")] = {}
    request: Annotated[
        dict[str, Any], doc("More fields of the request, such as {OutputDataConfig: {KmsKeyId: …}}.")
    ] = {}


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
        dict[str, dict[str, Any]], doc("The sections of engines of other packages, by their names.")
    ] = {}
