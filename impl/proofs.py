"""Is the arithmetic of the kernels right for all lengths and page sizes? Each formula of `impl.kernels`, to be proven.

Needs z3 (the extra `prove`). A claim is a formula over whole numbers without bounds, except in `*_fits`, which
are about what 32 bits hold. `refuted(claim)` gives a counterexample, or None: then the claim holds for all numbers.
Divisions are replaced by their quotient and remainder, which is what a division of numbers that are not negative is.
"""

# mypy: disable-error-code="import-untyped, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import z3

from impl.kernels import MOST_TOKENS

TIMEOUT = 20_000  # milliseconds a claim


class Undecided(RuntimeError):
    """The solver gave up."""


@dataclass(slots=True)
class Claim:
    """`holds` under `given`. Numbers are made by `number`, quotients by `divide`."""

    given: list[Any] = field(default_factory=list)
    holds: Any = True

    def number(self, name: str, least: int = 0) -> Any:
        """A whole number, not less than `least`."""
        made = z3.Int(name)
        self.given.append(made >= least)
        return made

    def divide(self, number: Any, page: Any, name: str) -> tuple[Any, Any]:
        """Quotient and remainder of a number that is not negative."""
        quotient, rest = z3.Ints(f"{name}_quotient {name}_rest")
        self.given += [number == quotient * page + rest, rest >= 0, rest < page]
        return quotient, rest


def refuted(claim: Claim) -> str | None:
    """A counterexample, or None where there is none. Undecided where the solver does not know."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT)
    solver.add(*claim.given, z3.Not(claim.holds))
    answer = solver.check()
    if answer == z3.unknown:
        raise Undecided(solver.reason_unknown())
    return str(solver.model()) if answer == z3.sat else None


@dataclass(frozen=True, slots=True)
class Formulas:
    """What `impl.kernels` computes of one request and one chunk; a test changes one and sees its proof fail."""

    round_up: int = 1  # held = (prefix + PAGE - round_up) // PAGE, and slot = last_loc + round_up + k
    held_back: int = 0  # index = first // PAGE - held + held_back
    chunk_shift: int = 0  # k0 of the chunk that takes over from the one before, and `low` of a share


def _request(claim: Claim, formulas: Formulas) -> dict[str, Any]:
    """A request with prefix <= seq, whose token at `pos` one lane of `_write` answers for."""
    page = claim.number("PAGE", 1)
    prefix, grow, pos = claim.number("prefix"), claim.number("grow"), claim.number("pos")
    seq = prefix + grow
    held, _ = claim.divide(prefix + page - formulas.round_up, page, "held")
    after, _ = claim.divide(seq + page - 1, page, "after")
    claim.given += [prefix <= pos, pos < seq]
    at, offset = claim.divide(pos, page, "pos")
    return {
        "page": page,
        "prefix": prefix,
        "seq": seq,
        "pos": pos,
        "held": held,
        "after": after,
        "at": at,
        "offset": offset,
    }


def new_pages_are_reserved(formulas: Formulas = Formulas()) -> Claim:
    """A token behind the old page looks up one of the request's own `after - held` new pages."""
    claim = Claim()
    r = _request(claim, formulas)
    index = r["at"] - r["held"] + formulas.held_back
    behind = r["pos"] >= r["held"] * r["page"]
    claim.holds = z3.Implies(behind, z3.And(index >= 0, index < r["after"] - r["held"]))
    return claim


def held_rounds_up(formulas: Formulas = Formulas()) -> Claim:
    """`held` is the number of whole pages of the prefix, and one more where it ends inside a page."""
    claim = Claim()
    page, prefix = claim.number("PAGE", 1), claim.number("prefix")
    held, _ = claim.divide(prefix + page - formulas.round_up, page, "held")
    whole, inside = claim.divide(prefix, page, "prefix")
    claim.holds = held == whole + z3.If(inside > 0, 1, 0)
    return claim


def old_page_is_the_last_locations(formulas: Formulas = Formulas()) -> Claim:
    """A token that goes on in the old page gets the slot at its own offset in the page of `last_loc`.

    After `held_rounds_up`. `whole` is the number of tokens in whole pages of the prefix, a multiple of PAGE.
    """
    claim = Claim()
    page, whole, inside, k, start = (
        claim.number(name, least)
        for name, least in (("PAGE", 1), ("whole", 0), ("inside", 0), ("k", 0), ("start", 0))
    )
    last_loc = start + inside - 1  # `start` is the first slot of its page, where there is one
    held = whole + z3.If(inside > 0, page, 0)
    claim.given += [inside < page, whole + inside + k < held]
    offset = inside + k  # of token `whole + inside + k`
    claim.holds = z3.And(inside > 0, offset < page, last_loc + formulas.round_up + k == start + offset)
    return claim


