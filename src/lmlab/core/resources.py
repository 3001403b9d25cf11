"""What a step or a job asks of a machine. It says where work may run, never what it computes."""

from dataclasses import dataclass

from lmlab.core.errors import ConfigError


@dataclass(frozen=True)
class Resources:
    """Requested machine share.

    >>> Resources(cpu=2).cpu
    2
    """

    cpu: int = 1
    """Processor cores, at least 1."""
    memory_bytes: int | None = None
    """Main memory in bytes; None asks for no particular amount."""
    gpus: int = 0
    """Accelerators, at least 0."""
    tasks: int = 1
    """Processes that run the step's body together as one program (a gang), at least 1."""

    def __post_init__(self) -> None:
        if self.cpu < 1:
            raise ConfigError(f"cpu={self.cpu}: a step needs at least one core. Ask for cpu=1 or more.")
        if self.tasks < 1:
            raise ConfigError(f"tasks={self.tasks}: somebody must run the step. Ask for tasks=1 or more.")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ConfigError(
                f"memory_bytes={self.memory_bytes} is no amount of memory. Give a positive number or None."
            )
        if self.gpus < 0:
            raise ConfigError(f"gpus={self.gpus} is negative. Ask for 0 or more.")
