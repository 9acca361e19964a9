"""Small changes to the source of loaded functions, one at a time, for seeing whether the gate notices them.

A mutant is made from a module's source with the standard `ast`: one comparison, operator, constant, statement or
pair of arguments is changed, the module is compiled, and the changed function's code object is put into the
function that is loaded. Nothing is imported anew, so the change shows wherever the function is used already.
"""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Div: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_SYMMETRIC = frozenset(
    {"min", "max", "minimum", "maximum", "equal"}
)  # say the same of two values in either order
_DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Assert)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. function: its qualified name; line: where, from 1; text: what the line says; place: the how
    manieth change of the module, from 0; nth: of its line, from 1; which: of those in the function that read
    alike, from 1."""

    module: str
    function: str
    line: int
    text: str
    place: int
    nth: int
    before: str
    after: str
    which: int

    @property
    def spot(self) -> str:
        """Line and number on it, such as `54.1`: names a change of a file that stays as it is."""
        return f"{self.line}.{self.nth}"

    def __str__(self) -> str:
        return f"{self.module}:{self.spot} {self.function}: {self.before}  ->  {self.after}"


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a loaded module, and its functions by qualified name."""

    module: str
    path: str
    tree: ast.Module
    functions: dict[str, types.FunctionType]

    @classmethod
    def of(cls, module: types.ModuleType) -> Source:
        """Reads a module's file, and finds the functions that it defines: its own and those of its classes."""
        path = inspect.getsourcefile(module)
        assert path is not None
        found = {f.__qualname__: f for f in _functions(vars(module).values(), module.__name__)}
        return cls(module.__name__, path, ast.parse(Path(path).read_text(encoding="utf-8"), path), found)

    def mutants(self, driven: frozenset[str]) -> list[Mutant]:
        """All changes in the functions that are named, in the order of the source."""
        lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        on_line: Counter[int] = Counter()
        alike: Counter[tuple[str, ...]] = Counter()
        mutants = []
        for place, change in enumerate(_changes(self.tree)):
            on_line[change.line] += 1
            if change.function in driven:
                text = lines[change.line - 1].strip()
                read = change.function, text, change.before, change.after
                alike[read] += 1
                where = change.line, text, place, on_line[change.line]
                mutants.append(
                    Mutant(self.module, change.function, *where, change.before, change.after, alike[read])
                )
        return mutants

    def apply(self, mutant: Mutant) -> bool:
        """Puts a mutant into its function. False where the change makes no difference to what is executed."""
        tree = copy.deepcopy(self.tree)
        for place, change in enumerate(_changes(tree)):
            if place == mutant.place:
                change.make()
                break
        unchanged = self.functions[mutant.function].__code__
        changed = _code(compile(ast.fix_missing_locations(tree), self.path, "exec"), unchanged)
        if _executed(changed) == _executed(unchanged):
            return False
        # Others may have made a function of the same code: the emulator does of a kernel.
        for function in gc.get_referrers(unchanged):
            if isinstance(function, types.FunctionType):
                function.__code__ = changed
        return True


def _functions(values: Any, module: str) -> Iterator[types.FunctionType]:
    for value in values:
        # A kernel is a function behind `fn`, a property one behind `fget`, a class method one behind `__func__`.
        for inner in (value, *(getattr(value, name, None) for name in ("fn", "fget", "__func__"))):
            if isinstance(inner, types.FunctionType) and inner.__module__ == module:
                yield inner
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions(vars(value).values(), module)