def tokens_of_one_page_differ(formulas: Formulas = Formulas()) -> Claim:
    """Two tokens behind the old page with one slot are one token: pages are distinct, and offsets in a page are."""
    claim = Claim()
    r = _request(claim, formulas)
    other = claim.number("other")
    claim.given += [other < r["seq"], other >= r["held"] * r["page"], r["pos"] >= r["held"] * r["page"]]
    at, offset = claim.divide(other, r["page"], "other")
    same_page = r["at"] - r["held"] + formulas.held_back == at - r["held"] + formulas.held_back
    claim.holds = z3.Implies(z3.And(same_page, r["offset"] == offset), r["pos"] == other)
    return claim


def chunk_finds_the_page(formulas: Formulas = Formulas()) -> Claim:
    """Lane k of a chunk that starts at `first` counts from the start of that page: it finds the page and offset of its token."""
    claim = Claim()
    page, first, k = claim.number("PAGE", 1), claim.number("first"), claim.number("k")
    whole, shift = claim.divide(first, page, "first")
    more, offset = claim.divide(shift + k, page, "lane")
    at, rest = claim.divide(first + k, page, "token")
    claim.holds = z3.And(whole + more + formulas.held_back == at, offset == rest)
    return claim


def chunks_tile_the_tokens(formulas: Formulas = Formulas()) -> Claim:
    """Token j of a request is written once: by its first chunk, or by the one chunk of the output that it lies in.

    The chunk of output tokens n * CHUNK .. is given to the request that its first token belongs to. If token j
    is not in the first chunk, that is this request.
    """
    claim = Claim()
    chunk, start, grow, j = (
        claim.number(name, least) for name, least in (("CHUNK", 1), ("start", 0), ("grow", 0), ("j", 0))
    )
    claim.given.append(j < grow)
    n, _ = claim.divide(start + j, chunk, "output")
    k0 = n * chunk - start + formulas.chunk_shift
    owner = z3.And(start <= n * chunk, n * chunk < start + grow)
    written = z3.And(k0 <= j, j < k0 + chunk)
    claim.holds = z3.Implies(j >= chunk, z3.And(owner, written, n >= 1))
    return claim


def shares_tile_the_tokens(formulas: Formulas = Formulas()) -> Claim:
    """Token j of a request is written by the one program of `shares_kernel` whose output tokens it is among.

    A program writes a request's tokens begin .. end - 1: here those of program n, and of another one, m.
    """
    claim = Claim()
    share, start, grow, j, m = (
        claim.number(name, least)
        for name, least in (("SHARE", 1), ("start", 0), ("grow", 0), ("j", 0), ("m", 0))
    )
    claim.given.append(j < grow)
    n, _ = claim.divide(start + j, share, "output")

    def writes(program: Any) -> Any:
        low = program * share + formulas.chunk_shift
        begin = z3.If(low > start, low - start, 0)
        end = z3.If(grow < low + share - start, grow, low + share - start)
        return z3.And(begin <= j, j < end)

    claim.holds = z3.And(writes(n), z3.Implies(writes(m), m == n))
    return claim


def sums_fit(most: int = MOST_TOKENS, chunk: int = 4096) -> Claim:
    """Tokens before a request, its new pages, and where any lane of a chunk or share writes: all less than 2^31.

    New pages are not more than new tokens: each holds one of them.
    """
    claim = Claim()
    total, n, k, pages = (claim.number(name) for name in ("total", "n", "k", "pages"))
    claim.given += [total <= most, n * chunk < total, k < chunk, pages <= total]
    claim.holds = z3.And(
        total < 1 << 31, n * chunk + k < 1 << 31, n * chunk + chunk < 1 << 31, pages < 1 << 31
    )
    return claim


def lanes_fit(most_page: int, chunk: int = 2048) -> Claim:
    """`first % PAGE + k`, in 32 bits: where a lane is, counted from the start of the page of the chunk's first token."""
    claim = Claim()
    page, shift, k = claim.number("PAGE", 1), claim.number("shift"), claim.number("k")
    claim.given += [page <= most_page, shift < page, k < chunk]
    claim.holds = shift + k < 1 << 31
    return claim


def slots_fit(most: int, unlisted: int = 1) -> Claim:
    """A slot of the highest page is not more than `most`, given what the constructors enforce of a pool.

    That is `(num_pages + unlisted) * PAGE <= most`; the one page that is not listed is page 0.
    """
    claim = Claim()
    page, pages, offset = claim.number("PAGE", 1), claim.number("num_pages"), claim.number("offset")
    claim.given += [(pages + unlisted) * page <= most, offset < page]
    claim.holds = pages * page + offset <= most
    return claim


CLAIMS = (
    held_rounds_up,
    new_pages_are_reserved,
    old_page_is_the_last_locations,
    tokens_of_one_page_differ,
    chunk_finds_the_page,
    chunks_tile_the_tokens,
    shares_tile_the_tokens,
)
