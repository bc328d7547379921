"""Run `tfdist COMMAND` as `python -m tfdist COMMAND`."""

from tfdist.cli.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
