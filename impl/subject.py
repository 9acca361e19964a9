"""What can be judged: the protocol of a subject, and the project's own four."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import torch

from impl.ascend import AscendAllocator
from impl.base import BaseAllocator
from impl.constructor import Pool
from impl.emulator.launch import Emulator
from impl.engines import INTERPRETED_SHARE, OWN_ENGINES, on_cpu
from impl.errors import SubjectError
from impl.kvpool import KVPool, SwaKVPool
from impl.paged import IndexEngine, PagedAllocator
from impl.session import Bench, Lists, Session
from impl.swa import SwaAllocator
from impl.token import TokenAllocator
from impl.torch_engine import TorchEngine
from oracle.ops import Case, Config
from oracle.traits import ALWAYS, DEVICE_RULES, SEED_PAGED, SEED_TOKEN, Traits
from oracle.verdict import Observation
from oracle.world import Step

KV_SHAPE = {"layers": 2, "heads": 1, "head_dim": 2, "dtype": torch.float32}
KV_SLOTS = 1024  # K and V are checked on pools up to this size


@dataclass(frozen=True, slots=True)
class Space:
    """Which pools a subject can be made with: every generated configuration is drawn from here.

    small: only pools of few pages and narrow batches, for subjects that take milliseconds a request.
    always_checks: what needs no device value is refused without debug mode too, so that the hardened level looks
    at pools of both kinds.
    undefined: its kernels can be run with lanes that hold nothing (`Config.undefined`), as on the emulator.
    `fixed` holds what the subject's name asks for in brackets, by field name of `oracle.ops.Config`.
    """

    kind: str
    page_sizes: tuple[int, ...] = (1,)
    need_sort: tuple[bool, ...] = (False, True)
    data: bool = True
    small: bool = False
    undefined: bool = False
    always_checks: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)


class Driver(Protocol):
    """One run of a subject, step by step."""

    def begin(self) -> Observation:
        """What a new allocator shows."""

    def apply(self, step: Step, following: Step | None = None) -> Observation:
        """The answer to one step. following: the one behind it, where it is known."""


class Subject(Protocol):
    """An allocator that can be made anew for every case."""

    name: str
    about: str
    space: Space
    device: str
    share: float  # how much of a budget's examples it gets: slow subjects less than 1

    def traits(self, config: Config) -> Traits:
        """What is claimed of the allocator with this pool."""

    def open(self, config: Config) -> Driver:
        """A new allocator, to be driven step by step. SubjectError where it can't be made."""

    def run(self, case: Case, steps: Sequence[Step]) -> Iterator[Observation]:
        """A new allocator's first look, then its answer to each step of the case's plan."""

    def close(self) -> None:
        """Give back what the subject holds (processes)."""


@dataclass(slots=True)
class LocalSubject:
    """A subject in this process."""

    name: str
    about: str
    space: Space
    make: Callable[[Config], Bench]
    claims: Callable[[Config], Traits]
    device: str = "cpu"
    share: float = 1.0

    def traits(self, config: Config) -> Traits:
        """What is claimed of the allocator with this pool."""
        return self.claims(config)

    def open(self, config: Config) -> Session:
        """A new allocator, to be driven step by step."""
        return Session(config, self.claims(config), self.make(config), self.device)

    def run(self, case: Case, steps: Sequence[Step]) -> Iterator[Observation]:
        """A new allocator's first look, then its answer to each step; one at a time, as they are asked for."""
        session = self.open(case.config)
        yield session.begin()
        for step, following in zip_longest(steps, steps[1:]):
            yield session.apply(step, following)

    def close(self) -> None:
        """Nothing is held."""


def pool_lists(allocator: Any) -> Lists:
    """Free and release list of an SGLang-shaped allocator, of both pools where it has two."""
    pools = (
        (allocator.full_attn_allocator, allocator.swa_attn_allocator)
        if hasattr(allocator, "full_attn_allocator")
        else (allocator,)
    )
    found: list[Any] = []
    for pool in pools:
        found += plain(pool.free_pages.tolist()), plain(pool.release_pages.tolist())
    return tuple(found)


def plain(numbers: Any) -> Any:
    """Lists as tuples; in rows where the list has become a matrix, as a free of one makes it in some allocators."""
    return tuple(map(plain, numbers)) if numbers and isinstance(numbers[0], list) else tuple(numbers)


def kv_pools(config: Config, device: str) -> tuple[KVPool | None, KVPool | None]:
    """Small real K and V tensors behind a pool (and its window), where the case checks data."""
    if not config.data or config.size > KV_SLOTS:
        return None, None
    full = KVPool(config.size, config.page_size, device=device, **KV_SHAPE)  # type: ignore[arg-type]
    if not config.swa_pages:
        return full, None
    window = config.swa_pages * config.page_size
    return full, KVPool(window, config.page_size, device=device, **KV_SHAPE)  # type: ignore[arg-type]


# -- the project's own ---------------------------------------------------------------------------------

