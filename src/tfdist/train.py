"""Run `tfdist train` as `python -m tfdist.train`."""

import sys

from tfdist.cli.commands import run_command

if __name__ == "__main__":
    run_command("train", sys.argv[1:])
