"""Measure how fast a config trains with 1 to N workers here, where the time goes, and what bounds it.

    tfdist bench --config configs/mwms2w.yaml --plot scaling.png
    tfdist bench --config configs/mwms2w.yaml --tune

Every worker has the same share of the machine in every row, as if it had a machine of its own. --tune tries
what may make the config faster here, and says what to write into it. Nothing is left of the runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tfdist._utils.check_and_expand_paths import local_path
from tfdist._utils.plotting import file_to_draw
from tfdist._utils.read_yaml_and_json import check_not_stream
from tfdist._utils.write_files import as_json, write_output
from tfdist.cli._check_values import worker_counts
from tfdist.cli._flags_from_signature import Changes, Flag, NeededConfig, run
from tfdist.cli._prepare_data import prepare_data
from tfdist.cluster.config import ClusterSection
from tfdist.errors import ConfigError
from tfdist.trainer.config import Settings, read_config

if TYPE_CHECKING:
    from tfdist.benchmark.scenarios import Bench

_MOST_WORKERS = 64


def main(
    config: NeededConfig,
    set: Changes = (),
    workers: Annotated[
        str | None, Flag("How many workers: 1..4, or 1,2,4. Else 1 to as many as the file has.")
    ] = None,
    weak: Annotated[bool, Flag("Keep the batch of each worker constant, not the global batch.")] = False,
    tune: Annotated[bool, Flag("Measure which changes make the config faster on this machine.")] = False,
    only: Annotated[
        Sequence[str], Flag("With --tune: try only this, e.g. communication; can be repeated.")
    ] = (),
    steps: Annotated[int, Flag("How many steps each worker is measured for.", least=1)] = 100,
    warmup: Annotated[int, Flag("How many warm-up steps come before.", least=1)] = 20,
    rounds: Annotated[int, Flag("How often everything is run, in turns.", least=1)] = 3,
    plot: Annotated[str | None, Flag("The PNG to draw the result in (needs matplotlib).")] = None,
    json: Annotated[str | None, Flag("The file to write all measured values to.")] = None,
    record: Annotated[str | None, Flag("Only train and write the times.", is_hidden=True)] = None,
) -> None:
    """Measure a config, or with `record` run as a task of one of its measurements."""
    for flag, value in (("--json", json), ("--plot", plot)):
        local_path(value or "", flag)  # an error before the measurements
    check_not_stream(config)
    settings = read_config(config, set)
    if record:
        _record(settings, Path(record), steps, warmup)
        return
    from tfdist.benchmark.scenarios import Bench

    bench = Bench(settings, settings.find_cluster(), tuple(set), steps, warmup, rounds, weak)
    if weak and (bench.is_one_process or bench.strategy == "parameter_server"):
        raise ConfigError("--weak", f"has no effect with {bench.strategy}", remedy="Leave it out")
    if tune:
        for name, given in (("plot", plot), ("workers", workers), ("weak", weak)):
            if given:
                raise ConfigError(f"--{name}", "has no effect with --tune", remedy="Leave one of them out")
        _tune(bench, only, json)
    elif only:
        raise ConfigError("--only", "has no effect without --tune", remedy="Add --tune, or leave it out")
    else:
        _measure(bench, _counts(workers, bench), plot, json)


def _measure(bench: "Bench", counts: Sequence[int], plot: str | None, json: str | None) -> None:
    from tfdist.benchmark.report import as_values, draw, show_scaling
    from tfdist.benchmark.scaling import measure_scaling

    file = file_to_draw(plot) if plot else None
    prepare_data(bench.settings)
    results = measure_scaling(bench, counts)
    show_scaling(results)
    if json:
        write_output(local_path(json, "--json"), as_json(as_values(results)))
    if file:
        draw(results, file)


def _tune(bench: "Bench", only: Sequence[str], json: str | None) -> None:
    from tfdist.benchmark.options_to_try import options_to_try
    from tfdist.benchmark.report import as_values, show_tuning
    from tfdist.benchmark.tuning import tune

    tried = options_to_try(bench, only)
    prepare_data(bench.settings)
    results = tune(bench, tried)
    show_tuning(results)
    if json:
        write_output(local_path(json, "--json"), as_json(as_values(results)))


def _record(settings: Settings, folder: Path, steps: int, warmup: int) -> None:
    from tfdist.benchmark.measure_task import measure  # loads TensorFlow, which the launcher does not need

    # The launcher sets a cluster of one task for a single process, which must train without a cluster.
    is_alone = settings.config.cluster == ClusterSection()
    cluster = settings.find_cluster(environ={} if is_alone else None)
    measure(settings.config, cluster, folder, steps=steps, warmup=warmup)


def _counts(text: str | None, bench: "Bench") -> list[int]:
    """Parse `1..4` or `1,2,4`; the default is 1 up to the config's number of workers."""
    if text is None:
        return list(range(1, bench.workers + 1))
    if bench.is_one_process:
        problem = f"has no effect with {bench.strategy}, which is one process"
        raise ConfigError("--workers", problem, remedy="Leave it out, or add a cluster to the config")
    return worker_counts(text, _MOST_WORKERS)


if __name__ == "__main__":
    run(main, loads="tfdist.benchmark.measure_task")
