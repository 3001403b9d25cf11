"""The only reader and writer of environment variables, so that all of them stand in one list.

LMLAB_ROOT, LMLAB_CACHE      where artifacts and the download cache live
LMLAB_CONFIG                 the lab's file, instead of the nearest lmlab.toml upwards
LMLAB_REGION                 the region of this machine, instead of the one lmlab.toml gives
LMLAB_TRANSFER_BUDGET_GIB    what one run may read from other regions, instead of 10; inf means "I will pay"
LMLAB_USER                   whose `dev` artifacts these are, instead of the login name
LMLAB_RUN_ID, LMLAB_CPUS     handed to child processes: the run they belong to, the cores they may use
LMLAB_ON, RAY_ADDRESS        handed to child processes: where tasks run; the cluster that `--on ray` means
LMLAB_PROVENANCE             the provenance of the launch, handed to child processes
LMLAB_CHECK_SHAPES           1 in the tests: jaxtyping and beartype check every shape
LMLAB_TRACEBACK              1 prints tracebacks instead of one-line errors
LMLAB_TASK_COUNT, LMLAB_COORDINATOR   handed to the ranks of a gang: how many, where they meet
LMLAB_GANG_TOKEN             a secret of all ranks that `lmlab run --gang` is started on
SLURM_NTASKS, OMPI_COMM_WORLD_SIZE, JAX_NUM_PROCESSES   how many ranks such a launcher started
LMLAB_QUERY_URL, LMLAB_QUERY_TOKEN    handed to the pages: where the query service is, the credential for it
LMLAB_TASK_INDEX, SLURM_PROCID, OMPI_COMM_WORLD_RANK, JAX_PROCESS_ID   ranks, read to refuse a second runner
AWS_…, GOOGLE_…              credentials of s3:// and gs:// where lmlab.toml pins none; GCE_METADATA_HOST
HF_ENDPOINT, HF_TOKEN        the hub of hf:// and the credential for it where lmlab.toml pins none
LMLAB_PEER_…                 interpreters and servers of benchmark peers
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Generator
from pathlib import Path

RANK_VARIABLES = ("LMLAB_TASK_INDEX", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID")
_HIDING = threading.Lock()
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def get(name: str) -> str | None:
    """The value of one variable; an empty one counts as absent."""
    return os.environ.get(name) or None


def put(name: str, value: str) -> None:
    """Set a variable for this process and its children."""
    os.environ[name] = value


@contextlib.contextmanager
def without(prefixes: tuple[str, ...]) -> Generator[None]:
    """Hide variables from a library that would read them by itself; nothing is touched if there are none."""
    with _HIDING:
        hidden = {name: value for name, value in os.environ.items() if prefixes and name.startswith(prefixes)}
        try:
            for name in hidden:
                del os.environ[name]
            yield
        finally:
            os.environ.update(hidden)


def root() -> str | None:
    """Where artifacts live, if the environment says so."""
    return get("LMLAB_ROOT")


def cache_dir() -> Path:
    """Downloads by sha256 and compiled code: LMLAB_CACHE, else `lmlab` below the user's cache folder."""
    chosen = get("LMLAB_CACHE")
    return Path(chosen) if chosen else Path(get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmlab"


def data_dir() -> Path:
    """The user's data folder for lmlab, the last resort for a root."""
    return Path(get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "lmlab"


def state_dir() -> Path:
    """The user's state folder for lmlab, used when the root is remote."""
    return Path(get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lmlab"


def run_id() -> str:
    """The id of the `lmlab run` this process belongs to; made on first use and inherited by children."""
    existing = get("LMLAB_RUN_ID")
    if existing is None:
        existing = secrets.token_hex(6)
        put("LMLAB_RUN_ID", existing)
    return existing


def cpu_count() -> int:
    """Cores this process may use: what its step was given, else what the machine lets it have."""
    given = get("LMLAB_CPUS")
    return int(given) if given else len(os.sched_getaffinity(0))


def rank() -> tuple[str, int] | None:
    """The first variable that says this process is a rank above 0 of a larger program, with its value."""
    for name in RANK_VARIABLES:
        value = get(name)
        if value is not None and value.isdigit() and int(value) > 0:
            return name, int(value)
    return None


def child_environment(**extra: str) -> dict[str, str]:
    """The environment of a child process: ours, one thread for each numeric library, and `extra`."""
    quiet = {name: "1" for name in ONE_THREAD if name not in os.environ}
    return {
        **os.environ,
        **quiet,
        "NUMBA_CACHE_DIR": str(cache_dir() / "numba"),
        "LMLAB_RUN_ID": run_id(),
        **extra,
    }
