"""Run `tfdist COMMAND` as `python -m tfdist COMMAND`."""

import signal
import sys


def main() -> None:
    """Run the command that `sys.argv` names, and exit; Ctrl-C ends it also while it is being loaded."""
    try:
        from tfdist.cli import commands

        commands.main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
