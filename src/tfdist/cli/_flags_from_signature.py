"""Define the flags of a command by the parameters of its main, and run it: errors become exit statuses.

Only the commands use absl. A parameter of `main` is a flag if its annotation has a `Flag`; its type and its
default are those of the flag. `run` defines the flags, so two commands that are imported define none twice:

    def main(config: Annotated[str | None, Flag("The file to read.")]) -> None: ...

    if __name__ == "__main__":
        run(main)
"""

import inspect
import logging
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from absl import flags
from absl import logging as absl_logging

from tfdist.cli._exit_status import exit_status
from tfdist.errors import ConfigError
from tfdist.launcher.onednn_variables import enable_onednn

GIVEN_ENVIRONMENT = dict(os.environ)  # before a command sets variables of its own
_DEFINE: dict[type, Callable[..., object]] = {
    bool: flags.DEFINE_bool,
    float: flags.DEFINE_float,
    int: flags.DEFINE_integer,
    str: flags.DEFINE_string,
}
_OF_ABSL = ";\n    repeat this option to specify a list of values"  # at the end of such a flag's help
_COLUMNS = 110  # that are filled, at most
_HELP = {"-h", "-help", "--help", "--helpshort", "--helpfull"}


class Flag(NamedTuple):
    """A flag: its text in `--help`, bounds, a name of one letter, and the remedy where it is missing.

    A hidden flag is for the processes that a command itself starts, and is not in `--help`.
    """

    help: str
    least: float | None = None
    most: float | None = None
    short_name: str | None = None
    needed: str = ""
    is_hidden: bool = False


# The flags that several commands share.
_CONFIG_HELP = "The YAML file that describes the run; `tfdist configs` lists some to begin with."
_REMEDY_WITHOUT_CONFIG = "Name a file: --config ps2w.yaml, which `tfdist configs ps2w` writes"
ConfigFile = Annotated[str | None, Flag(_CONFIG_HELP)]
NeededConfig = Annotated[str, Flag(_CONFIG_HELP, needed=_REMEDY_WITHOUT_CONFIG)]
Changes = Annotated[Sequence[str], Flag("Set a value of the file, e.g. train.epochs=3; can be repeated.")]
LogFormat = Annotated[
    Literal["text", "json"], Flag("What to print: text, or json, an object a line (docs/events.md).")
]
Verbosity = Annotated[
    int,
    Flag("1 to show also what only the log files keep otherwise, such as TensorFlow's notes at its start."),
]


def run(
    main: Callable[..., int | None],
    *,
    flags_from: Callable[..., object] | None = None,
    takes_command: bool = False,
    takes_words: bool = False,
    loads: str | None = None,
) -> None:
    """Parse the command line, call `main` with the command's flags as keyword arguments, and exit.

    `main` also takes the flags of `flags_from`. With `takes_command`, it also gets the words after them, as
    `command`. With `takes_words`, it gets all words that are no flags, and flags may follow them. A launch
    loads the module `loads` once for all its tasks.

    The exit status is that of `exit_status`. A user's mistake prints one line on standard error.
    """
    flags.FLAGS.set_gnu_getopt(takes_words)
    own = {**_define_flags(main), **(_define_flags(flags_from) if flags_from else {})}
    sys.exit(exit_status(lambda: _call(main, own, takes_command or takes_words, loads)))


def _define_flags(function: Callable[..., object]) -> dict[str, Flag]:
    """Define the flags that the annotations of a function's parameters describe; return them by name."""
    own = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, flag = parameter.annotation, None
        if get_origin(kind) is Annotated:
            kind, flag = get_args(kind)
        if not isinstance(flag, Flag):
            continue
        own[name] = flag
        default = None if parameter.default is parameter.empty else parameter.default
        if name in flags.FLAGS:  # absl's own: verbosity
            flags.FLAGS.set_default(name, default)
            flags.FLAGS[name].help = flag.help
            continue
        [kind] = {*get_args(kind)} - {NoneType} if NoneType in get_args(kind) else [kind]
        if get_origin(kind) is Literal:
            flags.DEFINE_enum(name, default, get_args(kind), flag.help)
        elif get_origin(kind) is Sequence:
            flags.DEFINE_multi_string(name, list(default or ()), flag.help)
        else:
            is_number = kind in (int, float)
            bounds = {"lower_bound": flag.least, "upper_bound": flag.most} if is_number else {}
            _DEFINE[kind](name, default, flag.help, short_name=flag.short_name, **bounds)
    return own


def _call(
    main: Callable[..., int | None], own: Mapping[str, Flag], takes_command: bool, loads: str | None
) -> int | None:
    # Not absl's app.run: if it runs before the import of TensorFlow 2.12, Keras 2 believes that it is in
    # graph mode. tfdist needs only the flags and the log handler.
    rest = _parsed(sys.argv, own, takes_command=takes_command)
    arguments: dict[str, Any] = {name: flags.FLAGS[name].value for name in own}
    for name, value in arguments.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"--{name}", expected="a number", received=str(value))
        if own[name].needed and not value:
            raise ConfigError(f"--{name}", "is missing", remedy=own[name].needed)
    if arguments.get("run_dir") == "":  # pathlib would make it the current folder
        raise ConfigError("--run_dir", "is empty", remedy="Is a variable unset?")
    absl_logging.use_absl_handler()
    absl_logging.set_verbosity(absl_logging.WARNING)  # of TensorFlow's Python code; it writes to the flag
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.getLogger("tfdist").setLevel(logging.INFO)
    # The level of TensorFlow's C++ code: only errors, unless the user sets the variable.
    is_verbose = arguments.get("verbosity", 0) > 0
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if is_verbose else "2")
    enable_onednn()
    if takes_command:
        arguments["command"] = rest[1:]
    if loads is not None:
        from tfdist.launcher.supervisor.fork_server import fork_tasks  # other commands do not need it

        fork_tasks(loads)
    return main(**arguments)


def _parsed(argv: list[str], own: Mapping[str, Flag], *, takes_command: bool) -> list[str]:
    """Parse the flags; absl's own parser would exit with status 1, even for --help."""
    before_command = argv[: argv.index("--")] if "--" in argv else argv
    if _HELP.intersection(before_command):
        print(_help([name for name, flag in own.items() if not flag.is_hidden]))
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


def _help(own: Collection[str]) -> str:
    about = (sys.modules["__main__"].__doc__ or "").strip()
    if not own:
        return about
    columns = min(shutil.get_terminal_size((_COLUMNS, 24)).columns, _COLUMNS)
    indent = max(map(len, own)) + 6
    lines = [about, "", "Flags:"]
    for flag in (flags.FLAGS[name] for name in sorted(own)):
        value = "the current folder" if flag.default == "." else flag.default
        default = "" if value in (None, [], False) else f" Default: {value}."
        text = f"{f'  --{flag.name}':<{indent}}{flag.help.removesuffix(_OF_ABSL)}{default}"
        lines += textwrap.wrap(text, columns, subsequent_indent=" " * indent, break_on_hyphens=False)
    return "\n".join(lines)
