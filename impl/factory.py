"""Anybody's allocator: a function that makes one for a pool, with what it claims written on it."""

from __future__ import annotations

from typing import Any

from impl.errors import SubjectError
from impl.session import Bench
from impl.subject import PAGE_SIZES, LocalSubject, Space, kv_pools, pool_lists
from oracle.ops import KINDS, Config
from oracle.traits import ALWAYS, OPTIONAL, Traits

FORMS = ("mirrored", "device")


def factory_subject(name: str, factory: Any, device: str) -> LocalSubject:
    """The subject of `factory(config) -> allocator`, `config` being an `oracle.ops.Config`.

    The allocator has SGLang's methods. Attributes of the factory, all optional, say the rest: `kind`
    (token, paged, swa; default paged), `form` (mirrored, device), `page_sizes`, `need_sort` (tuples of what
    it can be made with), and `traits` (an `oracle.traits.Traits`, or a function of the config). Without
    traits, what is claimed is what the allocator has methods for. SubjectError where it raises or does not
    give an allocator.
    """
    if not callable(factory):
        raise SubjectError(f"{name} is a {type(factory).__name__}: name a function that makes an allocator")
    kind, form = getattr(factory, "kind", "paged"), getattr(factory, "form", "mirrored")
    if kind not in KINDS or form not in FORMS:
        raise SubjectError(f"{name}: kind is one of {', '.join(KINDS)} and form one of {', '.join(FORMS)}")
    sizes = (1,) if kind == "token" else tuple(getattr(factory, "page_sizes", PAGE_SIZES))
    space = Space(kind, sizes, tuple(getattr(factory, "need_sort", (False, True))))

    def make(config: Config) -> Bench:
        try:
            allocator = factory(config)
        except Exception as error:
            raise SubjectError(
                f"{name} raised {type(error).__name__}: {error} when asked for {config}"
            ) from error
        missing = [m for m in ("alloc", "free", "available_size", "clear") if not hasattr(allocator, m)]
        if missing:
            raise SubjectError(
                f"{name} gave a {type(allocator).__name__} without {', '.join(missing)}: is it an allocator?"
            )
        full, window = kv_pools(config, device)
        cache = getattr(allocator, "_kvcache", None)
        listed = (
            pool_lists
            if hasattr(getattr(allocator, "full_attn_allocator", allocator), "release_pages")
            else None
        )
        wired = cache is not None and hasattr(cache, "set_kv")
        return Bench(allocator, form, listed, cache if wired else None, window if wired and full else None)

    declared = getattr(factory, "traits", None)
    probe = make(Config(kind, 4, sizes[0], swa_pages=4 if kind == "swa" else 0)) if declared is None else None

    def claims(config: Config) -> Traits:
        if declared is not None:
            traits = declared(config) if callable(declared) else declared
            if not isinstance(traits, Traits):
                raise SubjectError(
                    f"{name}.traits is a {type(traits).__name__}: give an oracle.traits.Traits"
                )
            return traits
        assert probe is not None
        have = {method for method in ALWAYS | OPTIONAL if hasattr(probe.allocator, method)}
        if probe.kv is None:
            have -= {"get_cpu_copy", "load_cpu_copy"}
        return Traits(operations=frozenset(have))

    about = (getattr(factory, "__doc__", None) or f"the allocator that {name} makes").strip().splitlines()[0]
    return LocalSubject(name, about, space, make, claims, device)
