"""What can be asked of an allocator, as frozen data that never holds a slot number.

Operations name *requests*. What a request holds when its turn comes gives prefix length, last location
and what a free covers, so every subsequence of a case is a case (see `oracle.ledger`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Config:
    """The pool that a case runs on, and how its caller behaves.

    `pages` and `swa_pages` count whole pages of `page_size` slots, `spare` the slots behind the last whole
    page (never handed out). With `overwrite` the caller overwrites every tensor that it gave or was given;
    with `data` there are K and V, which it writes, reads back and copies to the CPU. With `undefined` lanes that
    a masked load of a kernel leaves open are poison; only the emulator can do that.
    """

    kind: str
    pages: int
    page_size: int = 1
    swa_pages: int = 0
    need_sort: bool = False
    debug: bool = False
    spare: int = 0
    overwrite: bool = True
    data: bool = False
    undefined: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.pages < 1 or self.page_size < 1:
            raise ValueError("a pool has at least one page of at least one slot")
        if self.kind == "token" and self.page_size != 1:
            raise ValueError("a token pool has page_size 1")
        if (self.kind == "swa") != (self.swa_pages > 0):
            raise ValueError("swa_pages goes with kind swa, and is at least 1 there")
        if not 0 <= self.spare < self.page_size:
            raise ValueError("spare is what is left behind the last whole page: under page_size")

    @property
    def size(self) -> int:
        """Slots of the pool, as its constructor is told."""
        return self.pages * self.page_size + self.spare

    @property
    def extends(self) -> bool:
        """Whether extend and decode exist: in paged pools, and in SWA pools with pages."""
        return self.kind == "paged" or (self.kind == "swa" and self.page_size > 1)


KINDS = ("token", "paged", "swa")


@dataclass(frozen=True, slots=True)
class Alloc:
    """`alloc(size)`: whole pages for a request; appended when it holds some and ends at a page boundary.

    With flaw `whole` the size is given as a number that is no int.
    """

    request: str
    size: int
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Grow:
    """One request of an extend. A new one may start behind the whole pages of `prefix` (a prefix hit)."""

    request: str
    tokens: int
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Extend:
    """`alloc_extend` of a batch. `flaw` names what is wrong with the call on purpose (see `EXTEND_FLAWS`)."""

    batch: tuple[Grow, ...]
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Decode:
    """`alloc_decode`: one more token for each request; one that holds nothing starts with it."""

    requests: tuple[str, ...]
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """The caller drops a request's last `tokens`; pages that hold none of the rest are freed."""

    request: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Part:
    """Own tokens `start` to `stop` (None: to the end) of a request."""

    request: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """`free` of the parts, in one call, in the order given. With flaw `again`, parts of what was freed last."""

    parts: tuple[Part, ...]
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class FreeSwa:
    """`free_swa` of the parts: the sliding-window half of their pages alone."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class GroupBegin:
    """`free_group_begin`."""


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """`free_group_end`."""


@dataclass(frozen=True, slots=True)
class Merge:
    """`merge_and_sort_free`, which changes nothing that can be counted."""


@dataclass(frozen=True, slots=True)
class Backup:
    """`backup_state`, kept under a name."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class Restore:
    """`restore_state` of the snapshot of that name; with flaw `snapshot`, of something that is none."""

    snapshot: str
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Clear:
    """`clear`."""


@dataclass(frozen=True, slots=True)
class CopyOut:
    """`get_cpu_copy` of all that a request holds, kept under its name."""

    request: str


@dataclass(frozen=True, slots=True)
class CopyIn:
    """`load_cpu_copy` of the copy under a request's name into what it holds now (as many tokens)."""

    request: str


Operation: TypeAlias = (
    Alloc | Extend | Decode | Cut | Free | FreeSwa | GroupBegin | GroupEnd | Merge | Backup | Restore | Clear
    | CopyOut | CopyIn
)  # fmt: skip

