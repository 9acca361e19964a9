"""Which defects are known? Each by its id, which the subject `defect:ID` is named after.

The ids F01 to F42 are kinds of fault that real allocators had. Some can't be shown by an allocator alone, and
are not here:

- F06 (decisions after all counts were lowered), F10 (eviction of a block in use), F19 (blocks touched before
  the check of capacity), F42 (an evicted block found by its hash): the fault is in the cache of prefixes above
  the allocator, which counts references. Our allocators have none.
- F14 (a mask of rejected tokens rounded to pages): the caller rounds, and frees what it then holds no more.
- F20 (a leak check that sees one side): a fault of a check. `tests/test_judge.py` has both sides.
- F31 (more than 2^20 new tokens can't be compiled): shows when a kernel is compiled for a device.
"""

from __future__ import annotations

import difflib

from impl.defects import groups, kernels, lists, sizes, state, swa
from impl.defects.patches import Patch
from impl.defects.record import Defect
from impl.errors import SubjectError

# If the gate does not find this one, it finds nothing: it is looked for before each run.
CANARY = Defect(
    "canary",
    "paged",
    Patch(
        "Every slot of a new page lies one too far, which no run can miss.",
        "formula",
        "page * page_size + pos % page_size))",
        "page * page_size + pos % page_size + 1))",
    ),
    "ALIGN RANGE UNIQUE",
    shortest=1,
)
ALL = (
    CANARY,
    *lists.DEFECTS,
    *sizes.DEFECTS,
    *groups.DEFECTS,
    *state.DEFECTS,
    *swa.DEFECTS,
    *kernels.DEFECTS,
)
CATALOGUE = {defect.id: defect for defect in ALL}


def defect(wanted: str) -> Defect:
    """The defect of an id. SubjectError, with those that are called alike, where there is none."""
    if wanted in CATALOGUE:
        return CATALOGUE[wanted]
    near = difflib.get_close_matches(wanted, CATALOGUE, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise SubjectError(f"no defect is called {wanted!r}: {hint}`kvassay list` has all {len(CATALOGUE)}")
