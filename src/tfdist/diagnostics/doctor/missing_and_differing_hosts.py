"""Tell what a meeting with the other tasks has shown: who was met, and in what their hosts differ."""

from collections.abc import Iterator, Mapping

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.diagnostics.doctor.check_addresses_and_reachability import of_reached
from tfdist.diagnostics.doctor.finding import CLUSTER, Finding, Findings
from tfdist.diagnostics.doctor.look_up_and_connect import Reached
from tfdist.diagnostics.doctor.meeting import Meeting, Met
from tfdist.diagnostics.doctor.protocol import Facts

_MOST_SECONDS_APART = 1.0
_find = Findings(CLUSTER)


def compare_meeting(
    cluster: ClusterConfig, meeting: Meeting, callers: set[Task], seconds: float
) -> Iterator[Finding]:
    """Yield what the calls to the other tasks, and their own calls, have shown.

    Args:
        cluster: The cluster.
        meeting: The meeting, which is over.
        callers: The tasks that have called this one.
        seconds: How long the meeting may have lasted.
    """
    for other in meeting.others:
        if (met := meeting.met.get(other)) is not None:
            yield _met(cluster, other, met, has_called=other in callers, seconds=seconds)
        elif (refusal := meeting.refusals.get(other)) is not None:
            yield _refused(cluster, other, refusal)
        else:
            yield _missed(cluster, other, meeting.failures.get(other), seconds)


def _met(cluster: ClusterConfig, other: Task, met: Met, *, has_called: bool, seconds: float) -> Finding:
    found = f"{cluster.address(other)}: met, round trip {1e3 * met.round_trip:.2g} ms"
    if has_called:
        return _find.ok(str(other), found)
    found += f", but it has not reached this task's port within {seconds:g} s"
    remedy = "Let the firewalls pass TCP to this port, or, if it was started just now, start all at one time"
    return _find.warning(str(other), found, remedy)


def _refused(cluster: ClusterConfig, other: Task, refusal: str) -> Finding:
    found = f"{cluster.address(other)} {refusal}"
    if "secret" in refusal:
        remedy = "Set TFDIST_SECRET or TFDIST_SECRET_FILE to the same secret for all tasks"
        return _find.failed(str(other), found, remedy)
    if refusal.startswith(("is a task of another cluster", "answers as")):
        return _find.failed(str(other), found, "Give all tasks the same cluster, each with its own task")
    remedy = "Run `tfdist doctor` there; if another program has the port, choose another port"
    return _find.warning(str(other), f"{found} (something listens at the port)", remedy)


def _missed(cluster: ClusterConfig, other: Task, failure: Reached | None, seconds: float) -> Finding:
    if failure is None:
        failure = Reached(problem=f"no answer within {seconds:g} s")
    if not failure.is_refused:
        return of_reached(cluster, other, failure)
    found = (
        f"{cluster.address(other)}: the host answers, but no `tfdist doctor` was there within {seconds:g} s"
    )
    remedy = (
        f"Run it there at the same time, with --task {other}, to check that host too,"
        " or see whether a firewall there refuses"
    )
    return _find.warning(str(other), found, remedy)


def compare_hosts(own: Facts, met: Mapping[Task, Met], *, needs_any_port: bool) -> Iterator[Finding]:
    """Yield in what the hosts of the tasks that were met, and this one, differ.

    Args:
        own: What is known of this host.
        met: The tasks that were met.
        needs_any_port: Whether the transport uses ports that the system chooses.
    """
    if not met:
        return
    facts = {own.task: own, **{str(task): call.facts for task, call in met.items()}}
    yield from _versions(facts)
    yield from _config_and_data(facts)
    yield _clocks(met)
    if needs_any_port:
        yield _any_port(met)


def _versions(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    names = {"tfdist": "tfdist", "tensorflow": "TensorFlow", "keras": "Keras", "python": "Python"}
    equal = []
    for field, name in names.items():
        values = {task: str(getattr(host, field)) or "none" for task, host in facts.items()}
        if len(set(values.values())) == 1:
            equal.append(f"{name} {next(iter(values.values()))}")
            continue
        remedy = f"Install the same version of {name} on all hosts"
        make = _find.warning if field == "python" else _find.failed
        yield make("versions", f"{name} differs: {_who(values)}", remedy)
    if equal:
        yield _find.ok("versions", f"on all of {len(facts)} hosts: {', '.join(equal)}")


def _config_and_data(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    if any(host.config for host in facts.values()):
        values = {task: host.config or "none" for task, host in facts.items()}
        remedy = "Copy one file to all hosts, and give all the same --set"
        yield _equal("config", "the config", values, remedy)
    if any(host.data for host in facts.values()):
        values = {task: host.data or "none" for task, host in facts.items()}
        yield _equal("data", "the data", values, "Copy the data to all hosts, or mount them")
        places = {task: host.folder for task, host in facts.items() if host.data}
        remedy = "Set TFDIST_CACHE_DIR to the same folder on all hosts: workers beside a ps need one path"
        if len(set(values.values())) == 1 and len(set(places.values())) > 1:
            yield _find.warning("data", f"the folder differs: {_who(places)}", remedy)


def _equal(check: str, what: str, values: Mapping[str, str], remedy: str) -> Finding:
    if len(set(values.values())) == 1:
        return _find.ok(
            check, f"{what} is the same on all of {len(values)} hosts: {next(iter(values.values()))}"
        )
    return _find.failed(check, f"{what} differs: {_who(values)}", remedy)


def _clocks(met: Mapping[Task, Met]) -> Finding:
    apart = {task: call.ahead for task, call in met.items() if abs(call.ahead) > _MOST_SECONDS_APART}
    if not apart:
        most = max(abs(call.ahead) + call.round_trip / 2 for call in met.values())
        return _find.ok("clocks", f"all that were met are within {1e3 * most:.2g} ms of this host's")
    listed = ", ".join(f"{task} {seconds:+.1f} s" for task, seconds in apart.items())
    remedy = "Synchronize them (chrony, systemd-timesyncd): logs and curves have the hosts' times"
    return _find.warning("clocks", f"against this host's: {listed}", remedy)


def _any_port(met: Mapping[Task, Met]) -> Finding:
    blocked = [str(task) for task, call in met.items() if call.reaches_any_port is False]
    if not blocked:
        return _find.ok("other ports", "ports that the system chooses can be reached, as the transport needs")
    found = (
        f"on {', '.join(blocked)}, a port that the system had chosen cannot be reached, unlike the cluster's"
    )
    remedy = "Let firewalls pass all TCP between the hosts, or tensors travel over TensorFlow's gRPC, slower"
    return _find.warning("other ports", found, remedy)


def _who(values: Mapping[str, str]) -> str:
    """Return who has which value, such as `2.21.0 on chief:0 and worker:1, 2.20.0 on worker:0`."""
    holders: dict[str, list[str]] = {}
    for task, value in values.items():
        holders.setdefault(value, []).append(task)
    return ", ".join(f"{value} on {' and '.join(tasks)}" for value, tasks in holders.items())
