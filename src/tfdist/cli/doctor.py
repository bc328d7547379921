"""Check this machine, the cluster and a run before it starts, and say what to do about each problem.

    tfdist doctor
    tfdist doctor --config cluster.yaml --task worker:1

Started for all tasks at the same time, each on its host, they meet and compare their hosts. The exit status
is 2 if a check has failed. Nothing is trained, and nothing is left behind but prepared data.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from tfdist._utils.read_yaml_and_json import check_not_stream
from tfdist._utils.readable_text import beside
from tfdist.cli._flags_from_signature import Changes, ConfigFile, Flag, run
from tfdist.diagnostics.doctor.check_cluster import check_cluster
from tfdist.diagnostics.doctor.check_machine import check_machine
from tfdist.diagnostics.doctor.check_run import check_run, try_parts
from tfdist.diagnostics.doctor.check_software import check_software
from tfdist.diagnostics.doctor.find_and_describe_cluster import describe, find_cluster
from tfdist.diagnostics.doctor.finding import CLUSTER, MACHINE, RUN, Finding, Findings, failure_of
from tfdist.diagnostics.doctor.parts_of_run_records import Part, Plan
from tfdist.errors import ConfigError, StorageError
from tfdist.trainer.config import Settings, read_config
from tfdist.trainer.run_folder import find_run_folder

_FAILED = 2


def main(
    config: ConfigFile,
    set: Changes = (),
    task: Annotated[str | None, Flag("Which task of the cluster this host runs, e.g. worker:0.")] = None,
    run_dir: Annotated[str | None, Flag("The folder that a run would write to; runs by default.")] = None,
    wait: Annotated[
        float, Flag("Seconds to wait for `tfdist doctor` on the hosts of the other tasks.", least=0)
    ] = 30.0,
    measure: Annotated[
        bool, Flag("Train some steps here, and measure the links between tasks that measure too.")
    ] = False,
    json: Annotated[bool, Flag("Print JSON.")] = False,
) -> int:
    """Print what the checks find: a line for each, or one JSON list."""
    if measure and not config:
        remedy = "Name a file: --config cluster.yaml"
        raise ConfigError("--measure", "trains some steps, for which it needs a config", remedy=remedy)
    if set and not config:
        remedy = "Name the file too: --config cluster.yaml"
        raise ConfigError("--set", "sets values of a config, and there is none", remedy=remedy)
    check_not_stream(config or "")
    plan = Plan(config=config or "", changes=tuple(set), task=task, run_dir=run_dir, measures_speed=measure)
    findings = list(_shown(_check(plan, wait), json=json))
    if json:
        print(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())
    return _FAILED if any(finding.state == "failed" for finding in findings) else 0


def _check(plan: Plan, wait: float) -> Iterator[Finding]:
    loaded, findings = check_software()
    yield from findings
    folder = find_run_folder(plan.run_dir, Path("runs"), os.environ)
    yield from check_machine(folder.root)
    address = folder.address_of(folder.root)
    if address is not None and not plan.config:
        found = f"{address} was not tried; the run folder is its copy on this machine"
        yield Findings(MACHINE).warning("address", found, "Name a config, with which it is tried: --config")
    settings: Settings | None = None
    try:
        settings = read_config(plan.config, plan.changes) if plan.config else None
        cluster = find_cluster(settings, plan.task)
    except ConfigError as error:
        yield failure_of(CLUSTER if settings or not plan.config else RUN, "config", error)
        return
    parts: list[Part] = []
    if settings is not None:
        try:
            parts = try_parts(plan)
        except StorageError as error:
            yield failure_of(RUN, "temporary files", error)
            return
    yield describe(cluster)
    if cluster:
        yield from check_cluster(cluster, settings, loaded, parts, seconds=wait, measures=plan.measures_speed)
    if settings is not None:
        yield from check_run(settings.config, settings.path, cluster, parts)


def _shown(findings: Iterable[Finding], *, json: bool) -> Iterator[Finding]:
    """Yield each finding; print it as soon as it is there, unless JSON is wanted."""
    group = None
    for finding in findings:
        if not json:
            if finding.group != group:
                print(f"{finding.group}" if group is None else f"\n{finding.group}")
            print(beside(finding.label, finding.text), flush=True)
        group = finding.group
        yield finding


if __name__ == "__main__":
    run(main)
