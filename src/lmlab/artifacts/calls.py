"""How a step is written and called: `@step`, `Out`, `RunOnly`, `adopt`.

Calling a step does no work: it remembers the call and returns a handle typed as the step's result. The runner
later replaces handles by built artifacts and runs the body, in its own process unless the step is inline.
"""

import ast
import functools
import hashlib
import inspect
import re
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_args, overload

from lmlab.artifacts.handles import A, Artifact, handle, is_placed, root_of
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.core.resources import Resources
from lmlab.storage import Path

T = TypeVar("T")
P = ParamSpec("P")
Report = Callable[[str, float | None, float | None], None]

RunOnly = Annotated[T, "run-only"]
"""An argument that says how to run (`workers: RunOnly[int] = 2`), never what is computed: not identity."""


def _unheard(_text: str, _done: float | None, _total: float | None) -> None:
    """Where status goes when a body is called by hand."""


@dataclass
class Attempt:
    """What the runner tells a step's process about the attempt, and how it hears from it."""

    number: int = 1
    report: Report = _unheard
    status_every_s: float = 0.1
    last: tuple[str, float] = ("", 0.0)
    rank: int = 0
    ranks: int = 1
    root: Path | None = None


@dataclass(frozen=True)
class Out:
    """Where a step writes: `out.path` exists, and is the artifact once the step has returned."""

    path: Path
    """The folder to write below."""
    name: str
    """The artifact's name."""
    version: str
    """The artifact's version."""
    _attempt: Attempt = field(default_factory=Attempt, repr=False, compare=False)

    @classmethod
    def at(
        cls, path: str | Path, *, name: str = "artifact", version: str = "dev", rank: int = 0, ranks: int = 1
    ) -> "Out":
        """An output folder made by hand, for calling a step's body without a runner."""
        place = Path(path)
        place.make_folder()
        return cls(place, name, version, Attempt(rank=rank, ranks=ranks))

    @property
    def address(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def root(self) -> Path:
        """The root below which artifacts live: for reading the records of others, never for writing."""
        return self._attempt.root or root_of(self.path, self.name)

    @property
    def attempt(self) -> int:
        """Which try this is, from 1; it only grows, so it can stand in commit files as a fencing token."""
        return self._attempt.number

    @property
    def rank(self) -> int:
        """Which process of a gang this is, from 0; rank 0's result is the step's."""
        return self._attempt.rank

    @property
    def ranks(self) -> int:
        """How many processes run this body together; 1 without a gang."""
        return self._attempt.ranks

    def status(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Show what the step is doing, and how far it is. Cheap: repeats within 0.1 s are dropped."""
        attempt, now = self._attempt, time.monotonic()
        last_text, last_at = attempt.last
        finished = done is not None and done == total
        if text == last_text and now - last_at < attempt.status_every_s and not finished:
            return
        attempt.last = (text, now)
        attempt.report(text, done, total)


@dataclass(eq=False)
class Call:
    """One call of a step, as written: the lazy half of a handle."""

    step: "Step[Any, Any]"
    name: str
    version: str | None
    """The version written in the name, if any."""
    arguments: dict[str, Any]
    result_type: type[Artifact]
    after: list[Artifact] = field(default_factory=list)
    resources: Resources = field(default_factory=Resources)
    pinned: str | None = None
    source: str | None = None
    """Where adopted data lies; None for a step's own output."""
    is_reference: bool = False
    """Whether another experiment makes it, so that its recipe is not known here."""


class Step(Generic[P, A]):
    """A step function: calling it with a name gives a handle; `.body(out, …)` is the function itself."""

    def __init__(
        self,
        body: Callable[Concatenate[Out, P], A],
        *,
        inline: bool = False,
        resumes: bool = False,
        local_files: bool = False,
        check: Callable[..., object] | None = None,
    ) -> None:
        self.body = body
        self.inline = inline
        self.resumes = resumes
        self.local_files = local_files
        self.check = check
        functools.update_wrapper(self, body)
        if "." in body.__qualname__:
            raise ConfigError(
                f"The step {body.__qualname__} is defined inside a class or function, where its process "
                "could not find it. Define it at the top of its module."
            )
        if next(iter(inspect.signature(body).parameters), None) != "out":
            raise ConfigError(f"The step {self.name} must take `out: Out` as its first parameter.")

    @property
    def name(self) -> str:
        """The function's name, which is part of the identity (its module is not: code may move)."""
        return self.body.__name__

    def __call__(self, name: str, /, *args: P.args, **kwargs: P.kwargs) -> A:
        """A handle on `name`, typed as the result; nothing is computed."""
        bare, version = _split(name)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            takes = ", ".join(self._signature.parameters)
            raise ConfigError(f"{self.name}({name!r}, …): {error}. It takes: {takes}.") from None
        bound.apply_defaults()
        self._refuse_undeclared()
        if self.check is not None:
            self.check(**bound.arguments)
        call = Call(self, bare, version, dict(bound.arguments), self.result_type)
        return cast(A, handle(call))

    def __reduce__(self) -> str:
        return self.name

    def _refuse_undeclared(self) -> None:
        """A handle that the body takes from its module would be an input that no record knows of."""
        body = inspect.unwrap(self.body)
        for name in body.__code__.co_names:
            if is_placed(body.__globals__.get(name)):
                raise ConfigError(
                    f"The step {self.name} uses {name} of its module, an input that no record would name. "
                    "Make it a parameter, and pass it in the call."
                )

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        whole = inspect.signature(self.body)
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    @functools.cached_property
    def result_type(self) -> type[Artifact]:
        """The declared result class."""
        declared = self._annotation(self._signature.return_annotation)
        if isinstance(declared, type) and issubclass(declared, Artifact):
            return declared
        raise ConfigError(
            f"The step {self.name} declares {declared!r} as its result, which is no Artifact. "
            "Declare the class it returns, like `-> Artifact`."
        )

    @functools.cached_property
    def run_only(self) -> frozenset[str]:
        """The parameters that are no identity."""
        return frozenset(name for name, p in self._signature.parameters.items() if self._is_run_only(p))

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """Parameters with their default values."""
        parameters = self._signature.parameters.items()
        return {name: p.default for name, p in parameters if p.default is not p.empty}

    @functools.cached_property
    def source_digest(self) -> str:
        """A hash of the function's syntax: comments and layout don't count, nor what it calls."""
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(self.body)))
        except OSError:  # typed at a prompt: there is no file
            return hashlib.sha256(self.body.__code__.co_code).hexdigest()[:16]
        return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]

    def _annotation(self, annotation: Any) -> Any:
        if not isinstance(annotation, str):
            return annotation
        return eval(annotation, getattr(self.body, "__globals__", {}))  # noqa: S307 - the module's own text

    def _is_run_only(self, parameter: inspect.Parameter) -> bool:
        if isinstance(parameter.annotation, str):
            return re.match(r"^(\w+\.)*RunOnly\[", parameter.annotation) is not None
        return "run-only" in get_args(parameter.annotation)[1:]


