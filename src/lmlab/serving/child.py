"""The server as a child process on a socket that its owner already holds: no port can be lost in between.

python -m lmlab.serving.child OWNER_PID SOCKET_FD NAME FOLDER
"""

import socket
import sys
from pathlib import Path

from lmlab.core.errors import LmlabError
from lmlab.core.process import die_with_owner
from lmlab.core.shapecheck import install_if_asked


def main(argv: list[str]) -> int:
    """Serve until told to stop; the exit code of a failure is that of its error."""
    owner, descriptor, name, folder = argv
    die_with_owner(int(owner))
    install_if_asked()
    from lmlab.serving.commands import serve

    try:
        serve(Path(folder), say=_say, name=name, listener=socket.socket(fileno=int(descriptor)))
    except LmlabError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
