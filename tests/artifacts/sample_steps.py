"""Steps that tests run, in a module that steps' processes can import."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.core import provenance
from lmlab.core.errors import ConfigError
from lmlab.storage import choose_root


@dataclass(frozen=True)
class Number(Artifact):
    value: int


@dataclass(frozen=True)
class Model:
    hidden: int = 64
    layers: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Recipe:
    model: Model
    data: dict[Artifact, float] = field(default_factory=dict)
    lr: float = 0.1


def note(diary: str, what: str) -> None:
    """One line in a file outside the root: what really ran."""
    if diary:
        with Path(diary).open("a") as file:
            file.write(what + "\n")


@step(inline=True)
def number(out: Out, value: int, diary: RunOnly[str] = "") -> Number:
    note(diary, out.address)
    print("making", value)  # noqa: T201 - goes to the log
    return Number(value)


@step(inline=True)
def total(out: Out, parts: list[Number], diary: RunOnly[str] = "") -> Number:
    note(diary, out.address)
    (out.path / "parts.txt").write_text("\n".join(str(part.value) for part in parts))
    return Number(sum(part.value for part in parts))


@step(inline=True)
def fit(out: Out, recipe: Recipe, diary: RunOnly[str] = "") -> Number:
    note(diary, out.address)
    return Number(sum(part.value for part in recipe.data if isinstance(part, Number)))


@step
def double(out: Out, of: Number, diary: RunOnly[str] = "") -> Number:
    note(diary, out.address)
    print("hello from the step's process")  # noqa: T201 - goes to the log
    out.status("doubling", 1, 2)
    (out.path / "deep").make_folder()
    (out.path / "deep" / "value.txt").write_text(str(of.value * 2))
    return Number(of.value * 2)


@step
def divide(out: Out, by: int) -> Number:
    (out.path / "half.txt").write_text("half-written")
    return Number(1 // by)


@step
def measure_text(out: Out, texts: tuple[str, ...]) -> Number:
    return Number(sum(map(len, texts)))


@step
def use_folder(out: Out, train: Artifact) -> Number:
    return Number(len((train.path / "value.txt").read_text()))


@step(resumes=True)
def count_up(out: Out, to: int, pause_s: RunOnly[float] = 0.0, diary: RunOnly[str] = "") -> Number:
    """Counts in a file, so that it can go on where it was killed."""
    place = out.path / "count"
    done = int(place.read_text()) if place.exists() else 0
    note(diary, f"from {done} attempt {out.attempt}")
    for value in range(done, to):
        time.sleep(pause_s)
        place.write_text(str(value + 1))
        out.status("counting", value + 1, to)
    return Number(to)


@step
def slow(out: Out, diary: RunOnly[str] = "", seconds: RunOnly[float] = 60.0) -> Number:
    """Starts a helper of its own, as data stages do, and says both process ids."""
    helper = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])
    note(diary, f"{os.getpid()} {helper.pid}")
    (out.path / "leftover.txt").write_text("from attempt " + str(out.attempt))
    helper.wait()
    return Number(1)


@step
def fill(out: Out, size_bytes: RunOnly[int]) -> Number:
    with Path(out.path / "part").open("wb") as file:
        file.write(b"x" * size_bytes)
    return Number(size_bytes)


@step
def shoot_itself(out: Out) -> Number:
    os.kill(os.getpid(), signal.SIGKILL)
    return Number(0)


@step
def fork_inside(out: Out) -> Number:
    (out.path / "opened").write_bytes(b"1")
    with multiprocessing.Pool(2) as pool:
        return Number(sum(pool.map(abs, [-1, -2, 3])))


@step
def stubborn(out: Out, diary: RunOnly[str] = "") -> Number:
    """Ignores a polite request to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    note(diary, str(os.getpid()))
    time.sleep(60)
    return Number(0)


@dataclass(frozen=True)
class Launch(Artifact):
    argv: tuple[str, ...]


@step
def launch_of(out: Out) -> Launch:
    return Launch(provenance.capture().argv)


@step(inline=True)
def wrong_type(out: Out) -> Number:
    return Artifact()  # type: ignore[return-value]  # what the test is about


@step
def overlap(out: Out, diary: RunOnly[str] = "", seconds: RunOnly[float] = 0.2) -> Number:
    note(diary, f"+ {out.name}")
    time.sleep(seconds)
    note(diary, f"- {out.name}")
    return Number(0)


def _at_least_one(count: int) -> None:
    if count < 1:
        raise ConfigError(f"count={count} makes nothing. Give 1 or more.")


@step(inline=True, check=_at_least_one)
def many(out: Out, count: int) -> Number:
    return Number(count)


@step(inline=True, resumes=True)
def train(out: Out, model: object, diary: RunOnly[str] = "") -> Number:
    """Leaves one file a try, and says how many it found."""
    found = len([path for path in out.path.list() if path.name.startswith("checkpoint")])
    note(diary, f"from {found}")
    (out.path / f"checkpoint-{found}").write_text("x")
    return Number(found)


@step(inline=True)
def forge(out: Out) -> Number:
    (out.path / ".artifact.json").write_text("{}")
    return Number(0)


@dataclass(frozen=True)
class Place(Artifact):
    root: str


@step
def root_of(out: Out) -> Place:
    return Place(str(choose_root()))


@step(inline=True)
def takes_sets(out: Out, names: set, inputs: frozenset, weights: dict) -> Number:
    return Number(len(names) + len(inputs) + len(weights))


@step
def chatty(out: Out, lines: RunOnly[int]) -> Number:
    for _ in range(lines):
        print("x" * 100)  # noqa: T201 - goes to the log
    return Number(0)
