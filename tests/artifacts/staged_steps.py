"""Steps that open, map and append to files themselves, in a module that steps' processes can import."""

import mmap
import os
import signal
import time
from dataclasses import dataclass

from lmlab.artifacts import Artifact, Out, RunOnly, step


@dataclass(frozen=True)
class Size(Artifact):
    bytes: int


@step(local_files=True)
def write_parts(out: Out, parts: int, fails: RunOnly[bool] = False) -> Size:
    for part in range(parts):
        folder = out.path.local / "deep" / str(part)
        folder.mkdir(parents=True)
        with (folder / "text").open("w") as file:
            file.write("x" * part)
    if fails:
        raise ValueError("asked to fail")
    return Size(sum(range(parts)))


@step(local_files=True)
def map_parts(out: Out, of: Size, part: Artifact) -> Size:
    with (of.path.local / "deep" / "3" / "text").open("rb") as file:
        size = len(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    assert (part.path.local / "2" / "text").read_text() == "xx"
    assert (out.root / of.name / of.version / ".artifact.json").exists()
    return Size(size)


@step(resumes=True, local_files=True)
def append(out: Out, to: int, fails_at: RunOnly[int] = -1, how: RunOnly[str] = "fail") -> Size:
    """Appends to one file, and keeps only the newest of the files that say how far it is."""
    place = out.path.local
    done = max((int(mark.stem) for mark in place.glob("*.done")), default=0)
    for value in range(done, to):
        if value == fails_at and how == "fail":
            raise ValueError(f"stopped at {value}")
        if value == fails_at:
            os.kill(os.getpid(), signal.Signals[how])
            time.sleep(30)
        with (place / "lines").open("a") as file:
            file.write(f"{value}\n")
        (place / f"{value + 1}.done").touch()
        (place / f"{value}.done").unlink(missing_ok=True)
    return Size((place / "lines").stat().st_size)
