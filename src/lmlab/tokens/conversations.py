"""Files of conversations to a token store with masks; both usual shapes of rows are read."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from lmlab.core.errors import InputError
from lmlab.dataflow.files import read_batches, read_jsonl
from lmlab.storage import Path
from lmlab.tokens.chat import Chat, Message, load_chat
from lmlab.tokens.documents import DocumentFile
from lmlab.tokens.store import Shard
from lmlab.tokens.write import ShardTask, ShardWriter, resumed

SPEAKERS = {"human": "user", "gpt": "assistant", "model": "assistant", "function": "tool"}
DOMAIN = "chat"


def write_chat_shards(task: ShardTask) -> list[Shard]:
    """Encode one file of conversations; each is a document of the domain its row names, or `chat`."""
    return resumed(task, _encode_file)


def read_conversations(file: DocumentFile) -> Iterator[tuple[list[Message], Mapping[str, Any]]]:
    """Messages ({"role", "content"}; {"from", "value"} is read too) and row of each conversation."""
    is_parquet = file.path.name.endswith(".parquet")
    rows = (
        (row for batch in read_batches(file.path) for row in batch.to_pylist())
        if is_parquet
        else read_jsonl(file.path)
    )
    for row in rows:
        found = row if isinstance(row, list) else row.get("messages") or row.get("conversations") or []
        messages: list[Message] = [
            {"role": SPEAKERS.get(entry["from"], entry["from"]), "content": entry.get("value")}
            if "from" in entry
            else {key: value for key, value in entry.items() if value is not None}
            for entry in found
        ]
        yield messages, row if isinstance(row, Mapping) else {}


def _encode_file(task: ShardTask) -> list[Shard]:
    chat, head = _chat_at(task.encoding.tokenizer), task.encoding.head
    writer = ShardWriter(task.out, task.name, head, "tokenizers")
    numbered = ((file, *found) for file in task.files for found in enumerate(read_conversations(file)))
    for file, number, (messages, row) in numbered:
        try:
            rendered = chat.train_on(messages, row.get("tools"))
        except InputError as error:
            raise InputError(f"{file.path}, conversation {number}: {error}") from error
        writer.notes.update(rendered.notes)
        data = rendered.text.encode(errors="replace")
        domain = row.get("domain") or DOMAIN
        writer.add(
            domain, xxhash.xxh3_128_hexdigest(data), len(data), [np.array(rendered.ids)], rendered.mask
        )
    return writer.finish()


@lru_cache(maxsize=1)
def _chat_at(tokenizer: Path) -> Chat:
    return load_chat(tokenizer)
