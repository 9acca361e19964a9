"""What kind of step a step is: the words in which coverage is counted and faults are steered round."""

from __future__ import annotations

from oracle.ops import Config
from oracle.world import AllocCall, BatchCall, FreeCall, StateCall, Step, room_in

MANY = 6
LONG = 9

_SIZES = ("no fit", "exact fit", "empty pool", "in a group")
_LENGTHS = (
    "no fit, pool not empty", "of nobody", "inside a page", "of one that stays inside its page",
    "to a page's end", "of several", "of many",
)  # fmt: skip
_FREES = ("of nothing", "of a partly filled page", "of several pages", "in a group")
# The words that `shapes` may put behind each method.
POSSIBLE: dict[str, tuple[str, ...]] = {
    "alloc": (*_SIZES, "of nothing"),
    "alloc_extend": (*_SIZES, *_LENGTHS, "of one that does not grow", "by many pages"),
    "alloc_decode": (*_SIZES, *_LENGTHS),
    "free": (*_FREES, "after free_swa"),
    "free_swa": (*_FREES, "again"),
    "free_group_begin": (),
    "free_group_end": ("without a group", "with nothing freed", "in a group"),
    "merge_and_sort_free": ("in a group",),
    "backup_state": ("with one taken before", "in a group"),
    "restore_state": ("of an open group", "in a group"),
    "clear": ("in a group",),
    "get_cpu_copy": ("in a group",),
    "load_cpu_copy": ("in a group",),
}


def shapes(step: Step, config: Config) -> list[str]:
    """The shapes of one step, such as `alloc_extend no fit`; the method alone comes last."""
    call = step.call
    if step.status == "misuse":
        return [f"misuse {step.rule}: {method_of(step)}"]
    if step.status == "skip" or call is None:
        return []
    found: list[str] = []
    method = method_of(step)
    if isinstance(call, AllocCall | BatchCall):
        found = _allocation(step, call, config)
    elif isinstance(call, FreeCall):
        found = _free(step, call, config)
    elif isinstance(call, StateCall):
        found = _state(step, call)
    if step.before.group is not None:
        found.append("in a group")
    return [f"{method} {word}" for word in found] + [method]


def method_of(step: Step) -> str:
    """The method that a step calls."""
    call = step.call
    if isinstance(call, AllocCall):
        return "alloc"
    if isinstance(call, BatchCall):
        return "alloc_decode" if call.decode else "alloc_extend"
    if isinstance(call, FreeCall):
        return "free_swa" if call.swa else "free"
    if isinstance(call, StateCall):
        return call.method
    return "load_cpu_copy" if call is not None and call.load else "get_cpu_copy"


def _allocation(step: Step, call: AllocCall | BatchCall, config: Config) -> list[str]:
    room = room_in(config, step.before)
    found = []
    if not step.fits:
        found.append("no fit")
        if isinstance(call, BatchCall) and room:
            found.append("no fit, pool not empty")
    elif step.fresh and len(step.fresh) == room:
        found.append("exact fit")
    if not room:
        found.append("empty pool")
    if isinstance(call, AllocCall):
        return [*found, "of nothing"] if not call.size else found
    if not call.seq:
        found.append("of nobody")
    if step.grown:
        found.append("inside a page")
    lengths = list(zip(call.prefix, call.seq, strict=True))
    if any(p == s for p, s in lengths):
        found.append("of one that does not grow")
    if any(p % config.page_size and s <= p + -p % config.page_size for p, s in lengths):
        found.append("of one that stays inside its page")
    if any(s % config.page_size == 0 for s in call.seq):
        found.append("to a page's end")
    if len(call.seq) > 1:
        found.append("of several")
    if len(call.seq) >= MANY:
        found.append("of many")
    if any(s - p > LONG * config.page_size for p, s in lengths):
        found.append("by many pages")
    return found


def _free(step: Step, call: FreeCall, config: Config) -> list[str]:
    found = []
    if not call.runs:
        found.append("of nothing")
    if any(low or high < config.page_size for _, low, high in call.runs):
        found.append("of a partly filled page")
    if len(call.runs) > 1:
        found.append("of several pages")
    if call.swa and any(uid in step.before.gone for uid, _, _ in call.runs):
        found.append("again")
    if not call.swa and any(uid in step.before.gone for uid, _, _ in call.runs):
        found.append("after free_swa")
    return found


def _state(step: Step, call: StateCall) -> list[str]:
    group = step.before.group
    match call.method:
        case "free_group_end" if group is None:
            return ["without a group"]
        case "free_group_end" if group is not None and not (group.pages or group.parts or group.swa):
            return ["with nothing freed"]
        case "restore_state" if step.after.group is not None:
            return ["of an open group"]
        case "backup_state" if step.before.snapshots:
            return ["with one taken before"]
    return []


def config_shapes(config: Config) -> list[str]:
    """The shapes of a pool and of how its caller behaves."""
    found = []
    if config.need_sort:
        found.append("with need_sort")
    if config.page_size & (config.page_size - 1):
        found.append("with a page size that is no power of two")
    if config.page_size == 1:
        found.append("with page size 1")
    if config.spare:
        found.append("with slots to spare")
    if config.overwrite:
        found.append("overwriting tensors")
    if config.data:
        found.append("with K and V")
    if config.undefined:
        found.append("with undefined lanes")
    return found
