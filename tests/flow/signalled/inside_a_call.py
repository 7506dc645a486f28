"""A service whose main thread is inside a call of C that never returns, and runs no handler."""

import ctypes
import sys
import threading

from astra_stream.cli.signals import stop_on_signal


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    stop = stop_on_signal()
    threading.Thread(target=lambda: stop.wait() and say("draining"), daemon=True).start()
    # Zeros are a mutex that nobody has; locked twice, it waits for itself.
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    say("working")
    library.pthread_mutex_lock(mutex)


main()
