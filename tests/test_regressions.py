"""Do the project's own allocators keep what somebody's once broke? A case joins by being copied to `regressions/`."""

from pathlib import Path

import pytest

from fuzz.replay import replay
from impl.engines import OWN_ENGINES
from impl.subject import OWN, own
from oracle.casefile import BatchFile, read_any

FOLDER = Path(__file__).parent.parent / "regressions"
CASES = sorted(FOLDER.glob("*.json"))


def subjects_for(file):
    """The project's own that a case can be run on."""
    if isinstance(file, BatchFile):
        return list(OWN_ENGINES)
    return [name for name in OWN if own(name).space.kind == file.case.config.kind]


def test_there_are_cases():
    assert len(CASES) >= 20


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_once_failed_holds_on_our_own(path):
    file = read_any(path)
    assert file.finding is not None, "a case without a finding has never failed"
    for name in subjects_for(file):
        entry = replay(file, str(path), impl=name)
        assert entry.state == "FIXED", f"{name}: {entry.state}: {entry.says}"
