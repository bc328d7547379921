"""Run Keras's own tests of fit, evaluate and predict through tfdist, under each strategy.

    python benchmarks/keras_tests.py                                  # one_device and mirrored
    python benchmarks/keras_tests.py --strategies parameter_server --wanted "fit and not sparse"
    python benchmarks/keras_tests.py --source ~/keras/keras/src       # those of a source tree
    python benchmarks/keras_tests.py --results results.json           # run what this file lacks, and add it

The tests come with the installed Keras 3, or from a source tree of the same version. They run from a copy, so
that their classes are not Keras's own: first as they are, and then with `fit`, `evaluate` and `predict` of
Keras's trainer replaced by tfdist's. A test that plain Keras passes here should pass under every strategy
that can mean the same; the table says which do not. A test that does not end in time is ended with its
processes, and the rest run in new ones. The tests import jax and pandas.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PLAIN = "plain Keras"
TESTS = ["trainers/trainer_test.py"]
OPTIONS: dict[str, dict[str, Any]] = {
    "mirrored": {"logical_devices": 2},
    "parameter_server": {"workers": 2, "ps": 1},
    "parameter_server_sync": {"workers": 2, "ps": 1},
}
LAUNCHED = "multi_worker_mirrored"  # every task runs the tests; those of a parameter server serve one process
STRATEGY, DONE, RECORDS = "TFDIST_KERAS_TESTS", "TFDIST_KERAS_DONE", "TFDIST_KERAS_RECORDS"
PASSED, SKIPPED = "passed", "skipped"
LONGEST = 200  # characters of a reason
_STARTS = 3  # times as long as a test, until the first one begins


# In the process of the tests, which loads this file as a plugin of pytest.


def pytest_configure() -> None:
    """Replace Keras's methods."""
    strategy: Any = os.environ[STRATEGY]
    if strategy == PLAIN:
        return
    import tfdist

    tfdist.start(strategy, **OPTIONS.get(strategy, {}))
    import keras

    methods = ("fit", "evaluate", "predict")
    for name in methods:  # those that `start` has set hide the trainer's
        setattr(keras.Model, name, getattr(tfdist, name))
    trainer = next(kind for kind in keras.Model.__mro__[1:] if "fit" in vars(kind))
    for name in (
        *methods,
        "train_on_batch",
        "test_on_batch",
        "predict_on_batch",
    ):  # Keras's tests derive models from it
        setattr(trainer, name, vars(keras.Model)[name])


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out the tests of earlier processes."""
    done = set(json.loads(Path(os.environ[DONE]).read_text()))
    items[:] = [item for item in items if named(item.location) not in done]


def pytest_runtest_logstart(location: tuple[str, int | None, str]) -> None:
    """Record that a test begins."""
    _record(test=named(location), outcome=None)


def pytest_collectreport(report: Any) -> None:
    """Record a file that cannot be imported as a test that fails."""
    if report.outcome == "failed":
        _record(test=f"{Path(report.nodeid).stem} as a whole", outcome=_reason(report))


def pytest_runtest_logreport(report: Any) -> None:
    """Record the outcome of a test's setup, call or teardown."""
    if report.outcome == "failed":
        _record(test=named(report.location), outcome=_reason(report))
    elif report.outcome == SKIPPED:
        _record(test=named(report.location), outcome=SKIPPED)
    elif report.when == "call":
        _record(test=named(report.location), outcome=PASSED)


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(text.split())[:LONGEST]


def pytest_sessionfinish(session: Any) -> None:
    """End with status 0: a launcher ends all tasks where one fails."""
    session.exitstatus = 0


def named(location: tuple[str, int | None, str]) -> str:
    """Return the name of a test: its file and its own name."""
    return f"{Path(location[0]).stem}.{location[2]}"


def _record(**values: Any) -> None:
    with (Path(os.environ[RECORDS]) / f"{os.getpid()}.jsonl").open("a") as records:
        print(json.dumps(values), file=records)


# In the process that the user starts.


def run(
    strategy: str,
    tests: Iterable[Path],
    wanted: str | None,
    seconds: int,
    outcomes: dict[str, str],
    save: Callable[[], None],
) -> None:
    """Run the tests under a strategy; add the outcome of each: "passed", "skipped", or its error.

    Tests that have an outcome already are left out. `save` is called when a process of tests has ended.
    """
    while True:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            status = _run_once(strategy, tests, wanted, seconds, Path(folder), list(outcomes))
            seen, unfinished = _read(Path(folder))
            for test in unfinished:
                seen[test] = (
                    f"did not end in {seconds} s" if status is None else f"its process ended: {status}"
                )
            outcomes.update(seen)
            save()
            if status == 0 and not unfinished:
                return
            if not seen:
                sys.exit(f"{strategy}: no test ran:\n{(Path(folder) / 'output').read_text()[-3000:]}")


