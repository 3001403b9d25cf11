"""A proxy in front of a store that counts requests and misbehaves on demand.

Run as a program with the address it stands for. `GET /__faults__` gives the requests seen since the last
POST as a list of [method, path]; `POST /__faults__` with a list of rules sets them and forgets what was seen.
A rule is an object: what `do` is one of

    drop       the request reaches the store, its answer does not reach the client: the connection is closed
    refuse     the connection is closed before the store sees the request
    delay      the answer comes `seconds` late
    truncate   the head and half of the body, then the connection is closed
    withhold   no answer, for ever;  headers: the head of the answer, then nothing, for ever
    status     the answer has the status `code`, with `retry_after` if given; the store is not asked

and it hits every `every`th (1) request whose method is `method` and whose path matches the pattern `path`,
`times` times at most.
"""

import asyncio
import json
import re
import sys
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from services.starting import end_with_owner, say_port


@dataclass
class Rule:
    """One way to misbehave, and how often it had the chance to."""

    do: str
    method: str = ""
    path: str = ""
    every: int = 1
    times: int = 1_000_000_000
    seconds: float = 1.0
    code: int = 503
    retry_after: str = ""
    seen: int = 0
    hits: int = 0

    def applies(self, method: str, path: str) -> bool:
        if self.method not in ("", method) or not re.search(self.path, path) or self.hits >= self.times:
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.hits += 1
        return True


@dataclass
class Proxy:
    """Where requests go, the rules, and what was seen."""

    host: str
    port: int
    rules: list[Rule] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        body = await body_of(head, reader)
        if path == "/__faults__":
            return await self.control(method, body, writer)
        self.seen.append((method, path))
        rule = next((rule for rule in self.rules if rule.applies(method, path)), None)
        return await self.answer(rule, method, head + body, writer)

    async def control(self, method: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        if method == "POST":
            self.rules, self.seen = [Rule(**rule) for rule in json.loads(body)], []
        told = json.dumps(self.seen).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told))
        await writer.drain()
        return True

    async def answer(
        self, rule: Rule | None, method: str, request: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        do = rule.do if rule else ""
        if do == "withhold":
            await asyncio.sleep(3600)
        if do == "refuse":
            return False
        if rule and do == "status":
            extra = f"Retry-After: {rule.retry_after}\r\n" if rule.retry_after else ""
            writer.write(f"HTTP/1.1 {rule.code} Fault\r\n{extra}Content-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return True
        head, body = await self.forward(method, request)
        if do == "drop":
            return False
        if rule and do == "delay":
            await asyncio.sleep(rule.seconds)
        if do == "headers":
            writer.write(head)
            await writer.drain()
            await asyncio.sleep(3600)
        writer.write(head + (body[: len(body) // 2] if do == "truncate" else body))
        await writer.drain()
        return do != "truncate"

    async def forward(self, method: str, request: bytes) -> tuple[bytes, bytes]:
        """The store's answer: its head, made one of a connection that is kept, and its body."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            has_body = method != "HEAD" and head.split(b" ", 2)[1] not in (b"204", b"304")
            body = await body_of(head, reader) if has_body else b""
        finally:
            writer.close()
        lines = [
            line
            for line in head[:-4].split(b"\r\n")
            if not re.match(rb"(?i)(connection|transfer-encoding):", line)
        ]
        if has_body and not re.search(rb"(?i)\r\ncontent-length:", head):
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n", body


async def body_of(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """The body that a head announces."""
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if length:
        return await reader.readexactly(int(length.group(1)))
    if not re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return b""
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


class Faults:
    """A running proxy, for the test that steers it."""

    def __init__(self, address: str) -> None:
        self.address = address

    def set(self, *rules: dict[str, Any]) -> None:
        """Misbehave by these rules from now on, and count anew."""
        self._call(json.dumps(rules).encode())

    def seen(self) -> list[tuple[str, str]]:
        """Method and path of each request since the rules were set."""
        return [(method, path) for method, path in json.loads(self._call(None))]

    def _call(self, body: bytes | None) -> bytes:
        with urllib.request.urlopen(f"{self.address}/__faults__", body, timeout=20) as answer:
            return answer.read()


async def main(target: str) -> None:
    """Serve until the owner is gone."""
    host, _, port = target.removeprefix("http://").partition(":")
    end_with_owner()
    server = await asyncio.start_server(Proxy(host, int(port)).serve, "127.0.0.1", 0, limit=1 << 20)
    say_port(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
