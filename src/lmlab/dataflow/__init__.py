"""Per-shard tasks on worker processes, and the files that they read and write. It knows nothing of text."""

from lmlab.core.lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "RecordFailed": ".failures",
        "TaskFailed": ".failures",
        "Workers": ".workers",
        "WorkersLost": ".failures",
        "gather": ".shuffle",
        "read_jsonl": ".files",
        "read_parquet": ".files",
        "record": ".failures",
        "scatter": ".shuffle",
        "write_jsonl": ".files",
        "write_parquet": ".files",
    },
)
