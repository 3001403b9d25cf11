"""Memory that a step frees serves the next one, without page faults."""

import subprocess
import sys

PROGRAM = """
import resource
import sys
from lmlab.models.host import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def step():
    block = bytearray(64_000_000)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode):
    run = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    kept, count = run.stdout.split()
    return kept, int(count)


def test_freed_memory_is_kept_where_the_c_library_can():
    kept, count = faults("keep")
    _, without = faults("as it is")
    if kept == "True":
        assert count < 100 < without
    else:
        assert not sys.platform.startswith("linux") or kept == "False"
