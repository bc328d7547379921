"""Check a run: its data, its model, and the memory that a task needs; a process of its own tries them."""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tfdist.benchmark.rehearsal_parts import PARTS, Part, Plan
from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.doctor.finding import RUN, Finding, Findings
from tfdist.diagnostics.doctor.limits import memory_left
from tfdist.diagnostics.doctor.software import why_ended
from tfdist.diagnostics.environment import bytes_available
from tfdist.trainer.config import Config

__all__ = ["check_run", "config_digest", "memory_finding", "try_parts"]

_SECONDS = 900.0  # the first use of a data set prepares it, and may download it
_TENSORFLOW_ITSELF = 500_000_000  # bytes of a process that has loaded it
_find = Findings(RUN)


def try_parts(plan: Plan, *, seconds: float = _SECONDS) -> list[Part]:
    """Return the parts of a run that a process of its own has tried, the last of them with its problem."""
    with tempfile.NamedTemporaryFile(prefix="tfdist-doctor-") as output:
        asked = msgspec.json.encode(msgspec.structs.replace(plan, output=output.name)).decode()
        words = [sys.executable, "-m", "tfdist.benchmark.rehearsal", asked]
        try:
            run = subprocess.run(words, capture_output=True, timeout=seconds, check=False)
            problem = why_ended(run.returncode, run.stderr) if run.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"is not done within {seconds:g} s"
        lines = Path(output.name).read_bytes().splitlines()
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
            yield memory_finding(part, cluster, min(known, default=None))


def config_digest(config: Config) -> str:
    """Return a hash of all that a config says, defaults included, without its comments and its order."""
    text = msgspec.json.encode(config, order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]


def memory_finding(model: Part, cluster: ClusterConfig, available: int | None) -> Finding:
    """Return the memory that tasks need for a model, by the rule parameters + gradients + optimizer slots.

    What the layers compute between them comes on top, and depends on the batch.
    """
    parameters, slots = model.parameter_bytes, model.slot_bytes
    needed = 2 * parameters + (0 if cluster.ps else slots)
    tasks = max(1, len(cluster.computing_tasks())) if cluster.is_on_ports_of_ours else 1
    total = tasks * (needed + _TENSORFLOW_ITSELF)
    rule = f"parameters {_mb(parameters)}, gradients {_mb(parameters)}, optimizer slots {_mb(slots)}"
    where = f" (slots, and a copy of the parameters, spread over {len(cluster.ps)} ps)" if cluster.ps else ""
    found = (
        f"{rule}{where}: {_mb(needed)} for each task that computes, besides what layers compute from a batch"
    )
    if available is None or total <= available:
        return _find.ok("memory needed", found)
    here = f"{tasks} of them here need {_mb(total)} with TensorFlow itself, and {_mb(available)} is available"
    return _find.warning(
        "memory needed", f"{found}; {here}", "Use a smaller model, or a machine with more memory"
    )


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
