"""The sections `watch`, `metrics`, `launch` and `elastic`: how tasks are started and watched."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tfdist._utils.shared_config_types import Positive, doc
from tfdist.coordination.heartbeat_watch import SHORTEST_TIMEOUT
from tfdist.coordination.stall_limit import SHORTEST_SECONDS
from tfdist.launcher.environment import DEFAULT_GRACE


class WatchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set when a task of the cluster counts as lost."""

    heartbeat_timeout: Annotated[
        Annotated[float, Meta(ge=SHORTEST_TIMEOUT)] | None,
        doc(
            "Seconds without an answer after which a task counts as lost. By default 30, and 10 among"
            " mirrored workers, which wait for each other in each step."
        ),
    ] = None
    stall_timeout: Annotated[
        Literal["auto", "off"] | Annotated[float, Meta(ge=SHORTEST_SECONDS)],
        doc(
            "Seconds that a task may take for a step, or for a callback after it, before it counts as stuck,"
            " and so as lost. auto: 300, or more if steps take long. off: no limit."
        ),
    ] = "auto"

    @property
    def silence_limit(self) -> float:
        """Return the seconds of silence after which a task is lost to the launcher and to tasks beside ps."""
        return 30.0 if self.heartbeat_timeout is None else self.heartbeat_timeout


class MetricsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set what a monitor can read while the run lasts."""

    prometheus_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        doc("The port at which Prometheus finds metrics of the run, on the machine of the chief."),
    ] = None
    prometheus_address: Annotated[str, doc("The address to listen on; by default, all of the machine.")] = (
        "0.0.0.0"
    )


class LaunchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set how a cluster on this machine is started; the threads also without a launcher."""

    threads: Annotated[
        Positive | None, doc("Threads of each task; by default, the tasks of a machine share its cores.")
    ] = None
    pin: Annotated[bool, doc("Bind each task that computes to cores of its own.")] = False
    restarts: Annotated[
        int,
        doc(
            "How often lost tasks are started again without a new checkpoint in between: an evaluator and a"
            " worker of asynchronous updates alone, others with the whole cluster, from the last checkpoint.",
            ge=0,
        ),
    ] = 3
    grace: Annotated[
        float,
        doc(
            "Seconds from SIGTERM to SIGKILL, in which the tasks save: more than a checkpoint takes.",
            gt=0,
            le=86400,
        ),
    ] = DEFAULT_GRACE
    network_isolation: Annotated[
        Literal["auto", "always", "never"],
        doc(
            "Whether the tasks live in a private network. auto: if this system allows it. always: an error if"
            " it does not. never: on the machine's own network."
        ),
    ] = "auto"


class ElasticSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train with fewer workers than the cluster has, and admit the others when they come."""

    min_workers: Annotated[Positive, doc("The least number of workers to train with.")] = 1
    join_timeout: Annotated[float, doc("Seconds to wait at a start for all workers.", gt=0)] = 60.0
