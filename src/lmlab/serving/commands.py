"""What `lmlab serve` and `lmlab chat` do, given a model folder. Output goes through the caller's `say`."""

import errno
import queue
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lmlab.core.errors import ConfigError, HostError
from lmlab.core.units import format_seconds

if TYPE_CHECKING:
    from lmlab.serving.engine import Engine
    from lmlab.serving.protocol import Sampling
    from lmlab.serving.sequence import Delta

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "MANIFEST.json")
SHUTDOWN_S = 5


def serve(
    model: Path,
    *,
    say: Callable[[str], None],
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    slots: int = 8,
    max_waiting: int = 64,
    max_model_len: int | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve an exported model folder over HTTP until SIGTERM or Ctrl-C; port 0 takes a free one.

    The port is taken before the model is loaded, so that early clients wait instead of being refused.
    Raises ConfigError if `model` is no model folder, HostError if the port can't be had.
    """
    check_folder(model)
    started = time.monotonic()
    with listener or listen(host, port) as bound:
        engine = _load(model, slots=slots, max_waiting=max_waiting, max_model_len=max_model_len)
        engine.warm_up()
        address = "http://{}:{}".format(*bound.getsockname()[:2])
        name = name or model.name
        say(f"serving {name} at {address}/v1 (ready after {format_seconds(time.monotonic() - started)})")
        if bound.getsockname()[0] not in ("127.0.0.1", "::1"):
            say("anyone who can reach this address can use it: there is no authentication")
        _run_until_stopped(engine, name, bound)
        say("stopped")


def chat(
    model: Path,
    *,
    say: Callable[[str], None],
    ask: Callable[[str], str],
    write: Callable[[str], None] | None = None,
    prompt: str | None = None,
    max_tokens: int = 128,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
) -> None:
    """Continue `prompt`, or line after line from `ask` until it ends (EOFError or an empty line).

    `write` gets the text in pieces as it is generated, without line ends; without it `say` gets it whole.
    """
    from lmlab.serving.protocol import Sampling

    check_folder(model)
    engine = _load(model, slots=1, max_waiting=1, max_model_len=None)
    try:
        lines = [prompt] if prompt is not None else _lines(ask)
        if prompt is None:
            say("This model has no chat template: it continues your text. An empty line ends.")
        for turn, line in enumerate(lines):
            room = engine.max_model_len - len(engine.vocabulary.encode(line))
            sampling = Sampling(
                max_tokens=max(1, min(max_tokens, room)),
                temperature=temperature,
                top_p=top_p,
                seed=seed + turn,
            )
            pieces = _continue(engine, line, sampling)
            if write is None:
                say(line + "".join(pieces))
                continue
            write(line)
            for piece in pieces:
                write(piece)
            say("")
    finally:
        engine.close()


def check_folder(model: Path) -> None:
    """Refuse, before anything is loaded, what is no exported model."""
    missing = [name for name in MODEL_FILES if not (model / name).is_file()]
    if missing:
        what = "lacks " + ", ".join(missing) if model.is_dir() else "is no folder"
        raise ConfigError(
            f"{model} {what}, so it is no exported model. "
            "Give the folder or the address of an exported model (lmlab ls shows them)."
        )


def listen(host: str, port: int) -> socket.socket:
    """Take a port. Raises HostError if it is in use or not ours, ConfigError if it is no port."""
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port={port} is no port. Choose one from 1 to 65535, or 0 for any free one.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        # Listening at once: two servers that are both still loading would otherwise both hold the port.
        bound.listen(128)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise HostError(
                f"port {port} on {host} is in use by another program. "
                f"Choose another one (--port {port + 1}, or --port 0 for any free one) or stop that program."
            ) from error
        raise HostError(
            f"can't listen on {host}:{port}: {error.strerror}. Choose another --host or --port."
        ) from error
    return bound


def _load(model: Path, *, slots: int, max_waiting: int, max_model_len: int | None) -> "Engine":
    from lmlab.serving.engine import Engine  # jax: 1 s that a wrong folder or a taken port doesn't cost

    return Engine.load(model, slots=slots, max_waiting=max_waiting, max_model_len=max_model_len)


def _run_until_stopped(engine: "Engine", name: str, bound: socket.socket) -> None:
    """Run uvicorn until a signal; running answers get a few seconds to end."""
    import uvicorn

    from lmlab.serving.app import build_app

    config = uvicorn.Config(
        build_app(engine, name),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn raises a caught signal again when it is done: SIGTERM then ends here, not in the process.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        server.run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)
        engine.close()


def _lines(ask: Callable[[str], str]) -> Iterator[str]:
    while True:
        try:
            line = ask("> ")
        except EOFError:
            return
        if not line.strip():
            return
        yield line


def _continue(engine: "Engine", text: str, sampling: "Sampling") -> Iterator[str]:
    """The pieces of one answer, as they are generated."""
    from lmlab.serving.sequence import Ask

    deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
    prompt = tuple(engine.vocabulary.encode(text)) or engine.document_start()
    engine.submit([Ask(prompt, sampling, deltas.put)])
    while True:
        delta = deltas.get()
        if delta.error is not None:
            raise delta.error
        yield delta.text
        if delta.is_last:
            return
