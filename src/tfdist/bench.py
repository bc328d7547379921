"""Measure how fast a config trains with 1 to N workers here, where the time goes, and what bounds it.

    python -m tfdist.bench --config configs/mwms2w.yaml --plot scaling.png
    python -m tfdist.bench --config configs/mwms2w.yaml --tune

Every worker has the same share of the machine in every row, as if it had a machine of its own. --tune tries
what may make the config faster here, and says what to write into it. Nothing is left of the runs.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.cluster import ClusterSection
from tfdist.config import Settings, read_config
from tfdist.errors import ConfigError, shown
from tfdist.files import write_json
from tfdist.plots import check_plotting

if TYPE_CHECKING:
    from tfdist.measurement import Bench

__all__ = ["main"]

_MOST_WORKERS = 64


def main(
    config: str | None,
    set: Sequence[str] = (),
    workers: str | None = None,
    weak: bool = False,
    tune: bool = False,
    only: Sequence[str] = (),
    steps: int = 100,
    warmup: int = 20,
    rounds: int = 3,
    plot: str | None = None,
    json: str | None = None,
    record: str | None = None,
) -> None:
    """Measure a config, or with `record` be a task of one of the runs that this takes."""
    if not config:
        raise ConfigError("--config", "is missing", remedy="Name a file: --config configs/mwms2w.yaml")
    settings = read_config(config, set)
    if record:
        _record(settings, Path(record), steps, warmup)
        return
    from tfdist.measurement import Bench

    bench = Bench(settings, settings.find_cluster(), tuple(set), steps, warmup, rounds, weak)
    if weak and (bench.is_one_process or bench.strategy == "parameter_server"):
        raise ConfigError("--weak", f"does nothing under {bench.strategy}", remedy="Leave it out")
    if tune:
        for name, given in (("plot", plot), ("workers", workers), ("weak", weak)):
            if given:
                raise ConfigError(f"--{name}", "does nothing with --tune", remedy="Leave one of them out")
        _tune(bench, only, json)
    elif only:
        raise ConfigError("--only", "does nothing without --tune", remedy="Add --tune, or leave it out")
    else:
        _measure(bench, _counts(workers, bench), plot, json)


def _measure(bench: "Bench", counts: Sequence[int], plot: str | None, json: str | None) -> None:
    from tfdist.measurement import as_values, draw, measure_scaling, show_scaling

    if plot:
        check_plotting()
    _prepare(bench.settings)
    found = measure_scaling(bench, counts)
    show_scaling(found)
    if json:
        write_json(Path(json), as_values(found))
    if plot:
        draw(found, Path(plot))


def _tune(bench: "Bench", only: Sequence[str], json: str | None) -> None:
    from tfdist.measurement import as_values, levers, show_tuning, tune

    tried = levers(bench, only)
    _prepare(bench.settings)
    found = tune(bench, tried)
    show_tuning(found)
    if json:
        write_json(Path(json), as_values(found))


def _prepare(settings: Settings) -> None:
    """Have the data there before anything starts: in their private network the tasks cannot download."""
    from tfdist.data import open_data

    open_data(**settings.config.data.wanted())


def _record(settings: Settings, folder: Path, steps: int, warmup: int) -> None:
    from tfdist.measurement.task import measure  # TensorFlow is loaded here, and not by who starts the tasks

    # The launcher gives one process a cluster of one, of which it is to know nothing.
    is_alone = settings.config.cluster == ClusterSection()
    cluster = settings.find_cluster(environ={} if is_alone else None)
    measure(settings.config, cluster, folder, steps=steps, warmup=warmup)


def _counts(text: str | None, bench: "Bench") -> list[int]:
    """Read `1..4` or `1,2,4`; without, from one worker to as many as the config has."""
    if text is None:
        return list(range(1, bench.workers + 1))
    if bench.is_one_process:
        problem = f"does nothing under {bench.strategy}, which is one process"
        raise ConfigError("--workers", problem, remedy="Leave it out, or give the config a cluster")
    bounds = re.fullmatch(r"([0-9]{1,2})\.\.([0-9]{1,2})", text)
    found: list[int] = []
    if bounds:
        found = list(range(int(bounds[1]), int(bounds[2]) + 1))
    elif re.fullmatch(r"[0-9]{1,2}(,[0-9]{1,2})*", text):
        found = sorted({int(each) for each in text.split(",")})
    if not found or not 1 <= found[0] <= found[-1] <= _MOST_WORKERS:
        expected = f"1..4 or 1,2,4, of at most {_MOST_WORKERS} workers"
        raise ConfigError("--workers", expected=expected, received=shown(text))
    return found


if __name__ == "__main__":
    from absl import flags

    from tfdist._app import run

    flags.DEFINE_string("config", None, "The YAML file that is measured; see configs/.")
    flags.DEFINE_multi_string("set", [], "Set a value of the file, e.g. data.name=digits; can be repeated.")
    flags.DEFINE_string(
        "workers", None, "How many workers: 1..4, or 1,2,4. Else 1 to as many as the file has."
    )
    flags.DEFINE_bool("weak", False, "Keep each worker's part of a batch the same, in place of the batch.")
    flags.DEFINE_bool("tune", False, "Try what may make the config faster on this machine.")
    flags.DEFINE_multi_string("only", [], "With --tune: try only this, e.g. communication; can be repeated.")
    flags.DEFINE_integer("steps", 100, "How many steps each worker is measured for.", lower_bound=1)
    flags.DEFINE_integer("warmup", 20, "How many steps come before.", lower_bound=1)
    flags.DEFINE_integer("rounds", 3, "How often everything is run, in turns.", lower_bound=1)
    flags.DEFINE_string("plot", None, "Where to draw it (needs matplotlib).")
    flags.DEFINE_string("json", None, "Where to write everything that was measured.")
    flags.DEFINE_string("record", None, "Only train and write what it took: for bench's own processes.")
    run(main, loads="tfdist.measurement.task")
