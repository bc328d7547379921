"""A seeded schedule of faults over all strategies: every run ends with the bits of one that nothing happened to."""

import functools

import pytest
from proofs import prove_exact, prove_lost, prove_nothing_left
from schedule import draw, endure, possible, prepared
from setups import SETUPS, config
from training import Training

from again import again

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

SEED = 5
ALONE = ("start", "torn", "clock", "checkpoint", "notice", "damage", "step", "last", "export")
TOGETHER = ("start", "step", "checkpoint", "torn", "clock", "notice", "memory", "silence", "last", "export")
# What is run with every change: each kind on one of the two.
EVERY_TIME = {
    "multi_worker_mirrored": ("start", "torn", "notice", "silence", "last"),
    "parameter_server": ("step", "checkpoint", "clock", "memory", "export"),
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory, cache):
    """Return a function that runs a setup once without faults."""

    @functools.cache
    def run(name):
        with Training(tmp_path_factory.mktemp(name) / "straight", config(name), cache) as training:
            training.start()
            assert training.end() == 0, training.tail()
        prove_nothing_left(training)
        return training

    return run


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        *EVERY_TIME.items(),
        *(again(each, TOGETHER if SETUPS[each].cluster else ALONE, id=f"{each}-all") for each in SETUPS),
    ],
)
def test_a_run_that_is_hit_again_and_again_ends_as_if_nothing_had_happened(
    name, moments, straight, tmp_path, cache
):
    setup = SETUPS[name]
    faults = draw(SEED, setup, possible(moments))
    training = Training(tmp_path / "run", config(name), cache)
    with prepared(training, faults), training:
        hits = endure(training, setup, faults)
        is_in_step = name != "parameter_server"
        in_part = 0 if is_in_step else sum(hit.is_alone for hit in hits)
        prove_exact(training, setup.replicas, straight(name) if is_in_step else None, in_part=in_part)
        prove_lost(training, hits)
        prove_nothing_left(training)
