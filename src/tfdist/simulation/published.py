"""Compare the simulation with published results, on hardware that is assumed for them."""

from collections.abc import Iterator
from typing import NamedTuple

from tfdist.simulation.forecast import forecast
from tfdist.simulation.setup import Compute, Exchange, Network, Servers, Setup

_STEPS = 10

# Inception V3 has 23.8 million weights. A K40 takes about 1.1 s for a step of 32 images.
_INCEPTION_ON_K40 = Setup(
    strategy="parameter_server_sync",
    compute=Compute(seconds_per_example=1.1 / 32, batch_size=32, spread=0.05),
    exchange=Exchange(dense_bytes=95e6),
    network=Network(bytes_per_second=10e9 / 8),
    servers=Servers(count=17),
)
_RANKING = Setup(
    strategy="parameter_server",
    compute=Compute(seconds_per_example=0.2 / 128, batch_size=128, spread=0.3),
    exchange=Exchange(dense_bytes=8e6, sparse_bytes=4e6),
    network=Network(bytes_per_second=10e9 / 8),
    servers=Servers(count=16),
)


def _horovod(images_per_second: float, weights: float) -> Setup:
    """Return the setup of servers with 4 Pascal GPUs, whose 25 Gbit/s RDMA link the ring uses each way."""
    return Setup(
        strategy="multi_worker_mirrored",
        compute=Compute(seconds_per_example=1 / images_per_second, batch_size=64, spread=0.03),
        exchange=Exchange(dense_bytes=4 * weights),
        network=Network(bytes_per_second=0.75 * 25e9 / 8, latency=5e-6),
    )


class Point(NamedTuple):
    """A published result, and the simulated one."""

    what: str
    published: float
    simulated: float
    assumed: str

    def __str__(self) -> str:
        apart = 100 * (self.simulated / self.published - 1)
        return f"{self.what}: published {self.published:g}, simulated {self.simulated:.3g} ({apart:+.0f} %)"


_K40 = "K40, 32 images in 1.1 s; 95 MB; 17 ps; 10 Gbit/s; steps spread by 5 %"
_SPARSE = "128 examples in 0.2 s, spread by 30 %; 12 MB touched of a large model; 16 ps; 10 Gbit/s"
_PASCAL = "P100, {:.0f} images/s in batches of 64, spread by 3 %; {:.0f} MB; 75 % of 25 Gbit/s, 5 us"
# Images per second of one P100 in TensorFlow's benchmarks of 2017, millions of weights, and the efficiency.
_NETWORKS = (
    ("Inception V3", 142.0, 23.8, 0.90),
    ("ResNet-101", 132.0, 44.7, 0.90),
    ("VGG-16", 147.0, 138.4, 0.68),
)


def check_published() -> Iterator[Point]:
    """Yield each published result with the simulated one."""
    ten, fifty = (forecast(_INCEPTION_ON_K40, workers, steps=_STEPS) for workers in (10, 50))
    yield Point("synchronous Inception, speedup of 50 GPUs", 40, fifty.speedup, _K40)
    ratio = fifty.examples_per_second / ten.examples_per_second
    yield Point("synchronous Inception, 50 nodes against 10", 4, ratio, _K40)
    ranking = forecast(_RANKING, 500, steps=_STEPS)
    yield Point("sparse ranking model, speedup of 500 nodes", 300, ranking.speedup, _SPARSE)
    for name, speed, weights, published in _NETWORKS:
        result = forecast(_horovod(speed, weights * 1e6), 512, steps=_STEPS)
        assumed = _PASCAL.format(speed, 4 * weights)
        yield Point(f"Horovod, efficiency of {name} on 512 GPUs", published, result.efficiency, assumed)
