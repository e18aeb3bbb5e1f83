"""Mutants of a module: copies of its source with one token changed, by the operators of Cosmic Ray."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

_BINARY = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul"),
    *("LShift_RShift", "RShift_LShift", "BitAnd_BitOr", "BitOr_BitAnd"),
)
_COMPARISON = (
    *("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Gt_Lt", "LtE_GtE", "GtE_LtE"),
    *("Is_IsNot", "IsNot_Is"),
)
_OTHERS = (
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "NumberReplacer"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
)
# Only in these nodes are * and / operators: elsewhere they unpack or separate parameters.
_EXPRESSIONS = {"arith_expr", "term", "power", "shift_expr", "and_expr", "xor_expr", "expr"}

_Position = tuple[int, int]
_Span = tuple[_Position, _Position]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One token of a module changed."""

    module: str
    line: int
    was: str  # the line, without indentation and comment
    becomes: str
    code: str  # of the whole module
    in_function: bool

    @property
    def name(self) -> str:
        """The line for lists of results."""
        return f"{self.module}:{self.line}: {self.was} -> {self.becomes}"

    def is_among(self, equivalent: set[tuple[str, str, str]]) -> bool:
        """Whether a list of equivalent mutants contains it, or any change of its line."""
        return any((self.module, self.was, change) in equivalent for change in (self.becomes, "any change"))


class _AugmentedAssignment(Operator):  # type: ignore[misc]
    """+= and -=, *= and /=, |= and &=: Cosmic Ray has no operator for these."""

    _TURNED: ClassVar[dict[str, str]] = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|="}

    def mutation_positions(self, node: Any) -> Iterator[_Span]:
        """The positions where it can be applied."""
        if node.type == "operator" and node.value in self._TURNED:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The node with its operator replaced."""
        node.value = self._TURNED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[object, ...]:
        """None; the base class requires this method."""
        return ()


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a module that can be changed. Finding it is much faster than making the mutant."""

    module: Path
    source_root: Path
    operator: Operator
    occurrence: int
    line: int
    was: str
    in_function: bool

    def mutant(self) -> Mutant:
        """The module with this one token changed."""
        code = mutate_code(self.module.read_text("utf-8"), self.operator, self.occurrence)
        return Mutant(
            module=str(self.module.relative_to(self.source_root)),
            line=self.line,
            was=self.was,
            becomes=_plain(code.splitlines()[self.line - 1]),
            code=code,
            in_function=self.in_function,
        )


def places_in(module: Path, source_root: Path) -> Iterator[Place]:
    """Every place of a module, except where only messages, types and logs would change."""
    source = module.read_text("utf-8")
    lines, tree = source.splitlines(), get_ast(source)
    left_out, bodies = list(_left_out(source)), list(_bodies(source))
    for operator in _operators():
        places = [(node, start) for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)]
        for occurrence, (node, start) in enumerate(places):
            if _lies_in(start, left_out) or not _is_expression(node) or _is_huge(node):
                continue
            yield Place(
                module=module,
                source_root=source_root,
                operator=operator,
                occurrence=occurrence,
                line=start[0],
                was=_plain(lines[start[0] - 1]),
                in_function=_lies_in(start, bodies),
            )


def _operators() -> list[Operator]:
    names = [f"ReplaceBinaryOperator_{change}" for change in _BINARY]
    names += [f"ReplaceComparisonOperator_{change}" for change in _COMPARISON]
    return [*(get_operator(f"core/{name}")() for name in [*names, *_OTHERS]), _AugmentedAssignment()]


def _plain(line: str) -> str:
    """A line without comment and double spaces; Cosmic Ray leaves a space before a number."""
    return re.sub(r"(?<=\S) +", " ", line.partition("  # ")[0].strip())


def _is_expression(node: Any) -> bool:
    if node.type != "operator" or node.value[0] not in "*/+-%|&<>":
        return True
    return node.value in ("<", ">") or node.value.endswith("=") or node.parent.type in _EXPRESSIONS


def _is_huge(node: Any) -> bool:
    """Whether a number is so large that adding one does not change it."""
    return node.type == "number" and (value := float(ast.literal_eval(node.value))) + 1 == value


def _lies_in(position: _Position, spans: list[_Span]) -> bool:
    return any(begin <= position < end for begin, end in spans)


def _left_out(source: str) -> Iterator[_Span]:
    """Annotations, decorators, assertions, messages and logging: no test has to notice a change there.

    Nor has one to notice another dimension of a vector, which has only one.
    """
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr | ast.stmt | ast.keyword | None] = []
        match node:
            case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.keyword(arg="strict"):
                parts = [node]
            case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
                parts = [node]
            case ast.AnnAssign() | ast.arg():
                parts = [node.annotation]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                parts = [node.returns, *node.decorator_list]
            case ast.ClassDef():
                parts = [*node.decorator_list]
            case ast.Call() if re.match(r"_?log(ger)?\.|warnings\.|cast$", ast.unparse(node.func)):
                parts = [node]
            case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=0) as dimension, *_]) if (
                name.startswith("index_")
            ):
                parts = [dimension]
        yield from (_span(part, part) for part in parts if part is not None)


def _bodies(source: str) -> Iterator[_Span]:
    """Where functions have their code: not their defaults, which are computed on import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _span(node.body[0], node.body[-1])


def _span(first: ast.expr | ast.stmt | ast.keyword, last: ast.expr | ast.stmt | ast.keyword) -> _Span:
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    return (first.lineno, first.col_offset), (last.end_lineno, last.end_col_offset)