@overload
def step(body: Callable[Concatenate[Out, P], A], /) -> Step[P, A]: ...


@overload
def step(
    *,
    inline: bool = False,
    resumes: bool = False,
    local_files: bool = False,
    check: Callable[..., object] | None = None,
) -> Callable[[Callable[Concatenate[Out, P], A]], Step[P, A]]: ...


def step(
    body: Any = None,
    /,
    *,
    inline: bool = False,
    resumes: bool = False,
    local_files: bool = False,
    check: Callable[..., object] | None = None,
) -> Any:
    """Make a step of `def f(out: Out, …) -> SomeArtifact`; its call becomes `f(name, …) -> SomeArtifact`.

    `inline` runs it in the runner's process (for light work: it can't be killed). `resumes` lets it find in
    `out.path` what a dead attempt with the same recipe left; any other step starts in an empty folder.
    `local_files` is for bodies whose libraries open files themselves: where the root is an object store,
    inputs and output are folders of this machine (see `staging`); any other step reads and writes by `Path`.
    `check` gets the arguments when the step is called, so that what can't work is refused before any work.

    >>> @step
    ... def count(out: Out, text: str) -> Artifact:
    ...     return Artifact()
    >>> count("demo/count@2026.12.01", text="a b")
    <demo/count@2026.12.01>
    """
    if body is not None:
        return Step(body)
    return functools.partial(Step, inline=inline, resumes=resumes, local_files=local_files, check=check)


def _adopt(out: Out, source: str, config: Any) -> Artifact:
    raise ArtifactError(f"{out.address} is adopted from {source}; it has no body to run on {config!r}.")


def adopt(name: str, source: str, result: A | None = None, config: Any = None) -> A:
    """Make existing data an artifact without copying it; `result` types it, `config` says how it was made.

    >>> adopt("raw/wiki@2026.11.30", source="/data/wiki")
    <raw/wiki@2026.11.30>
    """
    bare, version = _split(name)
    given: Artifact = Artifact() if result is None else result
    arguments = {"source": str(Path(source)), "result": given, "config": config}
    call = Call(_ADOPT, bare, version, arguments, type(given), source=str(Path(source)))
    return cast(A, handle(call))


def built(name: str, kind: type[A] = Artifact) -> A:
    """What another experiment built, as an input: `name@version`, read as `kind`, never rebuilt from here.

    >>> built("runs/demo@2026.12.01")
    <runs/demo@2026.12.01>
    """
    bare, version = _split(name)
    return cast(A, handle(Call(_BUILT, bare, version, {}, kind, is_reference=True)))


def _built(out: Out) -> Artifact:
    raise ArtifactError(
        f"{out.address} is not built, and this experiment does not say how. Run the one that makes it."
    )


_ADOPT = Step(_adopt, inline=True)
_BUILT = Step(_built, inline=True)


def _split(name: str) -> tuple[str, str | None]:
    if not isinstance(name, str):
        raise ConfigError(f"The first argument of a step's call is the artifact's name; {name!r} is no text.")
    bare, found, version = name.partition("@")
    return bare, version if found else None
