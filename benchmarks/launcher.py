"""Runs one command and prints its time and memory as JSON. Imports little: a process starts with the peak
memory of the process that started it, and the measuring script has imported a lot.
"""

import json
import os
import sys
import time


def main() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    started_s = time.monotonic()
    pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    wall_s = time.monotonic() - started_s
    # Linux counts kilobytes, macOS bytes.
    peak_mb = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024)
    figures = {
        "started_s": started_s,
        "wall_s": wall_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": peak_mb,
        "exit_code": os.waitstatus_to_exitcode(status),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