def _run_once(
    strategy: str, tests: Iterable[Path], wanted: str | None, seconds: int, folder: Path, done: list[str]
) -> int | None:
    """Run the tests that are not done; return the exit status, None if a test took too long."""
    (folder / "done.json").write_text(json.dumps(done))
    command = [sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem, "-p", "no:cacheprovider"]
    command += [
        "-p",
        "no:xdist",
        "-c",
        os.devnull,
        f"--rootdir={folder}",
        "--continue-on-collection-errors",
        *(["-k", wanted] if wanted else []),
    ]
    for test in tests:
        command.append(shutil.copy(str(test), str(folder)))
    if strategy == LAUNCHED:
        command = [sys.executable, "-m", "tfdist", "launch", "--workers", "2", "--", *command]
    environment = {
        **os.environ,
        STRATEGY: strategy,
        DONE: str(folder / "done.json"),
        RECORDS: str(folder),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return _watch(process, folder, seconds)


def _watch(process: subprocess.Popen[bytes], folder: Path, seconds: int) -> int | None:
    """Wait for the end; end the processes, and return None, after so many seconds without news of a test.

    The first test may take longer to begin: TensorFlow starts before it.
    """
    try:
        news, last = -1, time.monotonic()
        while process.poll() is None:
            size = sum(file.stat().st_size for file in folder.glob("*.jsonl"))
            if size != news:
                news, last = size, time.monotonic()
            elif time.monotonic() - last > seconds * (1 if news else _STARTS):
                return None
            time.sleep(0.2)
        return process.returncode
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)


def _read(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the outcomes that all processes recorded, and the tests that a process began and did not end."""
    outcomes: dict[str, str] = {}
    unfinished = []
    for file in folder.glob("*.jsonl"):
        own: dict[str, str | None] = {}
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if own.get(record["test"]) in (None, PASSED):  # an error in the teardown counts
                own[record["test"]] = record["outcome"]
        for test, outcome in own.items():
            if outcome is None:
                unfinished.append(test)
            elif outcomes.get(test, PASSED) == PASSED:
                outcomes[test] = outcome
    return outcomes, unfinished


def main() -> None:
    """Print a table: how many tests of those that plain Keras passes pass under each strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["one_device", "mirrored"])
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files below the source")
    parser.add_argument("--source", type=Path, help="keras/src of a source tree")
    parser.add_argument("--wanted", help="as for pytest -k")
    parser.add_argument("--seconds", type=int, default=120, help="the most that a test may take")
    parser.add_argument("--results", type=Path, help="a JSON file to keep outcomes in, by strategy")
    given = parser.parse_args()
    import keras
    import tensorflow as tf

    source = given.source or Path(keras.__file__).parent / "src"
    tests = [source / test for test in given.tests]
    results: dict[str, dict[str, str]] = {}
    if given.results and given.results.exists():
        results = json.loads(given.results.read_text())

    def save() -> None:
        if given.results:
            given.results.write_text(json.dumps(results, indent=1))

    for strategy in (PLAIN, *given.strategies):
        run(strategy, tests, given.wanted, given.seconds, results.setdefault(strategy, {}), save)
    print(f"Keras {keras.__version__}, TensorFlow {tf.__version__}\n")
    print_table(results, given.strategies)


def print_table(results: dict[str, dict[str, str]], strategies: list[str]) -> None:
    """Print each failing test with its reason, and the totals."""
    passing = [name for name, outcome in results[PLAIN].items() if outcome == PASSED]
    print(f"{PLAIN}: {len(passing)} of {len(results[PLAIN])} tests pass")
    rows = []
    for strategy in strategies:
        outcomes = results[strategy]
        failing = {name: outcomes.get(name, "not run") for name in passing if outcomes.get(name) != PASSED}
        rows.append(f"| `{strategy}` | {len(passing) - len(failing)} of {len(passing)} |")
        print(f"\n{strategy}:", *(f"\n  {name}: {failing[name]}" for name in sorted(failing)))
    print("\n| strategy | tests passed |\n|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
