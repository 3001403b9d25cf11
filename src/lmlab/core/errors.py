"""The whole error tree. A message is one line: what is wrong (with values), why it matters, what to do.

LmlabError                     exit code
├── ConfigError                2   an argument, a config field, a name or a version is wrong
├── InputError                 1   the data being read is bad: truncated archive, broken record, empty corpus
├── ArtifactError              1   a record is missing, corrupt, drifted from a pin, or of another type
│   └── ClaimLost              1   another process took over the step that was being built
├── StepFailed                 1   a step of a run failed
├── StorageError               3   disk full, unreadable folder, a store that can't do what is needed
│   ├── Refused                3   asking again would not help: no access, not there, replaced meanwhile
│   │   └── NoRanges           3   the server gives this file only whole
│   └── BudgetExceeded         3   a read from another region would pass what one run may transfer
└── HostError                  3   a program is missing, no network, a port in use
"""


class LmlabError(Exception):
    """Anything a user can act on. It is printed as one line and ends the command with `exit_code`."""

    exit_code = 1


class ConfigError(LmlabError):
    """An argument, a config field, a name or a version is wrong."""

    exit_code = 2


class InputError(LmlabError):
    """The data being read is bad; the message names the file and the place in it."""


class ArtifactError(LmlabError):
    """A record is missing, corrupt, drifted from its pin, or of another type than asked for."""


class ClaimLost(ArtifactError):
    """Another process holds a higher claim, so what this one built must not be committed."""


class StepFailed(LmlabError):
    """At least one step of a run failed."""


class StorageError(LmlabError):
    """The place where files live failed: disk full, unreadable, or without a needed guarantee."""

    exit_code = 3


class Refused(StorageError):
    """A store answered that it will not give this: no access, no such file, or another version by now."""


class NoRanges(Refused):
    """The server gives this file only whole, or does not tell its size."""


class BudgetExceeded(StorageError):
    """Reading this from another region would pass what one run may transfer."""


class HostError(LmlabError):
    """The machine lacks something: a program, a network, a free port."""

    exit_code = 3
