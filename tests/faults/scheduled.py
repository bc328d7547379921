"""Train by Slurm, or by the pods of Kubernetes, and inflict what happens to nodes and pods.

A scheduler starts lost tasks again by its own rules, and nobody types a command again. Slurm runs on three
nodes and a job on two of them, so that it can move. The pods of a manifest are containers.
"""

import contextlib
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker_site import docker_site, why_no_docker
from harms import Harm
from kubernetes_pods import Pods, running_pods
from proofs import prove_exact, prove_lost, prove_nothing_left
from schedule import Fault, Hit
from setups import config
from slurm_site import Slurm, slurm_site, why_no_slurm
from training import HERE, MARK, SECONDS, Training

import proc

__all__ = ["ENGINES", "STRATEGIES", "draw", "endure", "prove", "straight", "training_by", "why_not"]

STRATEGIES = ("multi_worker_mirrored", "parameter_server_sync")  # of which the bits are known
_LONGEST_PAUSE = 1.0
_BETWEEN_QUESTIONS = 1.0  # seconds; a scheduler must not be asked often
_RESTARTS = 9  # of Slurm with each new checkpoint, of Kubernetes for the whole job: more than faults come
_JOB = "config"  # of its file


class ScheduledTraining(Training):
    """A training that a scheduler runs."""

    def __init__(self, folder: Path, config: dict[str, Any], cache: str) -> None:
        super().__init__(folder, config, cache)
        self.is_launched = False
        self._asked_at = 0.0
        self._last_status: int | None = None

    def start(self) -> None:
        raise NotImplementedError

    def status(self) -> int | None:
        """Return 0 if the job has succeeded, another number if it has failed; None while it has not ended."""
        if self._last_status is None and time.monotonic() - self._asked_at >= _BETWEEN_QUESTIONS:
            self._last_status, self._asked_at = self._ask(), time.monotonic()
        return self._last_status

    def end(self) -> int:
        """Wait until the job has ended, with all its processes; return its status."""
        self.until(lambda: self.status() is not None, "the job ends")
        self.until(lambda: not self.alive(), "all processes of an ended job end")
        return self._last_status

    def ending(self) -> set[int]:
        """Return the processes that a loss ends, whichever task is lost."""
        return {*self.alive()}

    def _ask(self) -> int | None:
        raise NotImplementedError

    def _tfdist(self, *words: str) -> list[str]:
        file = str(self.folder / f"{_JOB}.yaml")
        return [sys.executable, "-m", "tfdist", *words, "--config", file]


class SlurmTraining(ScheduledTraining):
    """A training that is a job of Slurm."""

    files = r"config\.yaml|exit_status|restarts|logs/(saved_step|progress\.json)"

    def __init__(self, site: Slurm, folder: Path, config: dict[str, Any], cache: str) -> None:
        self.site, self.number = site, ""
        super().__init__(folder, config, cache)

    def start(self) -> None:
        words = self._tfdist("submit", "slurm", "--run_dir", str(self.folder))
        state = str(self.folder / "state")
        handle = self.site.run(*words, **{**self.environ, "XDG_STATE_HOME": state}, timeout=SECONDS).strip()
        self.number = handle.rpartition("/")[2]
        self.run = self.folder / f"{_JOB}-{self.number}"

    def facts(self) -> dict[str, str]:
        """Return what Slurm says of the job."""
        return dict(re.findall(r"(\w+)=(\S*)", self.site.run("scontrol", "show", "job", self.number)))

    def nodes(self) -> list[str]:
        """Return the nodes that the job runs on."""
        return self.site.run("scontrol", "show", "hostnames", self.facts()["NodeList"]).split()

    def _ask(self) -> int | None:
        state = self.facts()["JobState"]
        if state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "PREEMPTED", "NODE_FAIL"):
            return None
        return 0 if state == "COMPLETED" else 1


