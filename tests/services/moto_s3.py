"""moto's S3 server as a program: prints its port, and ends with the process that started it."""

import threading

from moto.server import ThreadedMotoServer

from services.starting import end_with_owner, say_port

if __name__ == "__main__":
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    end_with_owner()
    say_port(server.get_host_and_port()[1])
    threading.Event().wait()
