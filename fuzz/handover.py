"""A finding as Python that runs without kvassay: a script and a pytest function, to paste into somebody's repository.

The lines make the allocator by its own constructor, make the calls of the case, and assert what the finding
says. Slots are never written down: they are taken from what the allocator answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fuzz.assertions import departs
from fuzz.claim import quoted
from fuzz.constructors import ENGINES, Maker, NoHandover, maker_of
from fuzz.emitter import Emitter
from oracle.batch import SENTINEL, ZONE, answer
from oracle.casefile import BatchFile, CaseFile
from oracle.judge import Judge
from oracle.ops import Case
from oracle.plan import plan
from oracle.records import write_text
from oracle.verdict import Observation, Violation

FENCE = '''\
def at_edge(listed):
    """The list at the end of a page of memory, before one that nobody may read: reading past it ends the process."""
    size = listed.numel() * listed.element_size()
    room = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    area = mmap.mmap(-1, room + mmap.PAGESIZE)
    edge = ctypes.addressof(ctypes.c_char.from_buffer(area)) + room
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(mmap.PAGESIZE), 0)
    whole = torch.frombuffer(memoryview(area)[:room], dtype=listed.dtype)
    moved = whole[whole.numel() - listed.numel() :]
    moved.copy_(listed)
    return moved'''.splitlines()
GUARDED = f'''\
def guarded(values, dtype):
    """A tensor, and the larger one that it lies in: what is around it nobody may read or write."""
    around = torch.full(({2 * ZONE} + len(values),), {SENTINEL}, dtype=dtype)
    inner = around[{ZONE} : {ZONE} + len(values)]
    inner.copy_(torch.tensor(values, dtype=dtype))
    return inner, around'''.splitlines()


def script(file: CaseFile | BatchFile, tree: str = "") -> str:
    """The finding as a script: it fails where the case fails. NoHandover says why there is none."""
    name, body, about = _function(file, tree)
    head = [f'"""{_safe(_headline(file))}', "", f"{_where(file)}", *([about] if about else []), '"""', "", ""]
    tail = ["", "", 'if __name__ == "__main__":', f"    {name}()", '    print("holds")', ""]
    return "\n".join([*head, *body, *tail])


def pytest_function(file: CaseFile | BatchFile, tree: str = "") -> str:
    """The same as one function for pytest, with its imports in it."""
    _, body, _ = _function(file, tree)
    return "\n".join([*body, ""])


def write(path: Path, file: CaseFile | BatchFile, tree: str = "") -> list[Path]:
    """`NAME.py` and `test_NAME.py` beside the case file NAME at `path`. NoHandover says why there are none."""
    # A module's name has no dots and dashes: pytest imports it.
    test = f"test_{re.sub(r'[^0-9a-zA-Z]', '_', path.stem)}.py"
    written = path.with_name(f"{path.stem}.py"), path.with_name(test)
    texts = script(file, tree), pytest_function(file, tree)
    for target, text in zip(written, texts, strict=True):
        write_text(target, text)
    return list(written)


def _headline(file: CaseFile | BatchFile) -> str:
    assert file.finding is not None
    return f"{file.finding.code}: {file.finding.summary}"


def _where(file: CaseFile | BatchFile) -> str:
    what = file.engine if isinstance(file, BatchFile) else file.subject
    versions = ", ".join(f"{name} {number}" for name, number in file.versions.items())
    return f"Found by kvassay in {what}" + (f" ({versions})." if versions else ".")


def _safe(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''").encode("utf-8", "backslashreplace").decode()


def _function(file: CaseFile | BatchFile, tree: str) -> tuple[str, list[str], str]:
    if file.finding is None:
        raise NoHandover("it holds no finding: there is nothing to assert")
    if isinstance(file, BatchFile):
        return _batch(file)
    if file.claims is None or (not file.answers and file.case.operations):
        raise NoHandover("it holds no answers: run it again with kvassay gate, and export what that writes")
    maker = maker_of(file.subject, file.case.config, tree)
    lines = list(_relation(file, maker) if _compares(file.finding) else _single(file, maker))
    name = f"test_{re.sub(r'[^a-z0-9]+', '_', f'{file.finding.code} {file.finding.operation}'.lower()).strip('_')}"
    doc = f'"""{_safe(_headline(file))}"""'
    imports = ["import torch", *maker.imports]
    if any("at_edge" in line for line in lines):
        imports = ["import ctypes", "import mmap", "", *imports]
    while not lines[-1]:
        lines.pop()
    body = [doc, *imports, "", *_helpers(lines, file), *lines]
    return name, [f"def {name}():", *(f"    {line}" if line else "" for line in body)], maker.about


def _compares(violation: Violation) -> bool:
    return violation.symptom.startswith("relation ")


def _helpers(lines: list[str], file: CaseFile) -> Iterator[str]:
    text = "\n".join(lines)
    if "ints(" in text:
        yield from ("def ints(*values):", "    return torch.tensor(values, dtype=torch.int64)", "")
    if "joined(" in text:
        yield from (
            "def joined(*parts):",
            "    return torch.cat([part.to(torch.int64) for part in parts])",
            "",
        )
    if "lists()" in text:
        pools = (
            "(allocator.full_attn_allocator, allocator.swa_attn_allocator)"
            if file.case.config.kind == "swa"
            else "(allocator,)"
        )
        yield "def lists():"
        if file.subject.startswith("sglang"):
            yield '    """The free list, and what waits to be merged (later releases call it staged), of each pool."""'
            yield "    def waits(pool):"
            yield '        staged = getattr(pool, "staged_pages", None)'
            yield "        return [n for t in staged for n in t.tolist()] if staged is not None else pool.release_pages.tolist()"
            yield ""
            yield f"    return [x for p in {pools} for x in (p.free_pages.tolist(), waits(p))]"
        else:
            yield f"    return [x.tolist() for p in {pools} for x in (p.free_pages, p.release_pages)]"
        yield ""
    if "at_edge" in text:
        yield from (*FENCE, "")


# -- one run, and two ------------------------------------------------------------------------------------


def _single(file: CaseFile, maker: Maker) -> Iterator[str]:
    """The run that broke a promise by itself: the case's, or the other one of a relation."""
    assert file.finding is not None
    assert file.claims is not None
    case, answers = file.case, file.answers
    if file.other is not None and not _breaks(file, case, answers):
        case, answers = replace(case, operations=file.other), file.other_answers
    yield from _made(maker)
    emitter = Emitter(case, file.claims, maker, answers, file.finding)
    yield from emitter.lines()


