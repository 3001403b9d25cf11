"""Experiment files: finding `build` and its version, and calling it with the fields from the command line.

Every process imports the file under one module name, its own, so that its classes are the same everywhere.
`experiment(build, version=…)` stands in the file's main block; to learn the version, the file is run as
`__main__` once with `experiment` only taking notes.
"""

import contextlib
import inspect
import runpy
import sys
import traceback
import typing
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, is_dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from lmlab.core.errors import ConfigError, LmlabError


@dataclass(frozen=True)
class Experiment:
    """A file that describes artifacts."""

    file: Path
    build: Callable[..., Any]
    version: str | None
    """Of artifacts whose call names none, unless the command line says otherwise."""


# What `experiment()` was called with, by file; and whether it now only takes notes.
_declared: dict[Path, tuple[str, str | None]] = {}
_taking_notes = False


def experiment(build: Callable[..., Any], *, version: str | None = None) -> None:
    """Make `python EXP.py …` the same as `lmlab run EXP.py …`. Stands in the file's main block.

    `build` returns the handles to build; it may take one frozen dataclass, whose fields are flags after `--`.
    """
    if build.__module__ != "__main__":
        return
    file = Path(inspect.getfile(build)).resolve()
    if not build.__name__.isidentifier():
        raise ConfigError("experiment(build) needs a named function, defined at the top of the file.")
    _declared[file] = (build.__name__, version)
    if not _taking_notes:
        from lmlab.cli.main import main

        sys.exit(main(["run", str(file), *sys.argv[1:]]))


def load(path: str) -> Experiment:
    """Import an experiment's file. Raises ConfigError naming the line of a mistake in it."""
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"{path} is no Python file that exists. Name an experiment, like experiments/demo.py."
        )
    with _blaming(file):
        module = _import(file)
        if file not in _declared:
            _run_for_notes(file)
    name, version = _declared.get(file, ("build", None))
    build = getattr(module, name, None)
    if not callable(build):
        raise ConfigError(f"{path} has no function {name}() that returns artifacts. Define it.")
    return Experiment(file, build, version)


def describe(experiment: Experiment, fields: Sequence[str]) -> Any:
    """Call `build` with its config made from `fields`, the words after `--`."""
    parameters = list(inspect.signature(experiment.build).parameters.values())
    if not parameters:
        if fields:
            raise ConfigError(
                f"{experiment.file.name} takes no fields, so {fields[0]!r} after -- means nothing. Remove "
                "it, or give build() a frozen dataclass."
            )
        arguments: list[Any] = []
    else:
        arguments = [_config(experiment, parameters[0], fields)]
    with _blaming(experiment.file):
        return experiment.build(*arguments)


def _config(experiment: Experiment, parameter: inspect.Parameter, fields: Sequence[str]) -> Any:
    with _blaming(experiment.file):
        kind = typing.get_type_hints(experiment.build).get(parameter.name)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ConfigError(
            f"build({parameter.name}) in {experiment.file.name} must take one frozen dataclass, but its type "
            f"is {kind}. Annotate it."
        )
    default = None if parameter.default is parameter.empty else parameter.default
    if not fields and default is not None:
        return default
    from lmlab.cli.parsing import parse_words

    return parse_words(kind, fields, f"lmlab run {experiment.file.name} --", default)


def _import(file: Path) -> ModuleType:
    name = file.stem
    existing = sys.modules.get(name)
    if existing is not None:
        if getattr(existing, "__file__", None) == str(file):
            return existing
        raise ConfigError(
            f"{file.name} has the name of the module {name}, which is loaded already, so its steps' "
            "processes could not find it. Rename the file."
        )
    # As for any script: its folder comes first, so it can import its neighbours, and its steps' processes it.
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # Ctrl-C too: a half-loaded module must not be found by the next import
        del sys.modules[name]
        raise
    return module


def _run_for_notes(file: Path) -> None:
    global _taking_notes
    words, sys.argv = sys.argv, [str(file)]
    _taking_notes = True
    try:
        runpy.run_path(str(file), run_name="__main__")
    finally:
        _taking_notes = False
        sys.argv = words


@contextlib.contextmanager
def _blaming(file: Path) -> Generator[None]:
    """Turn a mistake in an experiment's file into one line with its place."""
    try:
        yield
    except LmlabError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{error.filename}:{error.lineno}: {error.msg}. Correct the file.") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename) == file]
        if not own:
            raise
        place = f"{own[-1].filename}:{own[-1].lineno}"
        raise ConfigError(f"{place}: {type(error).__name__}: {error}. Correct the experiment.") from error
