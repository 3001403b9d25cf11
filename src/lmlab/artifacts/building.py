"""One artifact from claim to record: the only place where a root is written.

Order matters: claim, look again whether it is built, empty the folder, run the step (or copy what another
region has), hash its files, check that the claim still stands, and commit by putting the record if none is
there.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from lmlab.artifacts import claims, failures, launch, mirror, output, records
from lmlab.artifacts.body import Produced, run_body
from lmlab.artifacts.calls import Attempt, Out
from lmlab.artifacts.claims import Beat, Claim, Keeper, Owner, Timing, Watch
from lmlab.artifacts.failures import Failure
from lmlab.artifacts.gang import Gang
from lmlab.artifacts.graph import Graph, Node
from lmlab.artifacts.handles import Artifact, Part, call_of
from lmlab.artifacts.identity import replace_handles
from lmlab.artifacts.plan import Item, reason_to_rebuild
from lmlab.artifacts.records import Input, Record
from lmlab.core import config, provenance
from lmlab.core.errors import ArtifactError, InputError, StorageError
from lmlab.storage import Path

_TELL_AGAIN_S = 300.0


@dataclass(frozen=True)
class Event:
    """Something a person may want to see, as it happens."""

    address: str
    kind: str
    """started, status, waiting, or how it ended: built, served, failed, skipped, stopped"""
    text: str = ""
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True)
class Ending:
    """How one step of a run ended."""

    kind: str
    """built, served (somebody else built it meanwhile), failed, skipped, stopped, or held by somebody else"""
    record: Record | None = None
    failure: Failure | None = None
    log: Path | None = None
    seconds: float = 0.0


@dataclass
class Builder:
    """Builds nodes of one graph below one root. Called from several threads."""

    graph: Graph
    root: Path
    record_of: Callable[[str], Record | None]
    """The record of an input, as it was planned or has been built since."""
    listen: Callable[[Event], None]
    control: launch.Control
    keeper: Keeper
    timing: Timing
    gang: Gang
    """Runs steps of several tasks."""
    waits: bool
    """Whether to wait for a living owner; if not, the step ends as held."""
    _watches: dict[str, Watch] = field(default_factory=dict)
    """What was seen of the owners of steps that were held."""
    _standing: set[str] = field(default_factory=set)
    """Inputs whose record was seen during this run."""
    _told: dict[tuple[str, str], float] = field(default_factory=dict)

    def build(self, item: Item, cpu: int) -> Ending:
        """Build one artifact or copy it from its region, or take what somebody else built."""
        node = item.node
        current: list[Record] = []

        def is_done() -> bool:
            current[:] = [r for r in [self._current(item)] if r is not None]
            return bool(current)

        claim = claims.acquire(
            node.folder(self.root),
            node.recipe.config,
            is_done=is_done,
            timing=self.timing,
            stopping=self.control.stopping,
            waiting=partial(self._tell_of, node.address) if self.waits else None,
            is_fresh=item.is_fresh,
            watch=self._watches.setdefault(node.address, Watch(self.timing)),
        )
        if current:
            self._standing.add(node.address)
            return Ending("served", current[0])
        if claim is None and self.control.stopping.is_set():
            return Ending("stopped", failure=failures.stopped("not started"))
        if claim is None:
            return Ending("held")
        self.keeper.add(claim)
        ending = Ending("stopped", failure=failures.stopped("the runner was interrupted"))
        try:
            ending = self._under(claim, item, cpu)
        except Exception as error:  # noqa: BLE001 - the step boundary: the reason goes into the claim
            ending = Ending("failed", failure=failures.from_exception(error), log=claim.path("log"))
        finally:
            if ending.failure is not None:
                ending = replace(ending, failure=self._with_missing_input(ending.failure, node))
                _tidy(claim, node)
            self.keeper.remove(claim)
            claims.finish(claim, _last_beat(ending))
        self._standing.add(node.address)
        return ending

    def _under(self, claim: Claim, item: Item, cpu: int) -> Ending:
        node = item.node
        if item.found is None and not (item.is_fresh and claim.number == 1):
            _prepare(claim, node)
        self.listen(Event(node.address, "started", str(claim.number)))
        if item.found is not None:
            mirror.copy_artifact(item.found, claim.folder, lost=claim.lost)
            return self._commit(claim, item.found.record)
        inputs = tuple(
            Input(r.name, r.version, r.fingerprint, r.epoch, r.source) for r in map(self._input, node.inputs)
        )
        started = time.time()
        produced = self._produce(claim, node, cpu)
        if isinstance(produced, Failure):
            kind = "stopped" if produced.kind == "stopped" else "failed"
            return Ending(kind, failure=produced, log=claim.path("log"))
        record = Record(
            schema=records.SCHEMA,
            name=node.name,
            version=node.version,
            step=node.call.step.name,
            fingerprint=node.fingerprint,
            config=node.recipe.config,
            inputs=inputs,
            after=node.after,
            result_type=produced.result_type,
            result=produced.result,
            source=node.call.source,
            files=produced.files,
            provenance=provenance.capture(),
            source_digest=node.call.step.source_digest,
            started=started,
            finished=time.time(),
            attempt=claim.number,
            epoch=claim.token,
        )
        return self._commit(claim, record)

    def _commit(self, claim: Claim, record: Record) -> Ending:
        give_up = time.monotonic() + claim.timing.lost_s / 2
        while True:
            try:
                claim.check()
                if records.commit(claim.folder, record):
                    return Ending("built", record, log=claim.path("log"))
                # The newest claim is ours, so it is of an owner that woke up after we had emptied the folder.
                claim.check()
                (claim.folder / records.RECORD).remove()
            except StorageError:
                # A store that is away for half a minute must not cost a step of hours.
                if claim.folder.is_local or time.monotonic() > give_up:
                    raise
                time.sleep(claim.timing.beat_s / 30)

    def _produce(self, claim: Claim, node: Node, cpu: int) -> Produced | Failure:
        call = node.call
        if call.source is not None:
            return _adopted(node, call.source)

        def report(text: str, done: float | None, total: float | None) -> None:
            self.listen(Event(node.address, "status", text, done, total))

        arguments = replace_handles(call.arguments, self._open)
        out = Out(claim.folder, node.name, node.version, Attempt(claim.number, report))
        log = claim.path("log")
        if call.step.inline:
            with output.captured() as printed:
                try:
                    return run_body(call.step, out, arguments)
                finally:
                    # What was printed is worth no failure of its own.
                    with contextlib.suppress(StorageError):
                        if printed.getvalue():
                            log.write_text(printed.getvalue())
        task = launch.task_for(call.step, out, arguments)
        with contextlib.closing(output.Spool(log)) as spool:
            claim.after_beat = spool.share
            job = launch.Job(task, cpu, self.root, spool, claim, report)
            if call.resources.tasks > 1:
                return self.gang.run(job, call.resources.tasks, self.control)
            return launch.run_in_process(job, self.control)

    def _open(self, value: Artifact) -> Artifact:
        """The built artifact, or its part, for a handle."""
        call = call_of(value)
        if call is None:
            return value
        if isinstance(value, Part):
            return self._open(value.whole)[value.part]
        address = self.graph.address_of(call)
        folder = self.graph.nodes[address].folder(self.root)
        return records.open_artifact(self._input(address), call.result_type, folder)

    def _input(self, address: str) -> Record:
        """The record of a built input, looked at once in a run: it may be gone since it was planned."""
        record, known = self.record_of(address), address in self._standing
        if record is None or not (known or self._is_there(address)):
            raise ArtifactError(f"{address} was built, but its record has disappeared since. Run again.")
        self._standing.add(address)
        return record

    def _with_missing_input(self, failure: Failure, node: Node) -> Failure:
        """The failure, with its likely reason if an input was removed while the step ran."""
        with contextlib.suppress(StorageError):
            for address in node.inputs if failure.kind == "failed" else ():
                if not self._is_there(address):
                    cause = f"{failure.cause}\n  {address} has disappeared since it was built. Run again."
                    return replace(failure, cause=cause)
        return failure

    def _is_there(self, address: str) -> bool:
        return self.graph.nodes[address].load(self.root) is not None

    def _current(self, item: Item) -> Record | None:
        """The record that makes building needless, if there is one by now."""
        node, record = item.node, records.load(item.node.folder(self.root))
        if record is None or (item.outdated is not None and record.epoch == item.outdated.epoch):
            return None
        if not node.is_mutable:
            return record
        epochs = {address: self._input(address).epoch for address in node.inputs}
        return None if reason_to_rebuild(node, record, epochs) else record

    def _tell_of(self, address: str, owner: Owner | None) -> None:
        shown, now = owner.shown if owner else "another process", time.monotonic()
        if now - self._told.get((address, shown), -math.inf) > _TELL_AGAIN_S:
            self._told[address, shown] = now
            self.listen(Event(address, "waiting", shown))


def _prepare(claim: Claim, node: Node) -> None:
    """Give the step an empty folder, or what a dead attempt of the same recipe left if the step resumes."""
    found, record = _contents(claim.folder), claim.folder / records.RECORD
    before = None if record in found else claim.previous
    # First, so that no record ever stands over half-removed files.
    record.remove()
    if before is None or not node.call.step.resumes or node.recipe.drift(before.config):
        _remove(found)


def _contents(folder: Path) -> list[Path]:
    return [child for child in folder.list() if child.name != claims.FOLDER]


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.remove_tree()


def _tidy(claim: Claim, node: Node) -> None:
    """After a failure nothing half-written stays, unless the step can resume or another owns it now."""
    if node.call.step.resumes or claim.is_lost():
        return
    # What a failing store keeps is removed by the next owner.
    with contextlib.suppress(StorageError):
        if claims.newest(claim.folder) == claim.number:
            _remove(_contents(claim.folder))


def _adopted(node: Node, source: str) -> Produced:
    path = Path(source)
    if not path.exists():
        raise InputError(
            f"{node.address} is to be adopted from {source}, but nothing is there. Check the path."
        )
    result = node.call.arguments["result"]
    encoded = config.encode(result, f"{node.address}: result")
    assert isinstance(encoded, dict)
    return Produced(type(result).__name__, encoded, records.count(path))


def _last_beat(ending: Ending) -> Beat:
    if ending.failure is None:
        return Beat(state="done")
    state = "stopped" if ending.kind == "stopped" else "failed"
    return Beat(state=state, error=ending.failure.cause, traceback=ending.failure.traceback)
