"""Show a config and the plan of its cluster as text."""

from collections.abc import Sequence

import msgspec
import yaml

from tfdist.addresses import split_address
from tfdist.cluster import ClusterConfig, Task
from tfdist.config import Config, Settings

__all__ = ["config_text", "plan_text"]


def config_text(config: Config) -> str:
    """Write a config as the YAML file that says everything, defaults too."""
    text: str = yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False, default_flow_style=None)
    return text


def plan_text(cluster: ClusterConfig, tasks: Sequence[Task], settings: Settings) -> str:
    """Write for some tasks of a cluster where each runs, its TF_CONFIG, and the command that starts it."""
    if not cluster:
        return f"One process, no TF_CONFIG:\n\n    {settings.command()}"
    lines = [f"{len(cluster.tasks())} tasks, from {cluster.source.at()}."]
    if cluster.is_on_ports_of_ours:
        lines += [
            "All on this machine, on ports that are chosen anew at each start. One command starts them all:"
        ]
        lines += ["", f"    {settings.command()}"]
    for task in tasks:
        host, port = split_address(cluster.address(task))
        lines += ["", f"{task} on {host}, port {port}", f"    TF_CONFIG={cluster.tf_config_json(*task)}"]
        if not cluster.is_on_ports_of_ours:
            lines.append(f"    {settings.command(task)}")
    return "\n".join(lines)
