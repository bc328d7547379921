"""Lock a file for the shell that has opened it, which keeps the lock for as long as it runs.

python -m tfdist.engines.lock_for_shell_script DESCRIPTOR

The script of a job runs this when it continues the job; not every machine has flock(1).
"""

import fcntl
import os
import sys
import time

_ATTEMPTS, _PAUSE = 20, 0.1  # `tfdist status` locks the file too, for a moment


def main(descriptor: int) -> None:
    """Lock a file, and empty it; exit with a message if the job runs already."""
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
        else:
            os.ftruncate(descriptor, 0)
            return
    print("tfdist: this job runs already. `tfdist cancel` ends it", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(int(sys.argv[1]))
