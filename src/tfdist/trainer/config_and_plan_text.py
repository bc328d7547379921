"""Write a config and the plan of its cluster as text."""

from collections.abc import Sequence

import msgspec
import yaml

from tfdist.cluster.addresses import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.trainer.config import Config, Settings

__all__ = ["config_text", "plan_text"]


def config_text(config: Config) -> str:
    """Return a config as YAML with all of its keys, also those at their defaults."""
    text: str = yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False, default_flow_style=None)
    return text


def plan_text(cluster: ClusterConfig, tasks: Sequence[Task], settings: Settings) -> str:
    """Return, as text, the host and TF_CONFIG of some tasks, and the commands that start them."""
    if not cluster:
        return f"One process, no TF_CONFIG:\n\n    {settings.command()}"
    lines = [f"{len(cluster.tasks())} tasks, from {cluster.source.at()}."]
    if cluster.is_on_ports_of_ours:
        lines += [
            "All on this machine, on ports that tfdist chooses at each start. One command starts them all:"
        ]
        lines += ["", f"    {settings.command()}"]
    for task in tasks:
        host, port = split_address(cluster.address(task))
        lines += ["", f"{task} on {host}, port {port}", f"    TF_CONFIG={cluster.tf_config_json(*task)}"]
        if not cluster.is_on_ports_of_ours:
            lines.append(f"    {settings.command(task)}")
    return "\n".join(lines)
