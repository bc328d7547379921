"""Check this machine, the cluster and a run before it starts, and say what to do about each problem.

    tfdist doctor
    tfdist doctor --config cluster.yaml --task worker:1

The exit status is 2 if a check has failed. Nothing is trained, and nothing is left behind but prepared data.
"""

import os
from collections.abc import Iterable, Iterator

import msgspec
from absl import flags

from tfdist._utils.files import local_path
from tfdist.diagnostics.doctor.finding import Finding
from tfdist.diagnostics.doctor.machine import check_machine
from tfdist.diagnostics.doctor.software import check_software

__all__ = ["main"]

_FAILED = 2


def main(run_dir: str | None, json: bool) -> int:
    """Print what the checks find: a line for each, or one JSON list."""
    findings = list(_shown(_check(run_dir), json=json))
    if json:
        print(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())
    return _FAILED if any(finding.state == "failed" for finding in findings) else 0


def _check(run_dir: str | None) -> Iterator[Finding]:
    _, findings = check_software()
    yield from findings
    yield from check_machine(local_path(run_dir or "runs", "--run_dir"), os.environ)


def _shown(findings: Iterable[Finding], *, json: bool) -> Iterator[Finding]:
    """Yield each finding; print it as soon as it is there, unless JSON is wanted."""
    group = None
    for finding in findings:
        if not json:
            if finding.group != group:
                print(f"{finding.group}" if group is None else f"\n{finding.group}")
            print(finding, flush=True)
        group = finding.group
        yield finding


if __name__ == "__main__":
    from tfdist.cli._run_command import run

    flags.DEFINE_string("run_dir", None, "The folder that a run would write to; runs by default.")
    flags.DEFINE_bool("json", False, "Print JSON.")
    run(main)
