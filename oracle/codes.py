"""The names of all promises: the codes that reports, certificates and cases use, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """One promise. `asserts`: what must hold. `matters`: what breaks in a server without it."""

    name: str
    asserts: str
    matters: str
    level: str = "contract"


LEVELS = ("contract", "parity", "hardened")

CODES = {
    code.name: code
    for code in (
        Code(
            "UNIQUE",
            "No slot is live twice: not within one answer, not across answers, and none is live and free.",
            "Two requests write their K and V to one place, and each reads the other's.",
        ),
        Code(
            "RANGE",
            "Every slot handed out lies in pages 1 to num_pages; a padding slot (page 0) never is.",
            "Padded tokens write over a request, or a kernel writes outside the K and V tensors.",
        ),
        Code(
            "ALIGN",
            "Token k of a request sits at offset k mod page_size of its page, and the tokens of a page share it.",
            "Attention kernels read whole pages from the page table, and would read somebody else's.",
        ),
        Code(
            "CONSERVE",
            "Held, free, released and pending pages add up to the pool after every operation, and"
            " available_size() says exactly what is free and released.",
            "Pages that leak shrink the cache until the server stops; pages that multiply get two owners.",
        ),
        Code(
            "EXHAUST",
            "An allocation that does not fit returns None and one that fits does not; none raises or answers"
            " with too few slots.",
            "The scheduler retracts requests on None. An exception there takes the server down.",
        ),
        Code(
            "ATOMIC",
            "An operation that returned None or raised has changed nothing that can be observed.",
            "The caller tries again, and half of the first try is lost or handed out twice.",
        ),
        Code(
            "GROUP",
            "Frees between free_group_begin and free_group_end take effect at the end, at once; a second end"
            " changes nothing.",
            "Slots are reused while a kernel still reads them, or never come back.",
        ),
        Code(
            "RESTORE",
            "After backup and restore the allocator answers as if what lies between had not been.",
            "Speculative decoding rolls back to a state that never was.",
        ),
        Code(
            "CLEAR",
            "After clear the allocator answers as a new one, also inside a group.",
            "A flushed cache starts with pages missing, or with a group that swallows every free.",
        ),
        Code(
            "REUSE",
            "Everything freed can be allocated again: a drained pool gives its whole capacity.",
            "Capacity that is counted but can't be had: requests wait for ever.",
        ),
        Code(
            "ALIAS",
            "A tensor given or taken earlier never changes behind its owner's back, and changing it never"
            " changes the allocator.",
            "Callers reuse their index buffers; the allocator's lists change with them.",
        ),
        Code(
            "TYPE",
            "Index dtype, device, shape and contiguity of every answer are as promised.",
            "A kernel compiled for int64 reads int32 indices, or a copy is made on every step.",
        ),
        Code(
            "MAP",
            "SWA: every live full slot maps to the window slot that was given with it, or to 0 after that"
            " was freed; no two map to one.",
            "Sliding-window layers read another request's window.",
        ),
        Code(
            "DATA",
            "K and V written at a request's slots are there, unchanged, until it frees them, also after a"
            " CPU copy and back.",
            "The model answers with somebody else's context.",
        ),
        Code(
            "GUARD",
            "No kernel reads or writes outside its arguments, uses what nothing wrote or writes a place twice, and"
            " the process survives every operation.",
            "Garbage indices, or an illegal memory access that takes all requests with it.",
        ),
        Code(
            "REJECT",
            "Bad input gets a clear error and changes nothing.",
            "A bug in the caller shows up hours later as another request's wrong answer.",
            level="hardened",
        ),
        Code(
            "ORDER",
            "Every number is the reference's, in the subject's own dialect (when it merges, where freed pages go).",
            "Two implementations that are to be interchangeable drift apart.",
            level="parity",
        ),
    )
}
