"""List the options that may make a config train faster on this machine."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfdist.benchmark.scenarios import Bench, Scenario
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.launcher.share_cores_and_gpus import own_cores, own_gpus
from tfdist.strategies.options import CommunicationOptions

_STEPS_PER_EXECUTION = (1, 10, 50)
_BYTES_PER_PACK = (1 << 20, 4 << 20)
_MIRRORED = "multi_worker_mirrored"
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


@dataclass(frozen=True)
class Candidate:
    """One change of a config.

    Attributes:
        key: The option that it changes; only one of the candidates with the same key can be used.
        changes: Values of the config, as `--set` takes them.
        env: Environment variables, for options that no config has.
        note: What a user should know about it.
        keeps: Whether the mathematics stay the same; rounding may differ.
    """

    key: str
    changes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    keeps: bool = True

    @property
    def name(self) -> str:
        """Return the changes as a user writes them."""
        return " ".join([*self.changes, *(f"{name}={value}" for name, value in self.env.items())])

    def is_called(self, name: str) -> bool:
        """Return whether a name is that of the option, or of the section that contains it."""
        return self.key == name or self.key.startswith(f"{name}.")

    def applied(self, scenario: Scenario) -> Scenario:
        """Return a scenario with this change."""
        changed = scenario.changed(self.name, *self.changes, env=self.env)
        for change in self.changes:
            key, _, value = change.partition("=")
            if key == "launch.threads":  # the launcher reads it, no task does
                changed = replace(changed, threads=int(value))
            if key == "launch.pin":
                changed = replace(changed, pin=value == "true")
        return changed


def options_to_try(bench: Bench, only: Sequence[str] = ()) -> list[Candidate]:
    """Return the candidates for a config on this machine: all of them, or those that a name selects.

    A name is that of a candidate's key, or of the section that contains it.
    """
    is_on_gpus = bool(own_gpus()) and bench.settings.config.strategy.device != "cpu"
    candidates = [
        *_graph_candidates(bench),
        *_processor_candidates(bench, is_on_gpus),
        *_exchange_candidates(bench, is_on_gpus),
        *_numeric_candidates(bench, is_on_gpus),
    ]
    for name in only:
        if not any(candidate.is_called(name) for candidate in candidates):
            known = dict.fromkeys(candidate.key for candidate in candidates)
            raise ConfigError("--only", f"there is no {shown(name)} to try", remedy=did_you_mean(name, known))
    return [
        candidate for candidate in candidates if not only or any(candidate.is_called(name) for name in only)
    ]


def _graph_candidates(bench: Bench) -> Iterator[Candidate]:
    section = bench.settings.config.train
    for count in _STEPS_PER_EXECUTION:
        if section.steps_per_execution not in (None, count):  # otherwise tfdist chooses it
            yield Candidate("train.steps_per_execution", (f"train.steps_per_execution={count}",))
    if (bench.is_one_process or bench.strategy == _MIRRORED) and not section.jit_compile:
        yield Candidate("train.jit_compile", ("train.jit_compile=true",), note="XLA: other rounding")


def _processor_candidates(bench: Bench, is_on_gpus: bool) -> Iterator[Candidate]:
    section, cores = bench.settings.config.launch, len(own_cores())
    if bench.is_one_process:
        for variable, counts in (("INTRAOP", (1, cores)), ("INTEROP", (1, 2 * cores))):
            for count in dict.fromkeys(counts):
                if (variable, count) != ("INTRAOP", cores):  # the default
                    yield Candidate(
                        f"TF_NUM_{variable}_THREADS", env={f"TF_NUM_{variable}_THREADS": str(count)}
                    )
    else:
        for count in dict.fromkeys((1, bench.cores, cores)):
            if count != (section.threads or bench.cores):
                yield Candidate("launch.threads", (f"launch.threads={count}",))
        if sys.platform == "linux" and not section.pin:
            yield Candidate("launch.pin", ("launch.pin=true",))
    if not is_on_gpus:
        # By default the kind of processor decides, and on some processors the default is the slower choice.
        for value, word in (("1", "with"), ("0", "without")):
            if os.environ.get(_ONEDNN) != value:
                yield Candidate(_ONEDNN, env={_ONEDNN: value}, note=f"{word} oneDNN: other rounding")


def _exchange_candidates(bench: Bench, is_on_gpus: bool) -> Iterator[Candidate]:
    section = bench.settings.config.communication
    if not _exchanges(bench) or section.dtype not in (None, "float32") or section.encryption:
        return  # only tcp can send other types, and encrypt
    is_mirrored = bench.strategy == _MIRRORED
    default_implementations = ("ring", *(("nccl",) if is_on_gpus else ())) if is_mirrored else ("grpc",)
    for implementation in ("tcp", *default_implementations):
        if section.implementation != implementation:
            yield _communication_candidate(section, implementation=implementation)
    for count in _BYTES_PER_PACK if is_mirrored else ():
        if section.bytes_per_pack != count:
            yield _communication_candidate(section, implementation="ring", bytes_per_pack=count)


def _exchanges(bench: Bench) -> bool:
    return bool(bench.cluster.ps) or (bench.strategy == _MIRRORED and bench.workers > 1)


def _numeric_candidates(bench: Bench, is_on_gpus: bool) -> Iterator[Candidate]:
    config = bench.settings.config
    if config.strategy.precision in (None, "float32"):
        for precision in ("mixed_bfloat16", *(("mixed_float16",) if is_on_gpus else ())):
            yield Candidate("strategy.precision", (f"strategy.precision={precision}",), keeps=False)
    if _exchanges(bench):
        for dtype in ("bfloat16", "int8"):
            if config.communication.dtype != dtype:
                candidate = _communication_candidate(config.communication, implementation="tcp", dtype=dtype)
                yield replace(candidate, key="communication.dtype", keeps=False)
    yield Candidate("data.batch_size", (f"data.batch_size={2 * config.data.batch_size}",), keeps=False)


def _communication_candidate(section: CommunicationOptions, **values: str | float) -> Candidate:
    """Return the candidate that sets the whole section, because some of its keys exclude each other."""
    if section.timeout is not None and values["implementation"] != "grpc":  # grpc has no timeout
        values["timeout"] = section.timeout
    if section.encryption is not None:
        values["encryption"] = section.encryption
    text = ", ".join(f"{key}: {value}" for key, value in values.items())
    return Candidate("communication.implementation", (f"communication={{{text}}}",))
