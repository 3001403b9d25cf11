"""A web server that gives byte ranges and breaks off: in time, in length and by its own random will.

Run as a program with a seed. The path says how it behaves, its last part how many bytes the file has:

    /plain/N    the file, whole or in ranges
    /random/N   each answer is cut after a random number of bytes
    /slow/N     each answer is cut after 1,000 bytes
    /short/N    announces N bytes and has 500 less: the connection ends there
    /stalled/N  the head of each answer, then the end of the connection
    /whole/N    no ranges, and no length in a head
    /page/N     an error page, with status 200

`GET /seen` gives the requests since the last time: method, path, range.
"""

import asyncio
import json
import random
import re
import sys

from services.starting import end_with_owner, say_port

seen: list[list[str]] = []


def noise(size: int) -> bytes:
    """The content of a file of this size."""
    return random.Random(size).randbytes(size)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dice: random.Random) -> None:
    try:
        while await one(reader, writer, dice):
            pass
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dice: random.Random) -> bool:
    """Answer one request; False if the connection is to end after it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, _ = head.split("\r\n", 1)[0].split(" ", 2)
    if path == "/seen":
        told, seen[:] = json.dumps(seen).encode(), []
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told))
        await writer.drain()
        return True
    _, how, count = path.split("/")
    wanted = re.search(r"(?i)\r\nrange: *bytes=(\d+)-(\d+)", head)
    seen.append([method, path, wanted[0].rpartition("=")[2] if wanted else ""])
    size = int(count)
    data = b"<!DOCTYPE html>\n<title>Gone</title>".ljust(size) if how == "page" else noise(size)
    lines = ["HTTP/1.1 200 OK", f'ETag: "{how}-{count}"', "Accept-Ranges: bytes", f"Content-Length: {size}"]
    start, end = 0, size
    if how == "whole":
        lines = ["HTTP/1.1 200 OK", "Connection: close"]
    elif wanted:
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, size)
        lines[0], lines[3] = "HTTP/1.1 206 Partial Content", f"Content-Length: {end - start}"
        lines.append(f"Content-Range: bytes {start}-{end - 1}/{size}")
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
    body = b"" if method == "HEAD" else data[start:end]
    sent = body[: sent_bytes(how, start, size, len(body), dice)]
    writer.write(sent)
    await writer.drain()
    return how != "whole" and len(sent) == len(body)


def sent_bytes(how: str, start: int, size: int, wanted: int, dice: random.Random) -> int:
    limits = {"random": dice.randrange(wanted + 1), "slow": 1000, "stalled": 0, "short": size - 500 - start}
    return max(0, min(wanted, limits.get(how, wanted)))


async def main(seed: int) -> None:
    """Serve until the owner is gone."""
    end_with_owner()
    dice = random.Random(seed)
    server = await asyncio.start_server(lambda r, w: serve(r, w, dice), "127.0.0.1", 0)
    say_port(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
