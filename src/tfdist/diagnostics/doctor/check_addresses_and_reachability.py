"""Check a cluster from one of its hosts: names, this task's own address and port, and the other tasks."""

import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping

from tfdist.cluster.addresses_and_free_ports import is_free, split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.background_threads import each_in_time
from tfdist.coordination.only_peers import ONLY_PEERS
from tfdist.diagnostics.doctor.finding import CLUSTER, Finding, Findings
from tfdist.diagnostics.doctor.look_up_and_connect import (
    Names,
    Reached,
    is_local,
    is_loopback,
    look_up,
    own_address,
    own_addresses,
    reach,
)

_SECONDS_TO_REACH = 10.0
_MOST_LISTED = 3
_FIREWALL = (
    "Start that host, or let the firewalls and security groups between the two hosts pass TCP to the port"
)
_find = Findings(CLUSTER)


def check_addresses(cluster: ClusterConfig) -> Iterator[Finding]:
    """Yield what is found about the names, and about this task's own address and port."""
    hosts = {task: split_address(cluster.address(task))[0] for task in cluster.tasks()}
    names = look_up(hosts.values())
    yield from _unknown_names(cluster, hosts, names)
    if cluster.task in hosts:
        others = [names[host] for task, host in hosts.items() if task != cluster.task]
        own = names[hosts[cluster.task]]
        if own.addresses:
            yield _own_address(cluster, cluster.task, own, others)
        yield _own_port(cluster, cluster.task)
        yield check_access(own_addresses(), os.environ)


def check_access(addresses: Iterable[str], environ: Mapping[str, str]) -> Finding:
    """Return the finding about who can reach TensorFlow's servers on a host with these addresses."""
    if environ.get(ONLY_PEERS) == "1":
        return _find.ok("access", f"{ONLY_PEERS}=1: only hosts of the cluster reach the port of a task")
    public = [address for address in addresses if ipaddress.ip_address(address).is_global]
    what = "can run code here: TensorFlow's servers listen on all interfaces and have no authentication"
    if not public:
        return _find.ok("access", f"everybody in this host's networks {what}; its addresses are private")
    listed = ", ".join(public[:_MOST_LISTED]) + (" and others" if len(public) > _MOST_LISTED else "")
    found = f"everybody who reaches {listed} {what}"
    return _find.warning("access", found, f"Set {ONLY_PEERS}=1, or close the ports to others by a firewall")


def reach_all(cluster: ClusterConfig) -> Iterator[Finding]:
    """Yield for each other task with a known name whether its port can be reached from here."""
    names = look_up(split_address(cluster.address(task))[0] for task in cluster.tasks())
    known = [task for task in cluster.tasks() if names[split_address(cluster.address(task))[0]].addresses]
    others = [task for task in known if task != cluster.task]
    seconds = _SECONDS_TO_REACH * (1 + len(others) // 64)
    reached = each_in_time(lambda task: reach(cluster.address(task)), others, seconds)
    for task in others:
        yield of_reached(cluster, task, reached.get(task, Reached(problem=f"no answer in {seconds:g} s")))


def of_reached(cluster: ClusterConfig, task: Task, reached: Reached) -> Finding:
    """Return the finding for what came of a connection to another task."""
    address = cluster.address(task)
    if reached.is_open:
        return _find.ok(str(task), f"{address}: something listens at the port")
    if reached.is_refused:
        return _find.ok(str(task), f"{address}: the host answers; nothing listens at the port yet")
    remedy = f"Correct {cluster.source.at(task.type, task.index)}" if reached.is_unknown else _FIREWALL
    return _find.failed(str(task), f"{address} cannot be reached: {reached.problem}", remedy)


def _unknown_names(
    cluster: ClusterConfig, hosts: Mapping[Task, str], names: Mapping[str, Names]
) -> Iterator[Finding]:
    unknown = {host: known.problem for host, known in names.items() if known.problem}
    if not unknown:
        yield _find.ok("names", f"the names of all hosts are known here ({len(names)})")
    for host, problem in unknown.items():
        first = next(task for task, name in hosts.items() if name == host)
        remedy = (
            f"Correct {cluster.source.at(first.type, first.index)}, or add the name to the DNS or /etc/hosts"
        )
        yield _find.failed("names", f"{host} ({first}): {problem}", remedy)


def _own_address(cluster: ClusterConfig, task: Task, own: Names, others: list[Names]) -> Finding:
    where = cluster.source.at(task.type, task.index)
    listed = ", ".join(own.addresses)
    local = [address for address in own.addresses if is_local(address)]
    if not local:
        here = ", ".join(filter(None, (socket.gethostname(), own_address())))
        found = f"{where} is {listed}, which is no address of this host ({here})"
        return _find.failed("own address", found, f"Run {task} on the host with that address, or correct it")
    elsewhere = any(not is_loopback(address) for other in others for address in other.addresses)
    only_here = all(is_loopback(address) for address in local)
    remedy = "Write the address by which the others reach this host, or correct its name in /etc/hosts"
    found = f"{listed} is this host's"
    if elsewhere and only_here:
        return _find.warning("own address", f"{found}, but other hosts cannot connect to it", remedy)
    return _find.ok("own address", found)


def _own_port(cluster: ClusterConfig, task: Task) -> Finding:
    port = split_address(cluster.address(task))[1]
    if is_free(port):
        return _find.ok("own port", f"{port} is free")
    if port < 1024 and os.geteuid() != 0:
        return _find.failed(
            "own port", f"{port} is taken, or only root may take it", "Choose one from 1024 on"
        )
    return _find.failed("own port", f"{port} is taken", "`ss -lntp` shows which process has it")
