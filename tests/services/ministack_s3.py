"""ministack's S3 server as a program: prints its port, and ends with the process that started it."""

import os
import socket
import sys
import threading
import time

from services.starting import end_with_owner, say_port


def say_when_ready(port: int) -> None:
    """Print the port once something answers there."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    say_port(port)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    os.environ |= {"GATEWAY_PORT": str(chosen), "BIND_HOST": "127.0.0.1", "LOG_LEVEL": "CRITICAL"}
    sys.argv = ["ministack"]
    end_with_owner()
    threading.Thread(target=say_when_ready, args=(chosen,), daemon=True).start()
    from ministack.app import main

    main()
