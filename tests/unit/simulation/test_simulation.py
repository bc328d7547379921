"""The simulation: what must come out exactly, what must come out in order, and what others have measured."""

import math

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tfdist.cli.simulate import _counts
from tfdist.errors import ConfigError
from tfdist.simulation.events import Clock, Core, Queue, send
from tfdist.simulation.forecast import forecast
from tfdist.simulation.published import check_published
from tfdist.simulation.random_step_times import Draws
from tfdist.simulation.ring import _sharers, _sharing
from tfdist.simulation.setup import Compute, Exchange, Machine, Network, Servers, Setup, read_setup
from tfdist.simulation.suggest_changes import advise

ALONE = 0.1  # seconds of a step


def setup(
    strategy="parameter_server", *, spread=0.0, dense=0.0, sparse=0.0, speed=1e9, latency=0.0, ps=1, **more
):
    exchange = {"dense_bytes": dense, "sparse_bytes": sparse, "overlap": False, "bucket_bytes": 1e12}
    return Setup(
        strategy=strategy,
        compute=Compute(
            seconds_per_example=ALONE / 10, batch_size=10, spread=spread, **more.pop("compute", {})
        ),
        exchange=Exchange(**{**exchange, **more.pop("exchange", {})}),
        network=Network(bytes_per_second=speed, latency=latency),
        servers=Servers(count=ps, **more),
    )


STRATEGIES = ["parameter_server", "parameter_server_sync", "multi_worker_mirrored"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("compute", "seconds_per_example", 1e308),
        ("compute", "spread", 1e308),
        ("exchange", "dense_bytes", 1e308),
        ("network", "latency", 1e308),
        ("network", "bytes_per_second", 1e-320),
    ],
)
def test_numbers_that_overflow_are_refused(section, key, value):
    values = msgspec.to_builtins(setup())
    values[section][key] = value
    with pytest.raises(msgspec.ValidationError, match="Expected `float`"):
        msgspec.convert(values, Setup)


