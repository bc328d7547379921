"""List what may make a config train faster on this machine, and by what a user would ask for it."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfdist.config import CommunicationSection
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.launcher import own_cores, own_gpus
from tfdist.measurement.ways import Bench, Way

__all__ = ["Lever", "levers"]

_STEPS_PER_EXECUTION = (1, 10, 50)
_BYTES_PER_PACK = (1 << 20, 4 << 20)
_MIRRORED = "multi_worker_mirrored"
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


@dataclass(frozen=True)
class Lever:
    """Hold one change.

    Attributes:
        key: What it changes: of the levers with one key, one can be taken.
        changes: Values of the config, as `--set` has them.
        env: Variables of the environment, for what no config says.
        note: What a user should know of it.
        keeps: Whether the mathematics stay the same; rounding may differ.
    """

    key: str
    changes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    keeps: bool = True

    @property
    def name(self) -> str:
        """Name it by what is to be written for it."""
        return " ".join([*self.changes, *(f"{name}={value}" for name, value in self.env.items())])

    def is_called(self, name: str) -> bool:
        """Say whether a name is that of what it changes, or of the section where that is."""
        return self.key == name or self.key.startswith(f"{name}.")

    def applied(self, way: Way) -> Way:
        """Give a way of training with it."""
        changed = way.changed(self.name, *self.changes, env=self.env)
        for change in self.changes:
            key, _, value = change.partition("=")
            if key == "launch.threads":  # which the launcher heeds, and no task
                changed = replace(changed, threads=int(value))
            if key == "launch.pin":
                changed = replace(changed, pin=value == "true")
        return changed


def levers(bench: Bench, only: Sequence[str] = ()) -> list[Lever]:
    """List what there is to try for a config on this machine: all, or only what has one of these names.

    A name is that of a lever's key, or of the section in which it is.
    """
    is_on_gpus = bool(own_gpus()) and bench.settings.config.strategy.device != "cpu"
    found = [
        *_of_graph(bench),
        *_of_processors(bench, is_on_gpus),
        *_of_exchange(bench, is_on_gpus),
        *_other(bench, is_on_gpus),
    ]
    for name in only:
        if not any(each.is_called(name) for each in found):
            known = dict.fromkeys(each.key for each in found)
            raise ConfigError("--only", f"there is no {shown(name)} to try", remedy=did_you_mean(name, known))
    return [each for each in found if not only or any(each.is_called(name) for name in only)]


def _of_graph(bench: Bench) -> Iterator[Lever]:
    section = bench.settings.config.train
    for count in _STEPS_PER_EXECUTION:
        if count != section.steps_per_execution:
            yield Lever("train.steps_per_execution", (f"train.steps_per_execution={count}",))
    if bench.strategy in ("one_device", "mirrored", _MIRRORED) and not section.jit_compile:
        yield Lever("train.jit_compile", ("train.jit_compile=true",), note="XLA: other rounding")


def _of_processors(bench: Bench, is_on_gpus: bool) -> Iterator[Lever]:
    section, cores = bench.settings.config.launch, len(own_cores())
    if bench.is_one_process:
        for variable, counts in (("INTRAOP", (1, cores)), ("INTEROP", (1, 2 * cores))):
            for count in dict.fromkeys(counts):
                if (variable, count) != ("INTRAOP", cores):  # as it is
                    yield Lever(f"TF_NUM_{variable}_THREADS", env={f"TF_NUM_{variable}_THREADS": str(count)})
    else:
        for count in dict.fromkeys((1, bench.cores, cores)):
            if count != (section.threads or bench.cores):
                yield Lever("launch.threads", (f"launch.threads={count}",))
        if sys.platform == "linux" and not section.pin:
            yield Lever("launch.pin", ("launch.pin=true",))
    if not is_on_gpus:
        # Where nobody says it, it is on or off by the kind of processor, and the wrong way round on some.
        for value, word in (("1", "with"), ("0", "without")):
            if os.environ.get(_ONEDNN) != value:
                yield Lever(_ONEDNN, env={_ONEDNN: value}, note=f"{word} oneDNN: other rounding")


def _of_exchange(bench: Bench, is_on_gpus: bool) -> Iterator[Lever]:
    said = bench.settings.config.communication
    if not _exchanges(bench) or said.dtype not in (None, "float32"):
        return
    is_mirrored = bench.strategy == _MIRRORED
    own = ("ring", *(("nccl",) if is_on_gpus else ())) if is_mirrored else ("grpc",)
    for implementation in ("tcp", *own):
        if said.implementation != implementation:
            yield _communication(said, implementation=implementation)
    for count in _BYTES_PER_PACK if is_mirrored else ():
        if said.bytes_per_pack != count:
            yield _communication(said, implementation="ring", bytes_per_pack=count)


def _exchanges(bench: Bench) -> bool:
    return bool(bench.cluster.ps) or (bench.strategy == _MIRRORED and bench.workers > 1)


def _other(bench: Bench, is_on_gpus: bool) -> Iterator[Lever]:
    config = bench.settings.config
    if config.strategy.precision in (None, "float32"):
        for precision in ("mixed_bfloat16", *(("mixed_float16",) if is_on_gpus else ())):
            yield Lever("strategy.precision", (f"strategy.precision={precision}",), keeps=False)
    if _exchanges(bench):
        for dtype in ("bfloat16", "int8"):
            if config.communication.dtype != dtype:
                lever = _communication(config.communication, implementation="tcp", dtype=dtype)
                yield replace(lever, key="communication.dtype", keeps=False)
    yield Lever("data.batch_size", (f"data.batch_size={2 * config.data.batch_size}",), keeps=False)


def _communication(said: CommunicationSection, **values: str | float) -> Lever:
    """Give the lever that sets the whole section: its keys do not all go together."""
    if said.timeout is not None and values["implementation"] != "grpc":  # which has none
        values["timeout"] = said.timeout
    text = ", ".join(f"{key}: {value}" for key, value in values.items())
    return Lever("communication.implementation", (f"communication={{{text}}}",))
