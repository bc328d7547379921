"""Run `tfdist COMMAND` as `python -m tfdist COMMAND`."""

import signal
import sys


def main() -> None:
    """Run the command that `sys.argv` names, and exit; Ctrl-C ends it also while it is being loaded."""
    if sys.platform == "win32":
        print("tfdist: Windows is not supported. Install WSL 2, and type the command there", file=sys.stderr)
        sys.exit(2)
    try:
        from tfdist.cli import commands

        commands.main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
