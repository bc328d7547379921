"""Run `tfdist train` as `python -m tfdist.train`."""

import sys

from tfdist.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    main()
