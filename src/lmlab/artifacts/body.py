"""Running one step's body: the part that an inline step and a step's own process share."""

from dataclasses import dataclass
from typing import Any

from lmlab.artifacts import records
from lmlab.artifacts.calls import Out, Step
from lmlab.artifacts.records import Files
from lmlab.core import config
from lmlab.core.errors import ArtifactError


@dataclass(frozen=True)
class Produced:
    """What an attempt hands to the holder of its claim."""

    result_type: str
    result: dict[str, Any]
    files: Files


def run_body(step: Step[Any, Any], out: Out, arguments: dict[str, Any]) -> Produced:
    """Call the body, check its result against the declared class, and hash what it wrote.

    The files of a gang are hashed when all of its ranks are done.
    """
    if not step.local_files or out.path.is_local:
        return _run(step, out, arguments)
    from lmlab.artifacts import staging

    with staging.staged(out, resumes=step.resumes) as here:
        return _run(step, here, staging.brought(arguments))


def _run(step: Step[Any, Any], out: Out, arguments: dict[str, Any]) -> Produced:
    result = step.body(out, **arguments)
    declared = step.result_type
    if not isinstance(result, declared):
        raise ArtifactError(
            f"The step {step.name} declares {declared.__name__}, but returned a {type(result).__name__}. "
            f"Return {declared.__name__}(…) at its end."
        )
    encoded = config.encode(result, f"{out.address}: result")
    assert isinstance(encoded, dict)
    files = records.seal(out.path) if out.ranks == 1 else Files(0, 0, None)
    return Produced(type(result).__name__, encoded, files)
