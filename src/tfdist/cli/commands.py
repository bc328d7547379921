"""Run the command that the command line names."""

import runpy
import sys
from collections.abc import Sequence

from tfdist import __version__
from tfdist._utils.readable_text import beside
from tfdist.cli._exit_status import exit_status
from tfdist.errors import did_you_mean

COMMANDS: dict[str, str] = {
    "init": "Start a project: answer some questions, and get a config or a script to begin with.",
    "configs": "List the configs that come with tfdist, or copy one for you to change.",
    "train": "Train on the cluster that a config file describes, and export the model.",
    "launch": "Start a script of your own as a cluster on this machine.",
    "predict": "Ask an exported model about images, a folder of them, or a data set.",
    "report": "Write one HTML page about a run, or about two of them side by side.",
    "doctor": "Check this machine, the cluster and a run before it starts, and say what to do.",
    "env": "Print the versions, the machine and the variables that a bug report needs.",
    "plan": "Print the TF_CONFIG of every task, and the command to type on its host.",
    "render": "Print what a scheduler reads to run a config, or a script of your own, on its machines.",
    "submit": "Submit a config, or a script of your own, to a scheduler; print a handle.",
    "status": "Tell the state of a submitted job.",
    "logs": "Print what the tasks of a submitted job have printed.",
    "cancel": "End a submitted job.",
    "list": "List the jobs that you have submitted.",
    "timeline": "Record what all tasks of a running cluster do, in one file for Perfetto.",
    "verify": "Prove that the cluster computes what one process computes, step by step.",
    "estimate": "Estimate the memory that each task needs, and what it sends in a step.",
    "bench": "Measure how fast a config trains here, where the time goes, and which changes help.",
    "simulate": "Predict how fast clusters of many sizes train, and which changes help.",
    "schema": "Print the JSON Schema of the config file.",
}
_MORE = (
    "tfdist COMMAND --help describes a command and its flags. Pages that it names, such as docs/events.md,"
    " and examples/ are in tfdist's repository."
)


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    sys.exit(exit_status(_main))


def _main() -> int:
    command, *rest = sys.argv[1:] or [""]
    if command in COMMANDS:
        run_command(command, rest)
    elif command in ("--version", "version"):
        print(f"tfdist {__version__}")
    elif command in ("-h", "--help", "help"):
        print(_usage())
    elif command:
        return _report_mistake(f"tfdist: unknown command {command!r}. {did_you_mean(command, COMMANDS)}")
    else:
        return _report_mistake(_usage())
    return 0


def run_command(command: str, arguments: Sequence[str]) -> None:
    """Run one command as the program of this process; it defines its flags only then."""
    sys.argv = [f"tfdist {command}", *arguments]
    runpy.run_module(f"tfdist.cli.{command}", run_name="__main__", alter_sys=True)


def _report_mistake(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


def _usage() -> str:
    commands = [beside(f"  {command:<8} ", text) for command, text in COMMANDS.items()]
    return "\n".join(["usage: tfdist COMMAND [--flags]", "", *commands, "", beside("", _MORE)])
