"""What the benchmarks write into docs/results.md."""

import ast
import importlib
import math
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from msgspec.structs import replace

from again import again
from tfdist.launcher.share_cores_and_gpus import own_cores
from tfdist.simulation.forecast import forecast

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]

import network_table  # noqa: E402
import results  # noqa: E402
from simulated_machine import Measured, Prediction, check_machine, setup_of  # noqa: E402


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.md"
    path.write_text(
        "Before.\n\n<!-- a -->\nold\n<!-- end of a -->\n\n<!-- a b -->\nkept\n<!-- end of a b -->\n"
    )
    monkeypatch.setattr(results, "RESULTS", path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    ["soak.py", *map(again, ("fuzz_listeners.py", "networks.py", "recovery.py", "recovery_parts.py"))],
)
def test_a_script_that_shares_code_with_the_tests_finds_it(script: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(BENCHMARKS / script), "--help"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr


SOAK = """
import pathlib, sys, soak
file = pathlib.Path(sys.argv[1])
hits = [soak.Seen("kill", 5, 4.0), soak.Seen("torn", 0, None)]
soak.keep(file, soak.Run("mirrored, two hosts", 7, 1000, "here", ["kill", "torn"], hits, True))
soak.keep(file, soak.Run("mirrored, two hosts", 3, 600, "there", ["kill", "stop"], [soak.Seen("kill", 30, 6.0)]))
runs = soak.kept(file)
print([soak.head(runs)])
print(soak.rows_by_strategy(runs))
print(soak.rows_by_fault(runs))
"""


def test_no_file_of_the_tests_has_the_name_of_a_benchmark() -> None:
    # A process that imports both finds the first: this file puts the benchmarks on the path of those after it.
    names = [
        {path.name for path in folder.rglob("*.py")} for folder in (BENCHMARKS, BENCHMARKS.parent / "tests")
    ]
    assert names[0] & names[1] == set()


def test_a_soak_counts_all_runs_that_are_kept_and_a_broken_one_as_recovered_from_nothing(
    tmp_path: Path,
) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{BENCHMARKS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", SOAK, str(tmp_path / "runs.jsonl")]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)
    [head], by_strategy, by_fault = map(ast.literal_eval, ended.stdout.splitlines())
    where = "1 of 1000 steps on here; 1 of 600 steps on there"
    assert head == f"Runs with a checkpoint every 20; seeds 3 to 7; {where}."
    times = ["5.0 s", "6.0 s (n = 2)"]
    assert by_strategy == [["`mirrored`, two hosts", "2", "4", "2", "9 (a run: 30)", *times]]
    assert by_fault == [
        ["kill", "2", "1", "18 (a fault: 30)", *times],
        ["stop", "1", "0", "-", "-", "-"],
        ["torn", "1", "1", "0 (a fault: 0)", "-", "-"],
    ]


def test_only_what_is_between_the_marks_is_replaced(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.put("a", "New: \\1.", "| table |")
    marked = "<!-- a -->\nNew: \\1.\n\n| table |\n<!-- end of a -->\n"
    assert page.read_text() == f"Before.\n\n{marked}\n<!-- a b -->\nkept\n<!-- end of a b -->\n"
    assert capsys.readouterr().out == "New: \\1.\n\n| table |\n"


def test_a_page_without_the_marks_is_left_alone(page: Path) -> None:
    before = page.read_text()
    with pytest.raises(SystemExit, match="expected the marks"):
        results.put("b", "text")
    assert page.read_text() == before


def test_new_marks_are_made_before_those_of_another_name(page: Path) -> None:
    for text in ("first", "second"):
        results.put("b", text, before="a b")
    marked = "<!-- b -->\nsecond\n<!-- end of b -->\n"
    assert f"<!-- end of a -->\n\n{marked}\n<!-- a b -->" in page.read_text()


def test_the_median_is_in_the_middle_of_the_range() -> None:
    assert results.spread([3.0, 1.0, 2.0, 10.0], ".1f", " s") == "2.5 s (1.0 to 10.0)"


def test_one_value_has_no_range() -> None:
    assert results.spread([0.8997], ".2%") == "89.97%"


def test_a_short_row_is_filled_up() -> None:
    rows = [["ours", "1", "2"], ["Horovod, not installed"]]
    assert results.table(["", "a", "b"], rows).splitlines() == [
        "|  | a | b |",
        "|---|---|---|",
        "| ours | 1 | 2 |",
        "| Horovod, not installed |  |  |",
    ]


def test_the_machine_is_this_one() -> None:
    told = results.machine("numpy")
    assert told == (
        f"{os.cpu_count()} cores ({results.processor()}), Python {platform.python_version()}, TensorFlow"
        f" {metadata.version('tensorflow')}, numpy {metadata.version('numpy')}"
    )


def test_the_processor_is_named() -> None:
    name = results.processor()
    assert name == name.strip() != ""
    told = Path("/proc/cpuinfo")
    if told.exists() and "model name" in told.read_text():
        model, _, number = name.partition(", family ")
        assert f": {model}\n" in told.read_text()
        assert number or "cpu family" not in told.read_text()  # one name stands for several processors


def test_every_mark_of_the_page_has_its_end_and_a_benchmark_that_writes_it() -> None:
    text = results.RESULTS.read_text()
    begins = re.findall(r"^<!-- (?!end of )(.+) -->$", text, flags=re.MULTILINE)
    assert begins
    assert begins == re.findall(r"^<!-- end of (.+) -->$", text, flags=re.MULTILINE)
    written = re.findall(
        r"""put\(\s*f?"([^"{]+)""", "".join(path.read_text() for path in BENCHMARKS.glob("*.py"))
    )
    assert {name for name in begins if not any(name.startswith(each) for each in written)} == set()


def test_all_of_them_have_a_quick_form() -> None:
    runner = importlib.import_module("all")
    assert set(runner.scripts()) == set(runner.QUICK)


def test_a_step_takes_as_long_as_computing_or_as_its_bytes() -> None:
    alone = network_table.Figures(wall=0.3, exchange=0.01, examples=400.0, bytes=0.0, outside=0.0)
    two = network_table.Figures(wall=0.5, exchange=0.21, examples=500.0, bytes=25e6, outside=0.0)
    assert network_table.bound(two, alone, 1e9) == 0.3
    assert network_table.bound(two, alone, 1e8) == 2.0
    assert network_table.bound(two, alone, float("inf")) == 0.3


def test_what_the_backward_pass_hides_is_a_share_of_the_exchange() -> None:
    alone = network_table.Figures(wall=0.3, exchange=0.01, examples=400.0, bytes=0.0, outside=0.0)
    two = network_table.Figures(wall=0.5, exchange=0.21, examples=500.0, bytes=25e6, outside=0.0)
    assert network_table.hidden_share(two, alone) == pytest.approx(0.0)
    assert network_table.hidden_share(two._replace(wall=0.35), alone) == pytest.approx(0.75)
    assert network_table.hidden_share(two._replace(wall=0.3), alone) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["mnist_cnn", "cifar10_cnn", "transformer", "two_tower"])
def test_a_model_that_computes_nothing_has_the_weights_of_the_real_one(name: str) -> None:
    keras, layers = importlib.import_module("network_keras"), importlib.import_module("network_layers")
    described = sorted(math.prod(shape) for layer in layers.LAYERS[name] for shape in layer.weights)
    for model in (keras.whole(name), keras.bare(name, 0.01)):
        assert sorted(math.prod(weight.shape) for weight in model.trainable_weights) == described


def test_a_row_of_the_networks_compares_within_a_round() -> None:
    def round_of(factor: float) -> dict[str, network_table.Figures]:
        alone = network_table.Figures(0.3 * factor, 0.01, 400.0 / factor, 0.0, 0.0)
        ours = network_table.Figures(0.4 * factor, 0.21, 640.0 / factor, 25e6, 0.0)
        return {"one": alone, "tcp": ours, "peer": ours._replace(wall=0.8 * factor, examples=320.0 / factor)}

    named = network_table.Row("Peer", "1gbit", "peer", "one", "one", "tcp")
    cells = network_table.row(named, [round_of(1.0), round_of(2.0)])
    by_column = dict(zip(network_table.COLUMNS, cells[1:], strict=True))
    assert cells[0] == "Peer"
    assert by_column["ms a step"] == "1200 (800 to 1600)"
    assert by_column["examples/s, of one process of tfdist"] == "0.80 (0.80 to 0.80)"
    assert by_column["tfdist is faster by"] == "2.00 (2.00 to 2.00)"
    assert by_column["MB a step"] == "25.000"
    assert by_column["of the bound"] == "2.67 (2.67 to 2.67)"


@pytest.mark.parametrize("cores", [2, 8])
def test_a_measured_machine_gives_its_own_measurement_back(cores: int) -> None:
    for worker, ps, chief in (
        (0.05, 0.01, 0.005),
        (0.06, 0.04, 0.02),
    ):  # with time to spare, and with overlap
        one = Measured(0.1, 1280.0, worker, ps, chief, 128, 7e6)
        made = setup_of(one, cores=cores)
        made = replace(made, compute=replace(made.compute, spread=0.0))
        assert forecast(made, 1).examples_per_second == pytest.approx(1280.0, rel=1e-3)


@pytest.mark.slow
@pytest.mark.again
def test_real_workers_are_measured_and_predicted() -> None:
    [found] = check_machine(1, workers=(2,))
    assert found.workers == 2
    [predicted], [measured], [cores] = found.predicted, found.measured, found.cores
    assert predicted > 0
    assert measured > 0
    # The processors' time is counted in hundredths of a second.
    assert 0 < cores <= 1.05 * len(own_cores())


def test_a_prediction_says_how_far_it_is_apart_round_by_round() -> None:
    told = str(Prediction(2, [110.0, 100.0, 99.0], [100.0, 100.0, 110.0], [1.9, 1.8, 1.75]))
    assert told == (
        "2 workers: measured 100 (100 to 110) examples/s, predicted 100 (99 to 110), apart +0 (-10 to +10) %;"
        " 1.80 (1.75 to 1.90) cores were busy"
    )
