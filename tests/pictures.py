"""Cases worth a picture: five operations, both pools of an SWA allocator, and thousands of operations.

`python -m tests.pictures FOLDER` takes the pictures that docs/ shows.
"""

import sys
from functools import cache
from pathlib import Path

from impl.base import PoolAllocator
from impl.defects.lists import RepeatsFirstPage
from impl.defects.swa import AllocKeepsFullHalf
from impl.subject import own
from oracle.casefile import CaseFile
from oracle.ops import (
    Alloc,
    Case,
    Config,
    Cut,
    Decode,
    Extend,
    Free,
    FreeSwa,
    GroupBegin,
    GroupEnd,
    Grow,
    Part,
)
from properties.judged import judged
from properties.sources import SeededSource
from properties.workload import Workload

LONG = 4990


class LeaksLate(PoolAllocator):
    """After 885 frees a page is lost."""

    frees = 0
    lost = False

    def _put(self, slots):
        super()._put(slots)
        self.frees += 1
        if self.frees >= 885 and not self.lost and self.free_pages.numel():
            self.lost = True
            self._drop_head(1)


def extend(*batch):
    return Extend(tuple(Grow(*item) for item in batch))


def played(subject, case, name):
    outcome = judged(subject, case, "contract", keep=True)
    return CaseFile(
        case, subject=name, level="contract", finding=outcome.violation, claims=subject.traits(case.config),
        answers=outcome.answers,
    )  # fmt: skip


def five():
    """A free of two pages puts the first of them into the free list twice."""
    operations = (
        extend(("A", 6)), extend(("B", 5), ("C", 3)), Decode(("A", "B")), Cut("B", 2), Free((Part("A"),)),
    )  # fmt: skip
    case = Case(Config("paged", 6, 4, overwrite=False), operations)
    return played(own("paged", before=(RepeatsFirstPage,)), case, "defect:F12")


def swa():
    """An alloc that does not fit into the window takes pages of the full pool, and they are lost."""
    operations = (
        extend(("A", 9), ("B", 6)), FreeSwa((Part("A", 0, 8),)), GroupBegin(), Free((Part("B"),)), Alloc("C", 12),
        GroupEnd(),
    )  # fmt: skip
    case = Case(Config("swa", 8, 4, swa_pages=5, overwrite=False), operations)
    return played(own("swa", before=(AllocKeepsFullHalf,)), case, "defect:F17")


@cache
def long():
    """Thousands of generated operations on 64 pages of 16; near their end a page is lost."""
    config = Config("paged", 64, 16, overwrite=False, need_sort=True)
    subject = own("paged", before=(LeaksLate,))
    workload = Workload(config, subject.traits(config), SeededSource("film4"), frozenset(), misuse=False)
    source, operations = SeededSource("film2"), []
    while len(operations) < LONG:
        operation = workload.next(source)
        if operation is not None:
            operations.append(operation)
    return played(subject, Case(config, tuple(operations)), "package.module:factory")


def take(folder):
    """Pictures of the first two, in both themes."""
    from fuzz.show import page, shown
    from tests.browser import browser

    with browser() as driver:
        for name, made, theme, at in (("show-five", five, "light", 5), ("show-swa", swa, "dark", 5)):
            target = folder / f"{name}.html"
            target.write_text(page(shown(made())), encoding="utf-8")
            driver.get(target.resolve().as_uri())
            driver.execute_script(f'theme("{theme}"); show({at})')
            driver.save_screenshot(str(folder / f"{name}.png"))
            target.unlink()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
