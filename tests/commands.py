"""Run commands as a user types them, or forked from a process that has loaded TensorFlow already."""

import atexit
import contextlib
import faulthandler
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

__all__ = [
    "SECONDS",
    "SHOW_STACKS",
    "Forked",
    "load_tensorflow_once",
    "python",
    "script_forked",
    "start_script",
    "start_tfdist",
    "tfdist",
    "tfdist_forked",
    "tfdist_in",
]

SECONDS = 1700.0  # what takes longer hangs, on a slow machine too
SHOW_STACKS = signal.SIGUSR1
_FORKING = multiprocessing.get_context("forkserver")
_LOCK = threading.Lock()  # multiprocessing looks after all processes whenever one starts
_LOADED = "loaded_once"


def python(
    *words: object, cwd: Path | None = None, seconds: float = SECONDS, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words on its command line, and return what it printed and how it ended."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=cwd,
        env={**os.environ, **environ},
    )


def tfdist(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m tfdist`, as a user does."""
    return python("-m", "tfdist", *words, **options)


def tfdist_in(folder: Path | str, *words: str) -> list[str]:
    """Return the words that run `tfdist` in a folder, for a machine or container that runs them."""
    return ["env", f"--chdir={folder}", sys.executable, "-m", "tfdist", *words]


def tfdist_forked(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `tfdist` in a process that has loaded TensorFlow already, which takes seconds of a core otherwise.

    It is for commands that do all in their own process: a cluster's tasks load TensorFlow in any case.
    """
    return _ended(start_tfdist, words, environ)


def script_forked(script: Path, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that has loaded TensorFlow already."""
    return _ended(start_script, (script, *words), environ)


def start_tfdist(*words: object, output: Path, errors: Path | None = None, **environ: str) -> "Forked":
    """Start `tfdist` in a process that has loaded TensorFlow already."""
    variables = {**os.environ, **environ}
    return Forked(_run_tfdist, [*map(str, words)], environ=variables, output=output, errors=errors)


def start_script(*words: object, output: Path, errors: Path | None = None, **environ: str) -> "Forked":
    """Start a script in a process that has loaded TensorFlow already."""
    variables = {**os.environ, **environ}
    return Forked(_run_script, [*map(str, words)], environ=variables, output=output, errors=errors)


def _ended(
    start: Callable[..., "Forked"], words: Sequence[object], environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        process = start(*words, output=output, errors=errors, **environ)
        try:
            status = process.wait()
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, status, output.read_text(), errors.read_text())


def load_tensorflow_once() -> None:
    """Start the process that others are forked from, with the modules that most of them load."""
    path = os.pathsep.join(filter(None, sys.path))  # which multiprocessing of Python 3.11 does not hand on
    with _variables(PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES=""):
        _FORKING.set_forkserver_preload([_LOADED])
        forkserver.ensure_running()


class Forked:
    """Run a function in a process with a session, variables and output of its own, as a program would be."""

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: Any,
        environ: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
    ) -> None:
        plan = (function, arguments, dict(environ), str(Path.cwd()), output, errors or output)
        self._process = _FORKING.Process(target=_become, args=plan)
        with _LOCK:
            self._process.start()
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, where it has ended."""
        with _LOCK:
            return self._process.exitcode

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait until it has ended, and return its exit status."""
        end = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked process", seconds)
            time.sleep(0.02)
        return status

    def kill(self) -> None:
        """End it, with all that it has started, if it has not ended: then its number may be another's."""
        if self.poll() is None:
            for kill in (os.killpg, os.kill):  # at first it is in no group of its own
                with contextlib.suppress(ProcessLookupError):
                    kill(self.pid, signal.SIGKILL)
        self.wait()


def _become(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    environ: dict[str, str],
    folder: str,
    output: Path,
    errors: Path,
) -> None:
    """Run a function in a process that was forked for it as if it had been started for it."""
    is_loaded = _LOADED in sys.modules
    gc.freeze()  # what was loaded before it was forked
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    for path, descriptor in ((output, 1), (errors, 2)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()  # a crash shows the stack of every thread
    faulthandler.register(SHOW_STACKS)  # and so does a test that has waited too long
    if not is_loaded:
        sys.exit(f"the process that tests are forked from cannot import {_LOADED}")
    sys.modules["numpy"].random.seed()  # Python's own generator does this by itself
    status = 0
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001  # as Python does at the end of a script
        error = error.with_traceback(_of_script(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    finally:
        atexit._run_exitfuncs()  # which a forked process does not
    sys.exit(status)


def _of_script(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Leave out the frames of this file and of runpy, which are not there where Python runs a script."""
    own = (__file__, runpy.run_path.__code__.co_filename)
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace


def _run_tfdist(words: list[str]) -> None:
    from tfdist.__main__ import main

    sys.argv = ["tfdist", *words]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]  # with which it may start itself again
    main()


def _run_script(words: list[str]) -> None:
    sys.argv = words
    sys.orig_argv = [sys.executable, *words]
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


@contextlib.contextmanager
def _variables(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
