"""Be one task of a test's cluster: the same script for all of them."""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def begin(environ: dict[str, str], order: dict, result: Path, log: Path) -> None:
    """Become the task, as if this process had been started for it."""
    gc.freeze()  # what was loaded before it was forked
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()  # a crash shows the stack of every thread
    faulthandler.register(signal.SIGUSR1)  # and so does a test that has waited too long
    from tfdist.errors import TfdistError

    code = 0
    try:
        main(order, result)
    except TfdistError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        code = error.exit_code
    except SystemExit:
        raise
    except Exception:  # noqa: BLE001  # as Python does at the end of a script
        traceback.print_exc()
        code = 1
    finally:
        atexit._run_exitfuncs()  # which a forked process does not
    sys.exit(code)


def main(order: dict, result: Path) -> None:
    from tfdist.cluster import ClusterConfig
    from tfdist.remote import connect
    from tfdist.server import serve
    from tfdist.strategy import make_strategy

    cluster = ClusterConfig.from_tf_config()
    is_remote = order.get("strategy") == "connect"
    if cluster.serves or (is_remote and not cluster.is_chief):
        serve(cluster, **order.get("serve", {}))
        return
    found = {}
    with contextlib.ExitStack() as stack:
        if is_remote:
            made = stack.enter_context(connect(cluster, **order["options"]))
        else:
            made = make_strategy(cluster, order["strategy"], **order["options"])
        for name in order["cases"]:
            found[name] = _case(name)(made, Path(order["folder"]))
            result.write_text(json.dumps(found))  # after each, for the next may be one that fails


def _case(name: str) -> Callable[..., Any]:
    """Find `function`, of cases.py, or `module.function`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module or "cases"), function)
