"""Run a command: pass its flags to its main as plain arguments, and turn errors into exit statuses.

Only the commands use absl. A command defines its flags and calls `run` inside its
`if __name__ == "__main__"` guard, so that importing two commands never defines a flag twice:

    if __name__ == "__main__":
        flags.DEFINE_string("config", None, "The file to read.")
        run(main)
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from absl import flags
from absl import logging as absl_logging

from tfdist.errors import ConfigError, TfdistError
from tfdist.launcher.environment import enable_onednn

__all__ = ["GIVEN_ENVIRONMENT", "define_log_format", "run"]

GIVEN_ENVIRONMENT = dict(os.environ)  # before a command sets variables of its own
_HELP = {"-h", "-help", "--help", "--helpshort", "--helpfull"}


def run(
    main: Callable[..., int | None],
    *,
    takes_command: bool = False,
    takes_words: bool = False,
    loads: str | None = None,
) -> None:
    """Parse the command line, call `main` with the command's flags as keyword arguments, and exit.

    With `takes_command`, `main` also gets the words after the flags, as `command`. With `takes_words`, it
    gets all words that are no flags, and flags may follow them. A launch loads the module
    `loads` once for all its tasks.

    Exit statuses: the result of `main` (None is 0), 2 for a user's mistake, 138 if a restart may help, 130 on
    Ctrl-C, 1 otherwise. A user's mistake prints one line on standard error, and no traceback.
    """
    flags.FLAGS.set_gnu_getopt(takes_words)
    sys.exit(_status(lambda: _call(main, takes_command or takes_words, loads)))


def define_log_format() -> None:
    """Define the flag of the commands that show what a launch does."""
    text = "What to print: text, or json, an object a line (docs/events.md)."
    flags.DEFINE_enum("log_format", "text", ["text", "json"], text)
    flags.FLAGS[
        "verbosity"
    ].help = "1 to show also what only the log files keep otherwise, such as TensorFlow's notes at its start."


def _call(main: Callable[..., int | None], takes_command: bool, loads: str | None) -> int | None:
    # Not absl's app.run: if it runs before the import of TensorFlow 2.12, Keras 2 believes that it is in
    # graph mode. tfdist needs only the flags and the log handler.
    rest = _parsed(sys.argv, takes_command=takes_command)
    absl_logging.use_absl_handler()
    absl_logging.set_verbosity(absl_logging.WARNING)  # the level of TensorFlow's Python code
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.getLogger("tfdist").setLevel(logging.INFO)
    # The level of TensorFlow's C++ code: only errors, unless the user sets the variable.
    is_verbose = flags.FLAGS.verbosity > 0
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if is_verbose else "2")
    enable_onednn()
    arguments: dict[str, Any] = {flag.name: flag.value for flag in _own_flags()}
    if takes_command:
        arguments["command"] = rest[1:]
    if loads is not None:
        from tfdist.launcher.supervisor.fork_server import fork_tasks  # other commands do not need it

        fork_tasks(loads)
    return main(**arguments)


def _status(call: Callable[[], int | None]) -> str | int | None:
    """Return the exit status for a call's result or error."""
    try:
        status = call()
        sys.stdout.flush()
    except TfdistError as error:
        print(f"tfdist: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe. Python would report it again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:
        return end.code
    return status


def _parsed(argv: list[str], *, takes_command: bool) -> list[str]:
    """Parse the flags; absl's own parser would exit with status 1, even for --help."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    if _HELP.intersection(own):
        print(_help())
        sys.exit(0)
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        problem = str(error).rstrip(" .?").replace("\n", " ")
        raise ConfigError("command line", problem, remedy="See --help") from None
    if rest[1:] and not takes_command:
        problem = f"unexpected argument {rest[1]!r}"
        raise ConfigError("command line", problem, remedy="Flags are --name=value; see --help")
    return rest


def _own_flags() -> list[flags.Flag[Any]]:
    own: list[flags.Flag[Any]] = flags.FLAGS.get_flags_for_module(sys.modules["__main__"])
    for module in ("tfdist.cli._jobs", __name__):  # which several commands share
        own += flags.FLAGS.get_flags_for_module(module)
    return own + ([flags.FLAGS["verbosity"]] if "log_format" in flags.FLAGS else [])


def _help() -> str:
    lines = [(sys.modules["__main__"].__doc__ or "").strip(), "", "Flags:"]
    for flag in sorted(_own_flags(), key=lambda flag: str(flag.name)):
        default = "" if flag.default in (None, [], False) else f" Default: {flag.default}."
        lines.append(f"  --{flag.name:<12} {flag.help}{default}")
    return "\n".join(lines)
