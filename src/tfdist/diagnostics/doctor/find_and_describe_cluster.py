"""Find the cluster that the doctor checks, in a config or the environment, and describe it in a line."""

import os
from collections.abc import Mapping

from tfdist._utils.read_yaml_and_json import read_yaml
from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.doctor.finding import CLUSTER, Finding, Findings
from tfdist.errors import ConfigError
from tfdist.trainer.config import Settings

_find = Findings(CLUSTER)


def find_cluster(
    settings: Settings | None, task: str | None, environ: Mapping[str, str] = os.environ
) -> ClusterConfig:
    """Return the cluster of a config and of the scheduler's variables, or of the latter alone.

    Raises:
        ConfigError: They are wrong, or contradict each other.
    """
    if settings is not None:
        return settings.find_cluster(task=task, environ=environ)
    if task is not None and not ClusterConfig.from_environment(environ=environ):
        problem = "names a task, but there is no cluster"
        raise ConfigError("--task", problem, remedy="Name a file by --config, or set TF_CONFIG")
    nothing = read_yaml(b"cluster: {}", "the environment").part("cluster")
    return ClusterConfig.from_section(nothing, task=task, environ=environ)


def describe(cluster: ClusterConfig) -> Finding:
    """Return the finding that says which tasks there are, and which is this one."""
    if not cluster:
        return _find.ok("tasks", "no cluster: this is one process")
    sizes = {task.type: cluster.size(task.type) for task in cluster.tasks()}
    found = f"{' + '.join(f'{size} {role}' for role, size in sizes.items())}, from {cluster.source.at()}"
    if cluster.is_on_ports_of_ours:
        return _find.ok("tasks", f"{found}; the launcher starts them on this machine, on free ports")
    if cluster.task is None:
        remedy = "Add --task, such as --task worker:0, to check this host's own address and port"
        return _find.warning("tasks", f"{found}; nothing says which of them this host runs", remedy)
    return _find.ok("tasks", f"{found}; this is {cluster.with_address(cluster.task)}")
