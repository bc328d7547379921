"""Read the cluster from environment variables: one small class for each scheduler.

Schedulers that know only hosts and ranks (all but TF_CONFIG and CLUSTER_SPEC) need the number of tasks of
each role; without it, every task is a worker. tfdist assigns ranks to roles in alphabetical order (chief,
evaluator, ps, worker), as TensorFlow's SlurmClusterResolver does.
"""

from tfdist.cluster.schedulers.kubernetes import Kubernetes
from tfdist.cluster.schedulers.open_mpi import OpenMPI
from tfdist.cluster.schedulers.sagemaker import SageMaker
from tfdist.cluster.schedulers.scheduler import Scheduler
from tfdist.cluster.schedulers.skypilot import SkyPilot
from tfdist.cluster.schedulers.slurm import Slurm
from tfdist.cluster.schedulers.tf_config_and_vertex import TfConfig, VertexAI

__all__ = ["PRECEDENCE"]

# tfdist uses the first that is present; the others must not contradict it. Variables that state the whole
# cluster come first. Open MPI comes before Slurm, because mpirun starts its helpers through srun, which then
# describes the helpers.
PRECEDENCE: tuple[type[Scheduler], ...] = (
    TfConfig,
    VertexAI,
    SageMaker,
    Kubernetes,
    OpenMPI,
    Slurm,
    SkyPilot,
)
