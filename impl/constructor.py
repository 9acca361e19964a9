"""What does a constructor make: the attributes of a new allocator, and its answers to pools that cannot be, and to the largest?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from impl.base import MOST_PAGE
from oracle.ops import Config
from oracle.traits import Traits


class Pool(NamedTuple):
    """What a constructor is asked for, of the right types or not. size_swa: 0 where there is no window."""

    size: Any
    page_size: Any
    size_swa: Any
    need_sort: Any


Build = Callable[[Pool], object]  # makes an allocator on the meta device, where tensors have no memory


def misbuilt(build: Build, config: Config, traits: Traits) -> str:
    """Which answer of the constructor is wrong, as a sentence; empty where none is.

    What is asked hangs on the page size alone, so a few of a run's cases are enough: those of one page, which a
    shrinker comes to by itself, in debug mode, which only the hardened level has.
    """
    if not traits.checks_pools or not config.debug or config.pages > 1:
        return ""
    for what, pool in _impossible(config, traits):
        answer = _answer(build, pool)
        if answer != "refused":
            return f"{what} cannot be, and was {answer}: {pool}"
    for what, pool in _largest(config, traits):
        answer = _answer(build, pool)
        if answer != "made":
            return f"{what} can be, and was {answer}: {pool}"
    return ""


class _Unwritten(TorchFunctionMode):
    """Whatever a list is made of is empty: the meta device's own `arange` and `cat` load SymPy, for a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call of torch, by whoever."""
        if func is torch.arange:
            numbers = range(*map(int, args))
            return torch.empty(len(numbers), **kwargs)
        if func is torch.cat:
            return args[0][0].new_empty(sum(part.numel() for part in args[0]))
        return func(*args, **kwargs or {})


def _answer(build: Build, pool: Pool) -> str:
    try:
        with _Unwritten():
            build(pool)
    except (TypeError, ValueError):
        return "refused"
    except Exception as error:
        # No check raises this: whatever comes is an answer, and a wrong one.
        return f"met with {type(error).__name__} ({error})"
    return "made"


def _impossible(config: Config, traits: Traits) -> Iterator[tuple[str, Pool]]:
    size, window = config.page_size, int(config.kind == "swa")
    good = Pool(4 * size, size, 4 * size * window, False)
    fields = {"size": torch.iinfo(_dtype(traits.default_dtype)).max}
    if window:
        fields["size_swa"] = torch.iinfo(_dtype(traits.translates)).max
    for field, most in fields.items():
        for what, wrong in (
            ("negative", -size),
            ("no int", 4.0 * size),
            ("less than a page", size - 1),
            ("a page more than indices can number", most // size * size),  # slots of page 0 count too
        ):
            yield f"a pool whose {field} is {what}", good._replace(**{field: wrong})
    yield "a pool whose need_sort is no bool", good._replace(need_sort=1)
    if config.kind != "token":
        for wrong in (0, -1, 1.0):
            yield f"a pool in pages of {wrong} slots", good._replace(page_size=wrong)
        wide = MOST_PAGE + 1
        yield "a pool in pages larger than kernels count", Pool(4 * wide, wide, 4 * wide * window, False)


def _largest(config: Config, traits: Traits) -> Iterator[tuple[str, Pool]]:
    size = config.page_size
    if config.kind == "swa":
        most = torch.iinfo(_dtype(traits.translates)).max
        yield "the largest window", Pool(4 * size, size, (most // size - 1) * size, False)
    if config.kind == "paged":
        most = torch.iinfo(_dtype(traits.default_dtype)).max
        # A list of 2^63 small pages is more than torch can say the size of; so is Token's.
        wide = size if most < 1 << 32 else MOST_PAGE
        yield "the largest pool", Pool((most // wide - 1) * wide, wide, 0, False)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def attributes_of(allocator: Any, config: Config, names: frozenset[str], device: str) -> str:
    """In which of the attributes that are claimed a new allocator is wrong, as a sentence; empty when in none."""
    right = {
        "size": config.size, "page_size": config.page_size, "num_pages": config.pages, "need_sort": config.need_sort,
        "size_full": config.size, "size_swa": config.swa_pages * config.page_size,
    }  # fmt: skip
    for name in sorted(names):
        if not hasattr(allocator, name):
            return f"{name} is not there"
        got = getattr(allocator, name)
        if name in right and got != right[name]:
            return f"{name} is {got}, and {right[name]} is right"
        if name == "device" and torch.device(got).type != torch.device(device).type:
            return f"device is {got}, and {device} is right"
    return ""
