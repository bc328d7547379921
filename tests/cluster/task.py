"""Run one task of a test's cluster: the same script for all of them."""

import atexit
import contextlib
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(order: dict, result: Path) -> None:
    """Run the cases of an order, as a script of the user's would be run."""
    from tfdist.errors import TfdistError

    if "ends_after" in order:  # registered first, and so called after all that a strategy does at the end
        atexit.register(wait_for, Path(order["folder"], order["ends_after"]))
    try:
        _run(order, result)
    except TfdistError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(error.exit_code)


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    while not path.exists():
        time.sleep(0.05)


def _run(order: dict, result: Path) -> None:
    from tfdist.cluster.config import ClusterConfig
    from tfdist.remote.connect_map_reduce import connect
    from tfdist.strategies.factory import make_strategy
    from tfdist.strategies.server import serve
    from tfdist.training.start import start

    cluster = ClusterConfig.from_tf_config()
    if "start" in order:
        _run_cases(order, start(order["strategy"], **order["start"]), result)
        return
    is_remote = order.get("strategy") == "connect"
    if cluster.serves or (is_remote and not cluster.is_chief):
        logging.basicConfig(format="%(message)s")
        logging.getLogger("tfdist").setLevel(logging.INFO)  # also that it has found its chief
        try:
            serve(cluster, **order.get("serve", {}))
        finally:
            time.sleep(order.get("seconds_to_clean_up", 0))  # as a script's own `finally` may take
        return
    with contextlib.ExitStack() as stack:
        if is_remote:
            made = stack.enter_context(connect(cluster, **order["options"]))
        else:
            made = make_strategy(cluster, order["strategy"], **order["options"])
        _run_cases(order, made, result)


def _run_cases(order: dict, made: Any, result: Path) -> None:
    found = {}
    for name in order["cases"]:
        found[name] = _timed(name, made, Path(order["folder"]))
        result.write_text(json.dumps(found))  # after each, for the next may be one that fails


def _timed(name: str, made: Any, folder: Path) -> Any:
    """Return what a case finds, and print what it has taken."""
    began, computed = time.monotonic(), time.process_time()
    found = _case(name)(made, folder)
    took = f"{time.monotonic() - began:.1f} s, of which it computed {time.process_time() - computed:.1f} s"
    print(f"case {name}: {took}", flush=True)
    return found


def _case(name: str) -> Callable[..., Any]:
    """Find `function`, of cases.py, or `module.function`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module or "cases"), function)
