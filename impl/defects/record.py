"""What is a known defect? One of our allocators with a small fault in it, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from impl.defects.patches import Patch
from impl.errors import SubjectError
from impl.subject import LocalSubject, own
from oracle.ops import Config
from oracle.traits import Traits

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Defect:
    """A fault, and what it takes to see it.

    id: a row of the list of faults that real allocators had (F01 …), or words.
    part: whose fault, of `impl.subject.OWN`.
    fault: a class that goes before the allocator's own, or a patch of its engine.
    breaks: under which of `oracle.codes` it may show, at `level`.
    seen: what was seen in the field, or `ours`.
    shortest: operations of the shortest case that is known, without what every case ends with.
    check: of `properties.checks`, which shows it.
    page_sizes, need_sort: pools that can show it, where not all can.
    ordered: whether the allocator claims its base's exact order. deadly: it ends its process.
    """

    id: str
    part: str
    fault: type | Patch
    breaks: str
    level: str = "contract"
    seen: str = OURS
    shortest: int | None = None
    check: str = "sequences"
    page_sizes: tuple[int, ...] = ()
    need_sort: tuple[bool, ...] = (False, True)
    ordered: bool = True
    deadly: bool = False

    @property
    def about(self) -> str:
        """The fault in one sentence."""
        return self.fault.about if isinstance(self.fault, Patch) else (self.fault.__doc__ or "").strip()

    @property
    def codes(self) -> frozenset[str]:
        """The codes under which it may show."""
        return frozenset(self.breaks.split())

    def subject(self, name: str = "", device: str = "cpu", engine: str = "") -> LocalSubject:
        """The allocator with the fault. SubjectError where its engine is asked for, and is the fault."""
        name = name or f"defect:{self.id}"
        if isinstance(self.fault, Patch):
            if engine:
                raise SubjectError(f"{name}: its engine is what is wrong with it: leave engine= out")
            subject = own(self.part, device, self.fault.engine(), name)
        else:
            subject = own(self.part, device, engine, name, before=(self.fault,))
        space = replace(
            subject.space, page_sizes=self.page_sizes or subject.space.page_sizes, need_sort=self.need_sort
        )
        claims = subject.claims if self.ordered else _without_order(subject.claims)
        return replace(subject, about=self.about, space=space, claims=claims)


def _without_order(claims: Callable[[Config], Traits]) -> Callable[[Config], Traits]:
    return lambda config: replace(claims(config), dialect=None)