def test_a_config_of_a_training_is_named_as_such(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("cluster: {worker: 2}\nstrategy: {name: multi_worker_mirrored}\n")
    with pytest.raises(ConfigError, match=r"x.yaml: is a config of tfdist train, but a simulation reads"):
        read_setup(path)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("workers", [1, 3, 40])
def test_what_exchanges_nothing_and_is_equally_fast_scales_without_loss(strategy, workers):
    found = forecast(setup(strategy), workers)
    assert found.speedup == pytest.approx(workers)
    assert found.efficiency == pytest.approx(1.0)
    assert found.waiting == pytest.approx(0.0, abs=1e-12)


def test_one_worker_beside_a_ps_takes_what_its_parts_take():
    made = setup(dense=1e8, latency=0.001, seconds_per_byte=1e-10, chief_seconds=0.02)
    # Given out, asked for, read, computed, sent, added, confirmed. The last of 4 buckets is added by itself.
    added = 1e8 * 1e-10 / 4
    seconds = 0.02 + 0.001 + (0.1 + 0.001) + ALONE + (0.1 + 0.001) + added + 0.001
    # A link that passes things on at once begins with the first bucket, and its ps adds the others meanwhile.
    assert forecast(made, 1).examples_per_second == pytest.approx(10 / seconds)
    assert forecast(made, 1).bytes_per_second == pytest.approx(2e8 / seconds, rel=0.01)


def test_the_link_of_a_single_ps_is_the_limit_however_many_workers_there_are():
    made = setup(dense=1e8, spread=0.1)
    limit = 10 / 0.1  # it sends, and takes in, one worker's variables in 0.1 s
    assert forecast(made, 20).examples_per_second == pytest.approx(limit, rel=0.02)
    assert forecast(made, 40).examples_per_second == pytest.approx(limit, rel=0.02)
    more = forecast(replace(made, servers=Servers(count=4)), 40).examples_per_second
    assert more == pytest.approx(4 * limit, rel=0.05)


@pytest.mark.parametrize("workers", [2, 5])
def test_a_ring_takes_the_time_of_its_formula(workers):
    made = setup("multi_worker_mirrored", dense=1e8, sparse=1e6, latency=0.001)
    dense = 2 * (workers - 1) * (1e8 / workers / 1e9 + 0.001)
    sparse = (workers - 1) * (1e6 / 1e9 + 0.001)
    found = forecast(made, workers)
    assert found.examples_per_second == pytest.approx(workers * 10 / (ALONE + dense + sparse))


def test_overlap_hides_an_exchange_that_is_shorter_than_the_backward_pass():
    slow = setup("multi_worker_mirrored", dense=5e7, exchange={"bucket_bytes": 1e6})
    fast = replace(slow, exchange=replace(slow.exchange, overlap=True))
    assert forecast(slow, 4).efficiency < 0.6
    assert forecast(fast, 4).efficiency > 0.85


def test_staleness_and_waiting_come_out_of_it():
    apart, together = (forecast(setup(name, spread=0.2), 16, steps=100) for name in STRATEGIES[:2])
    assert apart.staleness == pytest.approx(
        15, rel=0.02
    )  # each sees one update of every other in its own step
    assert apart.most_stale > 15
    assert apart.waiting == pytest.approx(0, abs=1e-9)
    assert (together.staleness, together.most_stale) == (0, 0)
    # All wait for the slowest of 16, which is drawn here by itself.
    sigma = math.sqrt(math.log1p(0.2**2))
    drawn = np.random.default_rng(1).lognormal(-sigma * sigma / 2, sigma, (20_000, 16))
    assert together.waiting == pytest.approx(1 - 1 / drawn.max(axis=1).mean(), abs=0.02)


def test_stragglers_hold_up_those_in_step_and_no_others():
    slow = {"slow_share": 0.02, "slow_factor": 5.0}
    apart, together = (forecast(setup(name, compute=slow), 20, steps=300) for name in STRATEGIES[:2])
    # 1.08 is the mean step's; that of the slowest of 20 is 1 + 4 x (1 - 0.98^20).
    assert apart.efficiency == pytest.approx(1.0, abs=0.05)
    assert together.efficiency == pytest.approx(1.08 / (1 + 4 * (1 - 0.98**20)), rel=0.1)


def test_bytes_are_those_of_the_dtype_on_the_wire():
    moved = {}
    for dtype in ("float32", "bfloat16", "int8"):
        made = setup(dense=1e8, exchange={"dtype": dtype})
        found = forecast(made, 1)
        moved[dtype] = found.bytes_per_second / found.examples_per_second
    assert moved["float32"] == pytest.approx(2 * moved["bfloat16"], rel=0.02)
    assert moved["float32"] == pytest.approx(4 * moved["int8"], rel=0.02)


def test_a_core_is_shared_by_those_that_compute_on_it():
    clock, ended = Clock(), []
    core = Core(clock)
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        core.compute(seconds, lambda name=name: ended.append((name, clock.reached)))
    clock.at(2.5, lambda: core.compute(1.0, lambda: ended.append(("c", clock.reached))))
    clock.run()
    # Two share it until a has had its second; c comes when b has half a second left.
    assert ended == [("a", pytest.approx(2.0)), ("b", pytest.approx(3.5)), ("c", pytest.approx(4.0))]


def test_tasks_of_one_machine_are_spread_from_both_ends_of_its_cores():
    machine = Machine(cores=4)
    assert [machine.core_of("worker", index) for index in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [machine.core_of("ps", index) for index in range(6)] == [3, 2, 1, 0, 3, 2]
    assert machine.core_of("chief") == 3
    assert {Machine(cores=1).core_of(*task) for task in (("worker", 1), ("ps", 1), ("chief", 0))} == {0}


def test_a_core_that_has_nothing_to_do_does_not_help_another():
    # Two of three workers share a core. At their own pace both cores are busy; in step one waits for the other.
    apart, *together = (
        forecast(replace(setup(name), machine=Machine(cores=2)), 3, steps=200).examples_per_second
        for name in STRATEGIES
    )
    assert apart == pytest.approx(2 * 10 / ALONE, rel=0.01)
    assert together == pytest.approx([3 * 10 / (2 * ALONE)] * 2, rel=0.01)


def test_each_ps_of_a_machine_has_its_part():
    def speed(ps):
        made = replace(setup(seconds_per_step=0.5 * ALONE, ps=ps), machine=Machine(cores=3))
        return forecast(made, 1).examples_per_second

    assert speed(1) == pytest.approx(10 / (1.5 * ALONE))
    assert speed(2) == pytest.approx(10 / (1.25 * ALONE))


def test_mirrored_workers_of_a_core_share_it_until_the_first_has_ended():
    ended = _sharing(np.array([0.3, 1.0, 0.1, 0.2]), _sharers(4, Machine(cores=2)))
    assert list(ended) == pytest.approx([0.2 + 0.2, 0.4 + 0.8, 0.2, 0.4])


def test_what_a_worker_does_when_its_gradients_have_gone_is_on_its_core_alone():
    def speed(beside, ps):
        made = replace(setup(seconds_per_step=ps), machine=Machine(cores=2, beside=beside))
        return forecast(made, 1).examples_per_second

    assert speed(0.05, ps=0.1) == pytest.approx(speed(0, ps=0.1))  # while the ps works elsewhere
    assert speed(0.05, ps=0) == pytest.approx(10 / 0.15, rel=0.01)


def test_links_serve_in_the_order_of_coming():
    clock, ended = Clock(), []
    one, other, receiver = Queue(clock), Queue(clock), Queue(clock)
    send(clock, one, receiver, 1.0, 0.5, lambda: ended.append(("one", clock.reached)))
    send(clock, other, receiver, 1.0, 0.25, lambda: ended.append(("other", clock.reached)))
    clock.run()
    assert ended == [("other", 1.25), ("one", 2.25)]


def test_draws_have_the_mean_and_spread_that_were_asked_for():
    drawn = Draws(Compute(seconds_per_example=0.01, batch_size=10, spread=0.3), 0).steps(200_000)
    assert float(drawn.mean()) == pytest.approx(0.1, rel=0.01)
    assert float(drawn.std()) == pytest.approx(0.03, rel=0.02)


def test_the_same_seed_gives_the_same_forecast():
    made = setup(spread=0.3, dense=1e7)
    assert forecast(made, 7, seed=3) == forecast(made, 7, seed=3) != forecast(made, 7, seed=4)


def test_the_published_points_are_met():
    found = list(check_published())
    assert len(found) == 6
    for point in found:
        assert point.simulated == pytest.approx(point.published, rel=0.15), str(point)


def test_advice_names_what_is_short():
    apart = advise(setup(dense=1e8, spread=0.1), 20)
    assert apart[0].what == "mirrored workers in place of ps"
    assert apart == sorted(apart, key=lambda change: -change.gain)
    whats = {change.what: change.gain for change in apart}
    assert whats["2 ps in place of 1"] == pytest.approx(1.0, abs=0.05)
    assert whats["an 8-bit exchange (int8)"] == pytest.approx(3.0, abs=0.2)
    assert advise(setup(), 20) == []


def test_numbers_of_workers_are_read():
    assert _counts("1..100") == [1, 2, 5, 10, 20, 50, 100]
    assert _counts("3..30") == [3, 5, 10, 20, 30]
    assert _counts("4,1,2") == [1, 2, 4]
    for text in ("", "0", "5..1", "1..2000", "a", "1,,2"):
        with pytest.raises(ConfigError, match="--workers"):
            _counts(text)
