"""Connect Horovod's tasks without its launcher, which would reach the other machines by ssh."""

import json
import os
import time
from pathlib import Path

__all__ = ["connect"]


def connect(folder: Path) -> None:
    """Set the variables that Horovod's launcher sets; the first task serves the others' addresses.

    Args:
        folder: A folder that all tasks see.
    """
    config = json.loads(os.environ["TF_CONFIG"])
    rank = config["task"]["index"]
    hosts = [address.rpartition(":")[0] for address in config["cluster"]["worker"]]
    if len(hosts) < 2:
        return
    file = folder / "port"
    if rank == 0:
        part = folder / "port.part"
        part.write_text(str(_serve(hosts)))
        part.rename(file)
    while not file.exists():
        time.sleep(0.1)
    ranks = {"RANK": rank, "CROSS_RANK": rank, "LOCAL_RANK": 0}
    sizes = {"SIZE": len(hosts), "CROSS_SIZE": len(hosts), "LOCAL_SIZE": 1}
    gloo = {"GLOO_RENDEZVOUS_ADDR": hosts[0], "GLOO_RENDEZVOUS_PORT": file.read_text(), "GLOO_IFACE": "eth0"}
    kind = {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "HOSTNAME": hosts[rank]}
    for name, value in {**ranks, **sizes, **gloo, **kind}.items():
        os.environ[f"HOROVOD_{name}"] = str(value)


def _serve(hosts: list[str]) -> int:
    """Start the server of addresses; return its port."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init([SlotInfo(host, rank, 0, rank, len(hosts), 1, len(hosts)) for rank, host in enumerate(hosts)])
    return port
