"""One artifact from claim to record: the only place where a root is written.

Order matters: claim, look again whether it is built, empty the folder, run the step, hash its files, check
that the claim still stands, and commit by putting the record if none is there.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from lmlab.artifacts import claims, failures, launch, output, records
from lmlab.artifacts.body import Produced, run_body
from lmlab.artifacts.calls import Attempt, Out
from lmlab.artifacts.claims import Beat, Claim, Keeper, Owner, Timing
from lmlab.artifacts.failures import Failure
from lmlab.artifacts.graph import Graph, Node
from lmlab.artifacts.handles import Artifact, Part, call_of
from lmlab.artifacts.identity import replace_handles
from lmlab.artifacts.plan import reason_to_rebuild
from lmlab.artifacts.records import Input, Record
from lmlab.core import config, provenance
from lmlab.core.errors import ClaimLost, ConfigError, InputError
from lmlab.storage import Path


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
    """built, served (somebody else built it meanwhile), failed, skipped or stopped"""
    record: Record | None = None
    failure: Failure | None = None
    log: Path | None = None
    seconds: float = 0.0


@dataclass
class Builder:
    """Builds nodes of one graph below one root. Called from several threads."""

    graph: Graph
    root: Path
    record_of: Callable[[str], Record]
    """The record of an input that is built."""
    listen: Callable[[Event], None]
    control: launch.Control
    keeper: Keeper
    watchdog: launch.Watchdog
    timing: Timing

    def build(self, node: Node, outdated: Record | None, cpu: int) -> Ending:
        """Build one node, or take what somebody else built. `outdated` is a `dev` record to replace."""
        folder = node.folder(self.root)
        claim = claims.acquire(
            folder,
            node.recipe.config,
            is_done=lambda: self._current(node, outdated) is not None,
            timing=self.timing,
            stopping=self.control.stopping,
            waiting=self._tell_once(node.address),
        )
        if claim is None:
            record = self._current(node, outdated)
            if record is not None:
                return Ending("served", record)
            return Ending("stopped", failure=failures.stopped("not started"))
        self.keeper.add(claim)
        ending = Ending("stopped", failure=failures.stopped("the runner was interrupted"))
        try:
            ending = self._under(claim, node, cpu)
        except Exception as error:  # noqa: BLE001 - the step boundary: the reason goes into the claim
            ending = Ending("failed", failure=failures.from_exception(error), log=claim.path("log"))
        finally:
            if ending.failure is not None:
                _tidy(claim, node)
            self.keeper.remove(claim)
            claims.finish(claim, _last_beat(ending))
        return ending

    def _under(self, claim: Claim, node: Node, cpu: int) -> Ending:
        inputs = tuple(
            Input(r.name, r.version, r.fingerprint, r.epoch) for r in map(self.record_of, node.inputs)
        )
        _prepare(claim, node)
        self.listen(Event(node.address, "started", str(claim.number)))
        started = time.time()
        produced = self._produce(claim, node, cpu)
        log = claim.path("log")
        if isinstance(produced, Failure):
            return Ending("stopped" if produced.kind == "stopped" else "failed", failure=produced, log=log)
        claim.check()
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
        if records.commit(claim.folder, record):
            return Ending("built", record, log=log)
        winner = records.load(claim.folder)
        if winner is None:
            raise ClaimLost(f"The record of {node.address} vanished while it was being written. Run again.")
        return Ending("served", winner, log=log)

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
                    if printed.getvalue():
                        log.write_text(printed.getvalue())
        if not claim.folder.is_local:
            raise ConfigError(
                f"{node.address} runs in its own process, which can't write to {self.root}. "
                "Choose a --root on this machine's disk."
            )
        job = launch.Job(launch.task_for(call.step, out, arguments), cpu, log, claim.lost, report)
        return launch.run_in_process(job, self.control, self.watchdog)

    def _open(self, value: Artifact) -> Artifact:
        """The built artifact, or its part, for a handle."""
        call = call_of(value)
        if call is None:
            return value
        if isinstance(value, Part):
            return self._open(value.whole)[value.part]
        address = self.graph.address_of(call)
        folder = self.graph.nodes[address].folder(self.root)
        return records.open_artifact(self.record_of(address), call.result_type, folder)

    def _current(self, node: Node, outdated: Record | None) -> Record | None:
        """The record that makes building needless, if there is one by now."""
        record = records.load(node.folder(self.root))
        if record is None or (outdated is not None and record.epoch == outdated.epoch):
            return None
        if not node.is_mutable:
            return record
        epochs = {address: self.record_of(address).epoch for address in node.inputs}
        return None if reason_to_rebuild(node, record, epochs) else record

    def _tell_once(self, address: str) -> Callable[[Owner | None], None]:
        told: set[str] = set()

        def tell(owner: Owner | None) -> None:
            shown = owner.shown if owner else "another process"
            if shown not in told:
                told.add(shown)
                self.listen(Event(address, "waiting", shown))

        return tell


def _prepare(claim: Claim, node: Node) -> None:
    """Give the step an empty folder, or what a dead attempt of the same recipe left if the step resumes."""
    record = claim.folder / records.RECORD
    replaces_built = record.exists()
    record.remove()
    before = claim.previous
    resumes = node.call.step.resumes and before is not None and not replaces_built
    if not (resumes and before is not None and not node.recipe.drift(before.config)):
        _empty(claim.folder)


def _empty(folder: Path) -> None:
    """Remove all but the claims."""
    for child in folder.list():
        if child.name != claims.FOLDER:
            child.remove_tree()


def _tidy(claim: Claim, node: Node) -> None:
    """After a failure nothing half-written stays, unless the step can resume or another owns it now."""
    if not node.call.step.resumes and not claim.lost.is_set() and claims.newest(claim.folder) == claim.number:
        _empty(claim.folder)


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
