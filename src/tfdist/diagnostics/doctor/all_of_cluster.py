"""Check a cluster: this task's own place in it, the other tasks, and the transport between them."""

import contextlib
import logging
import platform
from collections.abc import Iterator, Sequence

import msgspec

from tfdist import __version__
from tfdist.benchmark.rehearsal_parts import Part
from tfdist.cluster.addresses import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous import fingerprint
from tfdist.diagnostics.doctor.answering import Answering
from tfdist.diagnostics.doctor.cluster import check_addresses, reach_all
from tfdist.diagnostics.doctor.comparison import compare_hosts, compare_meeting
from tfdist.diagnostics.doctor.finding import Finding
from tfdist.diagnostics.doctor.meeting import Meeting, listen_on_any_port
from tfdist.diagnostics.doctor.messages import Facts
from tfdist.diagnostics.doctor.run import config_digest
from tfdist.diagnostics.doctor.software import Loaded
from tfdist.diagnostics.doctor.transport import check_transport
from tfdist.errors import ConfigError
from tfdist.trainer.config import Config, Settings
from tfdist.transport.authentication import find_secret

__all__ = ["check_cluster"]

_log = logging.getLogger("tfdist")


def check_cluster(
    cluster: ClusterConfig,
    settings: Settings | None,
    loaded: Loaded,
    parts: Sequence[Part],
    *,
    seconds: float,
) -> Iterator[Finding]:
    """Yield what is found about a cluster with tasks.

    Args:
        cluster: The cluster, and this host's task in it.
        settings: The config, if there is one.
        loaded: What was seen of TensorFlow here.
        parts: The parts of the run that were tried here.
        seconds: How long to wait for the doctors of the other tasks; 0 to call them only once.
    """
    config = settings.config if settings else Config()
    transport = list(check_transport(cluster, config, gpus=loaded.gpus))
    if not cluster.is_on_ports_of_ours:
        own = list(check_addresses(cluster))
        yield from own
        is_free = any(finding.check == "own port" and finding.state == "ok" for finding in own)
        if seconds > 0 and is_free and cluster.task is not None and len(cluster.tasks()) > 1:
            needs_any_port = any("ports that the system chooses" in finding.found for finding in transport)
            facts = _facts(cluster, cluster.task, settings, loaded, parts)
            yield from _meet(cluster, cluster.task, facts, seconds, needs_any_port=needs_any_port)
        else:
            yield from reach_all(cluster)
    yield from transport


def _facts(
    cluster: ClusterConfig, task: Task, settings: Settings | None, loaded: Loaded, parts: Sequence[Part]
) -> Facts:
    data = next((part for part in parts if part.name == "data"), Part(name="data"))
    return Facts(
        task=str(task),
        cluster=fingerprint(cluster),
        python=platform.python_version(),
        tensorflow=loaded.tensorflow,
        keras=loaded.keras,
        tfdist=__version__,
        config=config_digest(settings.config) if settings else "",
        data=data.fingerprint,
        folder=data.folder,
    )


def _meet(
    cluster: ClusterConfig, task: Task, facts: Facts, seconds: float, *, needs_any_port: bool
) -> Iterator[Finding]:
    secret = _secret()
    with contextlib.ExitStack() as stack:
        listener = listen_on_any_port(split_address(cluster.address(task))[0])
        if listener is not None:
            stack.enter_context(listener)
            facts = msgspec.structs.replace(facts, any_port=listener.getsockname()[1])
        try:
            answering = stack.enter_context(Answering(cluster, task, secret, facts))
        except ConfigError:  # taken since it was found free
            yield from reach_all(cluster)
            return
        _log.info("waiting up to %g s for `tfdist doctor` on the hosts of the other tasks", seconds)
        meeting = Meeting(cluster, task, secret, facts)
        meeting.hold(answering, seconds)
    yield from compare_meeting(cluster, meeting, answering.finished, seconds)
    yield from compare_hosts(facts, meeting.met, needs_any_port=needs_any_port)


def _secret() -> bytes | None:
    """Return the secret; None also if it is malformed, which has a finding of its own."""
    try:
        return find_secret()
    except ConfigError:
        return None