class PodsTraining(ScheduledTraining):
    """A training that is a manifest's pods.

    Attributes:
        pods: The pods, once there is an engine.
    """

    pods: Pods
    files = r"logs/(saved_step|progress\.json|chief_ended)"

    def __init__(self, folder: Path, config: dict[str, Any], cache: str) -> None:
        super().__init__(folder, config, cache)
        self.volume = folder / "volume"
        self.run = self.volume / "runs" / _JOB
        names = (MARK, "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
        config["engine"]["kubernetes"]["env"] = {name: self.environ[name] for name in names}
        (folder / f"{_JOB}.yaml").write_text(json.dumps(config))
        self._pool = ThreadPoolExecutor(1)
        self._is_over = threading.Event()

    def manifest(self, engine: str) -> str:
        """Render the manifest for an engine."""
        words = self._tfdist("render", engine)
        return subprocess.run(words, env=self.environ, check=True, stdout=subprocess.PIPE, text=True).stdout

    def start(self) -> None:
        self._verdict = self._pool.submit(self._follow_rules)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._pool.shutdown()
        super().__exit__()

    def ending(self) -> set[int]:
        """Return the processes of tasks but the evaluator. What has started them stays, and starts them again."""
        tasks = [
            one for one in proc.with_variable(MARK, self.mark) if "container_entrypoint" not in one.command
        ]
        return {one.pid for one in tasks if one.environ["REPLICATED_JOB_NAME"] != "evaluator"}

    def _follow_rules(self) -> str:
        verdict = self.pods.run(10 * SECONDS, self._check_is_wanted)
        self.pods.end()
        return verdict

    def _check_is_wanted(self, _: Pods) -> None:
        assert not self._is_over.is_set(), "nobody waits for the pods any more"

    def tail(self) -> str:
        statuses = [(pod.host, pod.statuses) for pod in self.pods.pods]
        return f"{self.pods.logs()[-8000:]}\n{statuses}, restarts {self.pods.restarts}"

    def _ask(self) -> int | None:
        return int(self._verdict.result() != "succeeded") if self._verdict.done() else None


# -- what happens to nodes and pods --


class NodeDrained(Harm):
    """A node of a Slurm job that an operator drains: the job is requeued, and runs on the others."""

    name = "Slurm node drained, job requeued"
    saves = True

    def inflict_on(self, job: SlurmTraining, chance: random.Random) -> None:
        node = chance.choice(job.nodes())
        job.site.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=soak")
        job.site.run("scontrol", "requeue", job.number)

    def repair(self, job: SlurmTraining) -> None:
        for node in job.site.machines.nodes:
            if "drain" in job.site.run("sinfo", "--noheader", "--format=%T", f"--nodes={node}"):
                job.site.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


class NodeLost(Harm):
    """A node of a Slurm job that loses its power, and comes back later."""

    name = "Slurm node lost"

    def inflict_on(self, job: SlurmTraining, chance: random.Random) -> None:
        self._node = chance.choice(job.nodes())
        job.site.machines.kill(self._node)

    def repair(self, job: SlurmTraining) -> None:
        job.site.start_node_again(self._node)


class JobPreempted(Harm):
    """A Slurm job that has to make place for another one of a higher priority."""

    name = "Slurm job preempted"
    saves = True

    def inflict_on(self, job: SlurmTraining, chance: random.Random) -> None:
        job.site.run("srun", "--partition=high", "--nodes=3", "--exclusive", "sleep", "1", timeout=SECONDS)

    def repair(self, job: SlurmTraining) -> None:
        pass


@dataclass(frozen=True)
class PodEnded(Harm):
    """A pod that Kubernetes ends, and makes again.

    Attributes:
        name: For tables.
        saves: Whether it gets SIGTERM, and its grace: its node is drained, not lost.
    """

    name: str
    saves: bool

    def inflict_on(self, job: PodsTraining, chance: random.Random) -> None:
        role = chance.choice(sorted(job.pods.roles - {"evaluator"}))
        if self.saves:
            job.pods.evict(role)
        else:
            job.pods.lose_node(role)

    def repair(self, job: PodsTraining) -> None:
        pass


ENGINES = ("Slurm", "Kubernetes Jobs", "JobSet")
_OF_SLURM = (NodeDrained(), NodeLost(), JobPreempted())
_OF_PODS = (PodEnded("pod evicted", saves=True), PodEnded("node of a pod lost", saves=False))


def why_not(engine: str) -> str | None:
    """Return why an engine cannot run here, or None."""
    return why_no_slurm() if engine == "Slurm" else why_no_docker()


def draw(seed: int, engine: str, count: int) -> list[Fault]:
    """Draw so many faults of an engine; each kind comes before one comes again."""
    chance = random.Random(seed)
    harms = _OF_SLURM if engine == "Slurm" else _OF_PODS
    order: list[Harm] = []
    while len(order) < count:
        order += chance.sample(harms, len(harms))
    return [Fault(engine, "step", harm, chance.uniform(0, _LONGEST_PAUSE)) for harm in order[:count]]


def endure(job: ScheduledTraining, seed: int, faults: Sequence[Fault], hits: list[Hit]) -> list[Hit]:
    """Inflict each fault in a step, and see that the scheduler starts again what it has to, and that it ends well.

    The faults are added to `hits`, so that a caller has those that came before an error.
    """
    chance = random.Random(seed)
    job.start()
    newest = 0
    for fault in faults:
        _reach(job, newest + 1)
        time.sleep(fault.pause)
        before, begun, starts = job.ending(), time.monotonic(), len(job.history())
        fault.harm.inflict_on(job, chance)
        job.until(lambda before=before: before.isdisjoint(job.alive()), f"all end after {fault}")
        safe, reached = job.newest(), job.reached()
        assert len(job.history()) == starts, f"{fault}: it has begun again before all had ended"
        _reach(job, safe + 1)
        hits.append(Hit(fault, False, safe, reached, starts, time.monotonic() - begun))
        fault.harm.repair(job)
        newest = job.newest()
    status = job.end()
    assert status == 0, f"ended with {status}: {job.tail()}"
    return hits


def _reach(job: ScheduledTraining, step: int) -> None:
    def is_there() -> bool:
        status = job.status()  # before the step: the last one may be saved, and the job end, meanwhile
        is_saved = job.newest() >= step
        assert is_saved or status is None, f"ended with {status} before step {step}: {job.tail()}"
        return is_saved

    job.until(is_there, f"step {step} is saved")


@contextlib.contextmanager
def training_by(
    engine: str, strategy: str, folder: Path, cache: str, steps: int
) -> Iterator[ScheduledTraining]:
    """Start an engine, and yield the training of a strategy that is not yet submitted."""
    folder.mkdir(parents=True, exist_ok=True)
    if engine == "Slurm":
        options = {"nodes": 2, "partition": "low", "chdir": str(folder)}
        section = {"slurm": {"sbatch": options, "restarts": _RESTARTS}}
        settings = config(strategy, steps, engine=section)
        with slurm_site() as site, SlurmTraining(site, folder, settings, cache) as job:
            yield job
        return
    with docker_site() as docker:
        docker.volumes += (f"{HERE}:{HERE}:ro",)
        section = {"kubernetes": {"image": docker.image, "restarts": _RESTARTS}}
        made = PodsTraining(folder, config(strategy, steps, engine=section), cache)
        manifest = made.manifest("jobset" if engine == "JobSet" else "kubernetes")
        with running_pods(docker, manifest, made.volume) as made.pods, made as job:
            yield job


def straight(strategy: str, folder: Path, cache: str, steps: int) -> Training:
    """Train on this machine without faults."""
    with Training(folder, config(strategy, steps), cache) as training:
        training.start()
        assert training.end() == 0, training.tail()
    return training


def prove(job: ScheduledTraining, like: Training, replicas: int, hits: Sequence[Hit]) -> None:
    """Check that a run has ended as if nothing had happened: with the bits of one without faults."""
    prove_exact(job, replicas, like)
    prove_lost(job, hits)
    prove_nothing_left(job)
