"""Per-shard tasks on worker processes, and the files that they read and write. It knows nothing of text."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.dataflow.counters import Counters as Counters, count as count, gauge as gauge
    from lmlab.dataflow.failures import (
        RecordFailed as RecordFailed,
        TaskFailed as TaskFailed,
        WorkersLost as WorkersLost,
        record as record,
    )
    from lmlab.dataflow.files import (
        read_jsonl as read_jsonl,
        read_parquet as read_parquet,
        write_jsonl as write_jsonl,
        write_parquet as write_parquet,
    )
    from lmlab.dataflow.plan import Dataset as Dataset, first as first
    from lmlab.dataflow.runner import (
        Limits as Limits,
        Runner as Runner,
        check_place as check_place,
        open_runner as open_runner,
    )
    from lmlab.dataflow.sharing import shared as shared
    from lmlab.dataflow.shuffle import gather as gather, scatter as scatter
    from lmlab.dataflow.stages import ShardInfo as ShardInfo
    from lmlab.dataflow.workers import Workers as Workers

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "Counters": ".counters",
        "Dataset": ".plan",
        "Limits": ".runner",
        "RecordFailed": ".failures",
        "Runner": ".runner",
        "ShardInfo": ".stages",
        "TaskFailed": ".failures",
        "Workers": ".workers",
        "WorkersLost": ".failures",
        "check_place": ".runner",
        "count": ".counters",
        "first": ".plan",
        "gather": ".shuffle",
        "gauge": ".counters",
        "open_runner": ".runner",
        "read_jsonl": ".files",
        "read_parquet": ".files",
        "record": ".failures",
        "scatter": ".shuffle",
        "shared": ".sharing",
        "write_jsonl": ".files",
        "write_parquet": ".files",
    },
)
