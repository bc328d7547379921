"""Check a run: its data, its model, and the memory that a task needs; a process of its own tries them."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tfdist._utils.run_process import run_process
from tfdist._utils.write_files import temporary_folder
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.control_group_limits import memory_left
from tfdist.diagnostics.doctor.finding import RUN, Finding, Findings
from tfdist.diagnostics.doctor.parts_of_run_records import PARTS, Part, Plan
from tfdist.diagnostics.environment import bytes_available
from tfdist.diagnostics.estimate_memory_and_traffic import TaskEstimate, estimate_tasks, one_of_each
from tfdist.trainer.config import Config
from tfdist.trainer.model_and_replica_sizes import ModelSizes, Replicas

_SECONDS = 900.0  # the first use of a data set prepares it, and may download it
_find = Findings(RUN)


def try_parts(plan: Plan, *, seconds: float = _SECONDS) -> list[Part]:
    """Return the parts of a run that a process of its own has tried, the last of them with its problem.

    Raises:
        StorageError: There is no temporary folder for what the process finds.
    """
    with temporary_folder("tfdist-doctor-") as folder:
        output = Path(folder, "parts.jsonl")
        output.touch()
        asked = msgspec.json.encode(msgspec.structs.replace(plan, output=str(output))).decode()
        words = [sys.executable, "-m", "tfdist.diagnostics.doctor.try_parts_of_run", asked]
        problem = run_process(words, seconds=seconds).problem
        lines = output.read_bytes().splitlines()
    parts = [msgspec.json.decode(line, type=Part) for line in lines]
    if problem:
        names = [name for name in PARTS if name not in {part.name for part in parts}]
        parts.append(Part(name=next(iter(names), "model"), problem=problem))
    return parts


def check_run(config: Config, path: str, cluster: ClusterConfig, parts: Sequence[Part]) -> Iterator[Finding]:
    """Yield what is found about the parts of a run."""
    yield _find.ok("config", f"{path}, digest {config_digest(config)}")
    for part in parts:
        if part.problem:
            remedy = part.remedy or f"`tfdist train --config {path} --smoke` shows more"
            yield _find.failed(part.name, part.problem, remedy)
        else:
            yield _find.ok(part.name, part.found)
        if part.name == "model" and not part.problem:
            known = [count for count in (bytes_available(), memory_left()) if count is not None]
            if part.sizes is not None:
                yield memory_finding(part.sizes, config, cluster, min(known, default=None))


def config_digest(config: Config) -> str:
    """Return a hash of all that a config says, defaults included, without its comments and its order."""
    text = msgspec.json.encode(config, order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]


def memory_finding(
    sizes: ModelSizes, config: Config, cluster: ClusterConfig, available: int | None
) -> Finding:
    """Return the memory that the tasks on this machine need, by the estimate of `tfdist estimate`."""
    tasks = estimate_tasks(config, cluster, sizes, Replicas.of(config, cluster))
    if cluster and not cluster.is_on_ports_of_ours:
        tasks = _of_one_host(tasks, cluster)
    each = ", ".join(f"{task.task} {_mb(task.total)}" for task in one_of_each(tasks))
    shared = sizes.libraries + max((task.data for task in tasks), default=0)
    total = sum(task.total for task in tasks) + shared
    found = f"{each}; {_mb(shared)} for libraries and data, which tasks of one machine share"
    if available is None or total <= available:
        return _find.ok("memory needed", found)
    here = f"{_mb(total)} in all on one machine, and {_mb(available)} is available"
    remedy = "Use a smaller batch or model, fewer tasks here, or a machine with more memory"
    return _find.warning("memory needed", f"{found}; {here}", remedy)


def _of_one_host(tasks: Sequence[TaskEstimate], cluster: ClusterConfig) -> list[TaskEstimate]:
    """Return the tasks on the host of this task; where none is named, those of the host that needs least."""
    by_host: dict[str, list[TaskEstimate]] = {}
    hosts = {str(task): split_address(cluster.address(task))[0] for task in cluster.tasks()}
    for task in tasks:
        by_host.setdefault(hosts[task.task], []).append(task)
    if cluster.task is not None:
        return by_host.get(hosts.get(str(cluster.task), ""), [])
    return min(by_host.values(), key=lambda of_host: sum(task.total for task in of_host))


def _mb(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
