"""Check a cluster: this task's own place in it, the other tasks, and the transport between them."""

import contextlib
import functools
import logging
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tfdist import __version__
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous import fingerprint
from tfdist.diagnostics.doctor.answer_other_doctors import Answering
from tfdist.diagnostics.doctor.check_addresses_and_reachability import check_addresses, reach_all
from tfdist.diagnostics.doctor.check_run import config_digest
from tfdist.diagnostics.doctor.check_software import Loaded
from tfdist.diagnostics.doctor.expected_speed import check_links, expected_speed
from tfdist.diagnostics.doctor.finding import CLUSTER, Finding, Findings, failure_of
from tfdist.diagnostics.doctor.links import Links, measure_links, measure_to
from tfdist.diagnostics.doctor.meeting import Meeting
from tfdist.diagnostics.doctor.missing_and_differing_hosts import compare_hosts, compare_meeting
from tfdist.diagnostics.doctor.parts_of_run_records import Part
from tfdist.diagnostics.doctor.protocol import Facts, Participant
from tfdist.diagnostics.doctor.transport_in_use import ANY_PORT, check_transport
from tfdist.errors import ConfigError
from tfdist.trainer.config import Config, Settings
from tfdist.transport.authentication import find_secret
from tfdist.transport.listen_and_call import ConnectError, Listener

_log = logging.getLogger("tfdist")


def check_cluster(
    cluster: ClusterConfig,
    settings: Settings | None,
    loaded: Loaded,
    parts: Sequence[Part],
    *,
    seconds: float,
    measures: bool = False,
) -> Iterator[Finding]:
    """Yield what is found about a cluster with tasks.

    Args:
        cluster: The cluster, and this host's task in it.
        settings: The config, if there is one.
        loaded: What was seen of TensorFlow here.
        parts: The parts of the run that were tried here.
        seconds: How long to wait for the doctors of the other tasks; 0 to try their ports once.
        measures: Whether the links between the tasks are measured.
    """
    config = settings.config if settings else Config()
    transport = list(check_transport(cluster, config, gpus=loaded.gpus))
    if not cluster.is_on_ports_of_ours:
        own = list(check_addresses(cluster))
        yield from own
        is_free = any(finding.check == "own port" and finding.state == "ok" for finding in own)
        if seconds > 0 and is_free and cluster.task is not None and len(cluster.tasks()) > 1:
            needs_any_port = any(ANY_PORT in finding.found for finding in transport)
            facts = _facts(cluster, cluster.task, settings, loaded, parts, measures=measures)
            gathering = _Gathering(cluster, cluster.task, config, facts, parts)
            yield from gathering.findings(seconds, needs_any_port=needs_any_port)
        else:
            yield from reach_all(cluster)
    yield from transport


def _facts(
    cluster: ClusterConfig,
    task: Task,
    settings: Settings | None,
    loaded: Loaded,
    parts: Sequence[Part],
    *,
    measures: bool,
) -> Facts:
    by_name = {part.name: part for part in parts}
    data, speed = by_name.get("data", Part(name="data")), by_name.get("speed", Part(name="speed"))
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
        measures=measures,
        examples_per_second=speed.examples_per_second,
    )


@dataclass(frozen=True)
class _Gathering:
    """The meeting of this task with all others, and what follows from it."""

    cluster: ClusterConfig
    task: Task
    config: Config
    facts: Facts
    parts: Sequence[Part]

    def findings(self, seconds: float, *, needs_any_port: bool) -> Iterator[Finding]:
        """Meet the others, and yield what that shows."""
        cluster, facts = self.cluster, self.facts
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ConnectError):  # the address is not this host's: a finding of its own
                listener = stack.enter_context(Listener.of(cluster, self.task))
                facts = msgspec.structs.replace(facts, any_port=listener.port)
            own = Participant(cluster, self.task, _secret(), facts)
            measure = functools.partial(measure_to, own) if facts.measures else None
            answering = Answering(own, measure=measure)
            try:
                stack.enter_context(answering)
            except ConfigError as error:  # the port was taken since it was found free, or only_peers is wrong
                yield failure_of(CLUSTER, "access", error)
                yield from reach_all(cluster)
                return
            _log.info("waiting up to %g s for `tfdist doctor` on the hosts of the other tasks", seconds)
            meeting = Meeting(own)
            meeting.hold(answering, seconds)
            links = measure_links(own, meeting, answering) if facts.measures else None
        yield from compare_meeting(cluster, meeting, answering.finished, seconds)
        yield from compare_hosts(facts, meeting.met, needs_any_port=needs_any_port)
        if links is not None:
            yield from self._speeds(links, meeting)

    def _speeds(self, links: Links, meeting: Meeting) -> Iterator[Finding]:
        if self.task != self.cluster.lead:
            yield Findings(CLUSTER).ok("link", f"{self.cluster.lead} prints what was measured")
            return
        speeds = {task: met.facts.examples_per_second for task, met in meeting.met.items()}
        speeds[self.task] = self.facts.examples_per_second
        yield from check_links(links)
        parts = {part.name: part for part in self.parts if not part.problem}
        yield from expected_speed(self.cluster, self.config, links, speeds, parts)


def _secret() -> bytes | None:
    """Return the secret; None also if it is malformed, which has a finding of its own."""
    try:
        return find_secret()
    except ConfigError:
        return None