def _breaks(file: CaseFile, case: Case, answers: tuple[Observation, ...]) -> bool:
    assert file.claims is not None
    judge = Judge(case.config, file.claims, file.level or "contract")
    steps = plan(case, file.claims)
    return any(judge.check(step, seen) is not None for step, seen in zip(steps, answers, strict=False))


def _made(maker: Maker) -> Iterator[str]:
    yield from (*maker.setup, f"allocator = {maker.call}", *maker.after, "")


def _relation(file: CaseFile, maker: Maker) -> Iterator[str]:
    """Both runs, each on a new allocator, up to the operation after which they differ."""
    assert file.finding is not None
    assert file.claims is not None
    other = replace(file.case, operations=file.other or ())
    difference = departs(file.case, other, file.answers, file.other_answers, file.finding)
    ends = difference.left, difference.right
    cases = (file.case, file.answers), (other, file.other_answers)
    for name, (case, answers), end in zip(("one", "other"), cases, ends, strict=True):
        yield f"# {'One way' if name == 'one' else 'The other way'}."
        yield from _made(maker)
        emitter = Emitter(case, file.claims, maker, answers[: end + 1], None)
        yield from emitter.collecting(name, difference.record, difference.since if name == "other" else end)
        yield ""
    yield f"assert one == other, {quoted(file.finding.summary)}"


# -- the kernel tier -----------------------------------------------------------------------------------


def _batch(file: BatchFile) -> tuple[str, list[str], str]:
    """One call of an engine, and the slots that are right."""
    assert file.finding is not None
    module, _, name = file.engine.partition(":")
    if file.engine in ENGINES:
        module, name = ENGINES[file.engine]
    if not name:
        raise NoHandover(f"there is no line of Python for engine {file.engine}: replay it")
    batch, method = file.batch, "decode" if file.batch.decode else "extend"
    given = {"prefix_lens": batch.prefix, "seq_lens": batch.seq, "last_loc": batch.last}
    if batch.decode:
        del given["prefix_lens"]
    summary, right = quoted(file.finding.summary), answer(batch)
    guarded = file.finding.code == "GUARD"
    lines = [
        f'"""{_safe(_headline(file))}"""',
        "import torch",
        f"from {module} import {name}",
        "",
        *((*GUARDED, "") if guarded else ()),
        f"engine = {name}() if isinstance({name}, type) else {name}",
    ]
    dtypes = {**dict.fromkeys(given, "int64"), "free_pages": file.dtype, "out": file.dtype}
    for argument, values in {**given, "free_pages": batch.free, "out": (-1,) * batch.total}.items():
        kind = f"torch.{dtypes[argument]}"
        lines.append(
            f"{argument}, around_{argument} = guarded({list(values)}, {kind})" if guarded
            else f"{argument} = torch.tensor({list(values)}, dtype={kind})"
        )  # fmt: skip
    call = f"engine.{method}({', '.join(dtypes)}, {batch.page_size})"
    if guarded:
        arounds = ", ".join(f"around_{argument}" for argument in dtypes)
        lines += [
            f"arounds = {arounds}",
            "before = [around.clone() for around in arounds]",
            call,
            f"before[-1][{ZONE} : {ZONE} + out.numel()] = out",
            f"assert all(map(torch.equal, arounds, before)), {summary}",
        ]
    else:
        lines.append(call)
    lines.append(f"assert out.tolist() == {right}, {summary}")
    function = f"test_{file.finding.code.lower()}_{method}"
    return function, [f"def {function}():", *(f"    {line}" if line else "" for line in lines)], ""