def _code(whole: types.CodeType, wanted: types.CodeType) -> types.CodeType:
    """The code object of the same function in that of its module."""
    for code in _nested(whole):
        if code.co_qualname == wanted.co_qualname and code.co_firstlineno == wanted.co_firstlineno:
            return code
    raise LookupError(
        f"{wanted.co_qualname} is not in the source of {wanted.co_filename}: was it edited since?"
    )


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _executed(code: types.CodeType) -> tuple[Any, ...]:
    """What a code object does, without where it stands in the file."""
    constants = tuple(_executed(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


# -- what can be changed -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Change:
    """A node, what to put in its place, and how both read."""

    function: str
    line: int
    parent: Any
    field: str
    index: int | None
    new: ast.AST
    before: str
    after: str

    def make(self) -> None:
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.index] = self.new


def _changes(tree: ast.Module) -> Iterator[_Change]:
    """Every change in every function, in the order of the source."""
    yield from _in_body(tree, ())


def _in_body(node: ast.AST, scope: tuple[str, ...]) -> Iterator[_Change]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _in_body(child, (*scope, child.name))
        elif isinstance(child, ast.FunctionDef):
            yield from _in_function(child, ".".join((*scope, child.name)))
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _in_body(child, scope)


def _in_function(function: ast.FunctionDef, name: str) -> Iterator[_Change]:
    """Changes in a function's body: not in its decorators, defaults, annotations, docstring or messages."""
    for index, statement in enumerate(function.body):
        if not _is_text(statement):
            yield from _in_statement(function, "body", index, statement, name)


def _in_statement(
    parent: ast.AST, field: str, index: int, statement: ast.stmt, name: str
) -> Iterator[_Change]:
    if isinstance(statement, _DROPPED) and not _is_text(statement):
        # Never executed, and not gone: a function without it may have other variables, and be no mutant of this one.
        never = ast.If(ast.Constant(False), [statement], [])
        yield _Change(name, statement.lineno, parent, field, index, never, _text(statement), "(dropped)")
    if isinstance(statement, ast.Raise | ast.Assert):
        # What an error says is for people; whether it is raised is what counts.
        inner = [("test", statement.test)] if isinstance(statement, ast.Assert) else []
        for where, expression in inner:
            yield from _in_expression(statement, where, None, expression, name)
        return
    if isinstance(statement, ast.If | ast.While) and not _changes_as_condition(statement.test):
        new = ast.UnaryOp(ast.Not(), statement.test)
        yield _Change(name, statement.lineno, statement, "test", None, new, _text(statement.test), _text(new))
    for where, value in ast.iter_fields(statement):
        if where in ("annotation", "decorator_list", "returns"):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.stmt) and at is not None:
                if not _is_text(child):
                    yield from _in_statement(statement, where, at, child, name)
            elif isinstance(child, ast.AST):
                yield from _in_expression(statement, where, at, child, name)


def _in_expression(
    parent: ast.AST, field: str, index: int | None, node: ast.AST, name: str
) -> Iterator[_Change]:
    if isinstance(node, ast.JoinedStr):
        return
    for new in _replacements(node):
        if not isinstance(getattr(node, "ctx", None), ast.Store):
            yield _Change(
                name, getattr(node, "lineno", 0), parent, field, index, new, _text(node), _text(new)
            )
    for where, value in ast.iter_fields(node):
        for at, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST) and not isinstance(
                child, ast.expr_context | ast.operator | ast.cmpop
            ):
                yield from _in_expression(node, where, at, child, name)


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, [op, *rest], comparators) if type(op) in _COMPARISONS:
            yield ast.Compare(left, [_COMPARISONS[type(op)](), *rest], comparators)
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            yield ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Call(function, [first, second, *more], keywords) if (
            ast.dump(first) != ast.dump(second) and _called(function) not in _SYMMETRIC
        ):
            yield ast.Call(function, [second, first, *more], keywords)


def _called(function: ast.expr) -> str:
    """The name of a function or method."""
    return getattr(function, "attr", getattr(function, "id", ""))


def _changes_as_condition(test: ast.expr) -> bool:
    """Whether a condition has a change of its own in `_replacements`."""
    return isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _text(node: ast.AST) -> str:
    words = " ".join(ast.unparse(node).split())
    return words if len(words) <= 90 else words[:87] + "..."