PAGE_SIZES = (1, 2, 3, 4, 8, 16, 64)
OWN: dict[str, type[BaseAllocator]] = {
    "token": TokenAllocator,
    "paged": PagedAllocator,
    "ascend": AscendAllocator,
    "swa": SwaAllocator,
}


def own(
    part: str,
    device: str = "cpu",
    engine: str | IndexEngine = "",
    name: str = "",
    before: tuple[type, ...] = (),
) -> LocalSubject:
    """One of the project's own subjects.

    engine: of `OWN_ENGINES`, empty for the device's default, or one that is made already.
    before: classes that go before the allocator's own, and change what it does (`impl.defects`).
    """
    kind = "paged" if part == "ascend" else part
    sizes = {"token": (1,), "paged": PAGE_SIZES, "swa": PAGE_SIZES}[kind]
    chosen = _engine(engine, part, device) if isinstance(engine, str) else engine
    emulator: Emulator | None = getattr(chosen, "emulator", None)
    maker: Any = type(OWN[part].__name__, (*before, OWN[part]), {}) if before else OWN[part]

    def build(pool: Pool, debug: bool, device: str, kvcache: Any) -> BaseAllocator:
        options: dict[str, Any] = {
            "dtype": torch.float32,
            "device": device,
            "kvcache": kvcache,
            "debug": debug,
        }
        options["need_sort"] = pool.need_sort
        if part == "token":
            made = maker(pool.size, **options)
        elif part == "swa":
            made = maker(pool.size, pool.size_swa, pool.page_size, engine=chosen, **options)
        else:
            made = maker(pool.size, pool.page_size, engine=chosen, **options)
        assert isinstance(made, BaseAllocator)
        return made

    def make(config: Config) -> Bench:
        if emulator is not None:  # one for all allocators: one is driven at a time
            emulator.undefined = config.undefined
        full, window = kv_pools(config, device)
        cache = SwaKVPool(full, window) if full is not None and window is not None else full
        pool = Pool(config.size, config.page_size, config.swa_pages * config.page_size, config.need_sort)
        return Bench(
            build(pool, config.debug, device, cache),
            lists=pool_lists,
            kv=full,
            kv_window=window,
            emulator=emulator,
            counts_pages=part != "token",
            build=lambda other: build(other, config.debug, "meta", None),
        )

    def claims(config: Config) -> Traits:
        # Without debug mode nothing looks at values on the device, and what they say is the caller's duty.
        return _claims(part, config.debug, config.page_size)

    on = f" on the {engine} engine" if isinstance(engine, str) and engine else ""
    about = f"kvassay's own {part} allocator{on}"
    interpreted = engine == "triton" and device == "cpu"
    share = INTERPRETED_SHARE if interpreted else 1.0
    space = Space(kind, sizes, small=interpreted, undefined=emulator is not None, always_checks=True)
    return LocalSubject(name or part, about, space, make, claims, device, share)


def _engine(engine: str, part: str, device: str) -> IndexEngine | None:
    match engine, part:
        case "", _:
            return None
        case _, "token":
            raise SubjectError("token has no engine: leave engine= out")
        case "torch", _:
            return TorchEngine()
        case "triton", _:
            from impl.triton_engine import TritonEngine  # Triton is an extra

            return TritonEngine()
        case "emulator", _:
            from impl.emulator.engine import EmulatedEngine

            on_cpu(device)
            return EmulatedEngine(Emulator())
        case _:
            raise SubjectError(f"engine is {' or '.join(OWN_ENGINES)}, not {engine!r}")


_PLAIN = {"merge_and_sort_free", "backup_state", "restore_state"}
_BY_KIND = {
    "token": _PLAIN | {"get_cpu_copy", "load_cpu_copy"},
    "paged": _PLAIN
    | {"get_cpu_copy", "load_cpu_copy", "alloc_extend", "alloc_decode", "estimated_num_new_pages"},
    "swa": _PLAIN | {"alloc_extend", "alloc_decode", "free_swa", "estimated_num_new_pages"},
}


_ATTRIBUTES = frozenset({"size", "page_size", "num_pages", "dtype", "device", "need_sort"})
_SWA_ATTRIBUTES = frozenset({"size_full", "size_swa", "full_to_swa_index_mapping"})


def _claims(part: str, debug: bool, page_size: int) -> Traits:
    kind = "paged" if part == "ascend" else part
    return Traits(
        operations=ALWAYS | frozenset(_BY_KIND[kind]),
        default_dtype="int32" if part == "ascend" else "int64",
        undefined=frozenset() if debug else frozenset(DEVICE_RULES),
        attributes=_ATTRIBUTES | (_SWA_ATTRIBUTES if kind == "swa" else frozenset()),
        translates="int32" if kind == "swa" else "",
        dialect=SEED_TOKEN if page_size == 1 and kind != "paged" else SEED_PAGED,
        errors=frozenset({"TypeError", "ValueError"}),
        checks_pools=True,
    )