# What is wrong with a call on purpose: a rule of `oracle.traits`, and of which argument or of what. Where no
# argument is named, it is `seq_lens` with its mirror (a decode has no prefix_lens).
ARGUMENTS = ("prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu", "last_loc")
EXTEND_FLAWS = (
    "total", "lengths", "shrinks", "last_loc", "dtype", "new pages", "negative",
    "last page of padding", "last page of no pool", "last page of the freed",
    "mirror of prefix_lens", "mirror of seq_lens",
    *(f"{rule} of {argument}" for argument in ARGUMENTS for rule in ("lengths", "dtype", "shape", "tensor")),
    *(f"device of {argument}" for argument in ARGUMENTS if not argument.endswith("_cpu")),
)  # fmt: skip
DECODE_FLAWS = tuple(
    flaw for flaw in EXTEND_FLAWS if flaw not in ("total", "shrinks", "new pages") and "prefix" not in flaw
)
FREE_FLAWS = ("again", "padding", "foreign", "negative", "dtype", "shape", "tensor", "device")


def rule_of(flaw: str) -> str:
    """The rule that a flaw of a batch breaks."""
    return flaw.partition(" of ")[0]


@dataclass(frozen=True, slots=True)
class Case:
    """A pool and what is asked of it, in order."""

    config: Config
    operations: tuple[Operation, ...]


def name_of(operation: Operation) -> str:
    """The method that an operation calls, as reports name it; a cut calls `free`."""
    return "free" if isinstance(operation, Cut) else METHODS[type(operation)]


# How each operation is called in case files; apart from `cut`, the allocator's method.
METHODS: dict[type, str] = {
    Alloc: "alloc",
    Extend: "alloc_extend",
    Decode: "alloc_decode",
    Cut: "cut",
    Free: "free",
    FreeSwa: "free_swa",
    GroupBegin: "free_group_begin",
    GroupEnd: "free_group_end",
    Merge: "merge_and_sort_free",
    Backup: "backup_state",
    Restore: "restore_state",
    Clear: "clear",
    CopyOut: "get_cpu_copy",
    CopyIn: "load_cpu_copy",
}


def sentence(operation: Operation) -> str:
    """An operation in one short line, as a person would say it."""
    match operation:
        case Alloc(request, size, flaw):
            return f"alloc {size} for {request}" + (f" [flaw: {flaw}]" if flaw else "")
        case Extend(batch, flaw):
            items = (
                f"{g.request} +{g.tokens}" + (f" behind the prefix of {g.prefix}" if g.prefix else "")
                for g in batch
            )
            return "extend " + (", ".join(items) or "nobody") + (f" [flaw: {flaw}]" if flaw else "")
        case Decode(requests, flaw):
            return "decode " + (", ".join(requests) or "nobody") + (f" [flaw: {flaw}]" if flaw else "")
        case Cut(request, tokens):
            return f"cut the last {tokens} of {request}"
        case Free(parts, flaw):
            what = _parts(parts) or ("nothing" if not flaw else "slots")
            return f"free {what}" + (f" [flaw: {flaw}]" if flaw else "")
        case FreeSwa(parts):
            return "free_swa " + _parts(parts)
        case Restore(_, flaw) if flaw:
            return f"restore_state of what is no snapshot [flaw: {flaw}]"
        case Backup(snapshot) | Restore(snapshot):
            return f"{name_of(operation)} {snapshot}"
        case CopyOut(request) | CopyIn(request):
            return f"{name_of(operation)} of {request}"
        case _:
            return name_of(operation)


def _parts(parts: tuple[Part, ...]) -> str:
    whole = Part("", 0, None)
    return ", ".join(
        p.request
        if (p.start, p.stop) == (whole.start, whole.stop)
        else f"{p.request}[{p.start}:{'' if p.stop is None else p.stop}]"
        for p in parts
    )


FLAGS = {"undefined": "lanes that a load leaves open are poison"}


def config_sentence(config: Config) -> str:
    """A pool in one short line: what differs from the plainest one."""
    words = [f"{config.kind} pool of {config.pages} page(s) of {config.page_size}"]
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "overwrite":
            words += ["its caller reuses tensors"] if value else []
        elif field.name not in ("kind", "pages", "page_size") and value != field.default:
            words.append(FLAGS.get(field.name, field.name) if value is True else f"{field.name}={value}")
    return ", ".join(words)
