"""Find an engine by its name: one of tfdist, or a plug-in of another package."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from tfdist.engines.clouds.sagemaker import SageMaker
from tfdist.engines.clouds.vertex import Vertex
from tfdist.engines.compose.engine import Compose
from tfdist.engines.kubernetes.job_kinds import JobSet, Kubernetes, TFJob, TrainJob
from tfdist.engines.local import Local
from tfdist.engines.protocol import Engine
from tfdist.engines.ray.engine import Ray
from tfdist.engines.slurm.engine import Slurm
from tfdist.engines.ssh.engine import Ssh
from tfdist.errors import ConfigError, did_you_mean

ENTRY_POINTS = "tfdist.engines"  # the group in which a package names a class of its own
_METHODS = ("render", "submit", "state", "logs", "cancel")
_CLASSES = (Compose, JobSet, Kubernetes, Local, Ray, SageMaker, Slurm, Ssh, TFJob, TrainJob, Vertex)
_ENGINES: dict[str, Callable[[], Engine]] = {engine.name: engine for engine in _CLASSES}


def engine_names() -> list[str]:
    """Return the names of all engines, those of plug-ins included."""
    return sorted({*_ENGINES, *entry_points(group=ENTRY_POINTS).names})


def find_engine(name: str) -> Engine:
    """Return the engine of a name.

    Raises:
        ConfigError: There is no such engine.
    """
    if make := _ENGINES.get(name):
        return make()
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return _of_plug_in(point)
    raise ConfigError("engine", f"there is no '{name}'", remedy=did_you_mean(name, engine_names()))


def _of_plug_in(point: EntryPoint) -> Engine:
    remedy = f"Mend or remove the package that names {point.value}"
    try:
        engine: Engine = point.load()()
    except Exception as error:  # whatever the code of another package raises
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
        raise ConfigError(f"engine {point.name}", problem, remedy=remedy) from error
    for method in _METHODS:
        if not callable(getattr(engine, method, None)):
            raise ConfigError(f"engine {point.name}", f"has no method {method}", remedy=remedy)
    return engine
