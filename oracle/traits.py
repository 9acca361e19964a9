"""What a subject claims to do, as data: a property is asserted only where it is claimed."""

from __future__ import annotations

from dataclasses import dataclass, field

# Every way to misuse an allocator that the suite knows, with the rule it breaks. The first group shows in
# shapes, sizes and the CPU mirrors; the second only in values that live on the device.
HOST_RULES = {
    "negative": "sizes and lengths are not negative",
    "whole": "a size is a whole number",
    "unaligned": "the size of an alloc is a multiple of the page size",
    "lengths": "the arguments of a batch are equally long",
    "total": "extend_num_tokens is the sum of what the requests grow by",
    "new pages": "num_new_pages is the number of pages that the requests open",
    "shrinks": "no request's seq_len is below its prefix_len",
    "dtype": "indices and lengths are integers",
    "shape": "indices and lengths have one dimension",
    "tensor": "indices and lengths are tensors",
    "device": "indices and lengths are on the allocator's device",
    "snapshot": "restore_state takes what backup_state gave",
    "nested group": "groups do not nest",
}
DEVICE_RULES = {
    "last_loc": "(last_loc + 1) mod page_size equals prefix_len mod page_size",
    "last page": "a request goes on inside a page that it holds",
    "mirror": "lengths on the device are those of their CPU mirror",
    "one owner": "a page that is partly filled grows once a batch",
    "part of a page": "a free covers every live slot of each page it touches",
    "twice": "a slot is freed once",
    "padding": "the padding slot is never freed",
    "foreign": "what is freed lies in the pool",
    "swa gone": "a page whose SWA half was given up does not grow",
}
RULES = HOST_RULES | DEVICE_RULES

ALWAYS = frozenset({"alloc", "free", "free_group_begin", "free_group_end", "clear", "available_size"})
OPTIONAL = frozenset(
    {
        "alloc_extend", "alloc_decode", "free_swa", "merge_and_sort_free", "backup_state", "restore_state",
        "get_cpu_copy", "load_cpu_copy", "estimated_num_new_pages",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    """The exact order of an implementation that claims one (SPEC.md, The exact order).

    front: freed pages go before the list, sorted and distinct; else behind it, as given. staged_front: the
    same for those that wait to be merged. always_sorts: freed pages always wait, with need_sort or without.
    merge_extend, merge_decode: the demand that is compared with the free list before waiting pages are merged:
    `bound` (batch size times pages of the whole batch; for a decode the batch size), `exact` (pages really
    needed), `loose` (pages of the whole batch, one for each request, and one), `always`.
    """

    name: str
    front: bool
    staged_front: bool
    always_sorts: bool = False
    merge_extend: str = "bound"
    merge_decode: str = "bound"


SEED_TOKEN = Dialect("seed token", front=False, staged_front=False)
SEED_PAGED = Dialect("seed paged", front=True, staged_front=True)


@dataclass(frozen=True, slots=True)
class Traits:
    """What one subject claims.

    operations: methods that it has, of `ALWAYS` and `OPTIONAL`.
    dtypes: index dtype of each operation's answer, by method name; `default_dtype` for the others.
    undefined: misuse (`RULES`) whose outcome the subject leaves open; it is not generated.
    swa_now: `free_swa` inside a group takes effect at once, instead of at the group's end.
    free_full: slots whose window half is gone are freed with `free_full`, and not with `free`.
    dialect: its exact order, or None where it claims none (then there is no parity level).
    attributes: what callers read of it, and a new allocator has right (`impl.session`, `attributes_of`); where
    the mapping is one of them, the KV cache has the same.
    translates: dtype of the SWA slots of full slots, where it is promised; then -1 stays -1, so that a request
    without a last token stays one.
    errors: what its checks of arguments raise at the hardened level; any error will do where it is empty.
    checks_pools: its constructor raises TypeError or ValueError for a pool that can't be, and makes the largest one
    that its indices can number (`impl.constructor`).
    """

    operations: frozenset[str] = ALWAYS | OPTIONAL
    default_dtype: str = "int64"
    dtypes: dict[str, str] = field(default_factory=dict)
    undefined: frozenset[str] = frozenset()
    swa_now: bool = False
    free_full: bool = False
    dialect: Dialect | None = None
    attributes: frozenset[str] = frozenset()
    translates: str = ""
    errors: frozenset[str] = frozenset()
    checks_pools: bool = False

    def dtype_of(self, method: str) -> str:
        """The index dtype promised for a method's answer."""
        return self.dtypes.get(method, self.default_dtype)
