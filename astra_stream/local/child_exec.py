"""Run a program that dies with the process that asked for it.

Started as a script, before the program: ``python child_exec.py PARENT_PID PROGRAM [ARGUMENT...]``.
The kernel then kills the program when the thread that started it ends, however it ends.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then become the program."""
    parent_pid, *program = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.exit(f"cannot tie the process to its parent: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent_pid):  # the parent died before the tie was made
        sys.exit("the parent has gone")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
