"""Read TVMScript that this package writes, many times as fast as TVM's parser.

TVM's parser compiles each part of each expression as a program of Python. This one walks the same
syntax tree and makes the same calls of TVM's builder, for the statements and expressions that
generated kernels have; texts with any other are left to TVM's parser. Tests compare the results of
both.
"""
# pyright: basic

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from cpembed.errors import InvariantError

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.inv,
}
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)

_LOOPS = frozenset({"serial", "parallel", "vectorized", "unroll", "grid"})
"""Functions of TVMScript that open loops."""

_DEFINING = frozenset({"alloc_buffer", "sblock_alloc_buffer", "match_buffer", "axis"})
"""Functions of TVMScript, and the group of functions, whose results an assignment names."""

# Slices elsewhere are vectors, whose step TVM's parser makes 1.
_REGIONS = frozenset({"reads", "writes", "match_buffer"})
"""Functions of TVMScript whose slices are regions of buffers."""


class UnreadableError(InvariantError):
    """Syntax that generated kernels do not have."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__(f"the text of a kernel has {ast.unparse(node)!r}, which has no reader")


def read_script(text: str) -> Any:
    """Return the TensorIR function of a text, by TVM's parser if this reader cannot read it."""
    try:
        return read_function(text)
    except UnreadableError:
        return _tvm().module.script.from_source(text)


def read_function(text: str, functions: Mapping[str, Any] | None = None) -> Any:
    """Return the TensorIR function of a text, as TVM's parser does.

    Parameters
    ----------
    text : str
        TVMScript of one function.
    functions : mapping of str to callable, optional
        Functions that the text calls as those of a ``Module``; each returns its call.

    Raises
    ------
    UnreadableError
        If the text has other statements or expressions than those of generated kernels.
    """
    tree = ast.parse(text)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise UnreadableError(tree)
    parts = _tvm()
    with parts.IRBuilder() as builder:
        _Reader(parts, functions or {}).function(tree.body[0])
    function = builder.get()
    if not functions:
        parts.module.s_tir.analysis.verify_well_formed(parts.module.IRModule.from_expr(function))
    return function


@cache
def _tvm() -> Any:
    """Return the names of TVM that scripts use; TVM is imported on first use."""
    from cpembed.codegen import runtime

    module = runtime.tvm()
    from tvm.script.ir_builder.base import IRBuilder, IRBuilderFrame
    from tvm.script.parser import tirx as script
    from tvm.script.parser.core import doc
    from tvm.script.parser.core.evaluator import _eval_op
    from tvm.tirx.script import builder

    import_module("tvm.s_tir")
    # Relax's parser replaces operators of TensorIR's by those that cast one factor.
    import_module("tvm.script.parser.relax")

    # What the parser's operators are for expressions, and what Python's are for numbers.
    operators = {
        each: getattr(doc, each.__name__)() for each in (*_COMPARISONS, ast.And, ast.Or, ast.Not)
    }
    return SimpleNamespace(
        module=module,
        script=script,
        builder=builder,
        IRBuilder=IRBuilder,
        frame=IRBuilderFrame,
        apply=lambda kind, *values: _eval_op(operators[kind], values=list(values)),
    )


class _Reader:
    """Walk over a syntax tree that calls TVM's builder."""

    def __init__(self, tvm: Any, functions: Mapping[str, Any]) -> None:
        self._tvm, self._builder = tvm, tvm.builder
        self._names: dict[str, Any] = {"T": tvm.script, "Module": SimpleNamespace(**functions)}

    # ---------------------------------------------------------------------------------- statements

    def function(self, node: ast.FunctionDef) -> None:
        """Build a function with its parameters."""
        if len(node.decorator_list) != 1 or node.returns is not None:
            raise UnreadableError(node)
        (decorator,) = node.decorator_list
        if not isinstance(decorator, ast.Call) or decorator.args:
            raise UnreadableError(node)
        if ast.unparse(decorator.func) != "T.prim_func":
            raise UnreadableError(node)
        flags = {each.arg: ast.literal_eval(each.value) for each in decorator.keywords}
        if not flags.keys() <= {"private", "s_tir"}:
            raise UnreadableError(node)
        builder = self._builder
        with builder.prim_func(flags.get("private", False), flags.get("s_tir", False), False):
            builder.func_name(node.name)
            for argument in node.args.args:
                if argument.annotation is None:
                    raise UnreadableError(argument)
                annotation = self.value(argument.annotation)
                # A type alone, such as `T.handle`, stands for a parameter of it.
                if callable(annotation) and not isinstance(annotation, self._tvm.module.ir.Expr):
                    annotation = annotation()
                self._names[argument.arg] = builder.arg(argument.arg, annotation)
            self._body(node.body)

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            read = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if read is None:
                raise UnreadableError(statement)
            read(statement)

    @contextmanager
    def _scope(self) -> Generator[None]:
        """Open a scope, whose names end with it."""
        outer, self._names = self._names, dict(self._names)
        yield
        self._names = outer

    def _for(self, node: ast.For) -> None:
        opened = _function_of(node.iter)
        if opened not in _LOOPS or node.orelse:
            raise UnreadableError(node.iter)
        with self._scope(), self.value(node.iter) as variables:
            self._define(node.target, variables)
            self._body(node.body)

    def _with(self, node: ast.With) -> None:
        if len(node.items) != 1 or node.items[0].optional_vars is not None:
            raise UnreadableError(node.items[0])
        with self._scope(), self.value(node.items[0].context_expr):
            self._body(node.body)

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            raise UnreadableError(node)
        with self._scope(), self._builder.While(self.value(node.test)):
            self._body(node.body)

    def _if(self, node: ast.If) -> None:
        condition = self.value(node.test)
        if isinstance(condition, bool):
            self._body(node.body if condition else node.orelse)
            return
        builder = self._builder
        with builder.If(condition):
            with builder.Then(), self._scope():
                self._body(node.body)
            if node.orelse:
                with builder.Else(), self._scope():
                    self._body(node.orelse)

    def _assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        if isinstance(target, ast.Subscript):
            value = self._with_step(node.value)
            index = target.slice
            indices = (
                [*map(self.value, index.elts)]
                if isinstance(index, ast.Tuple)
                else self.value(index)
            )
            self._builder.buffer_store(self.value(target.value), value, indices)
            return
        # A type without a value is a variable of it, such as the size of a parameter.
        is_variable = isinstance(node.value, ast.Call) and not node.value.args
        if _function_of(node.value) not in _DEFINING and not is_variable:
            raise UnreadableError(node)
        self._define(target, self.value(node.value))

    def _annassign(self, node: ast.AnnAssign) -> None:
        is_let = ast.unparse(node.annotation) == "T.let" and isinstance(node.target, ast.Name)
        if not is_let or node.value is None:
            raise UnreadableError(node)
        value, module = self.value(node.value), self._tvm.module
        if isinstance(value, str | list | tuple):
            raise UnreadableError(node)
        value = value if isinstance(value, module.ir.Expr) else module.tirx.const(value)
        variable = self._builder.LetAnnotation().as_var(rhs_dtype=value.ty)
        self._define(node.target, variable)
        self._builder.Bind(value, var=variable)

    def _expr(self, node: ast.Expr) -> None:
        value, ir = self.value(node.value), self._tvm.module.ir
        if value is None or isinstance(value, str | ir.Var):
            return
        if isinstance(value, int):
            value = self._tvm.module.tirx.const(value)
        elif not ir.is_prim_expr(value) and not isinstance(value, ir.Call):
            raise UnreadableError(node)
        self._builder.evaluate(value)

    def _pass(self, _: ast.Pass) -> None:
        """Do nothing."""

    def _define(self, target: ast.expr, value: Any) -> None:
        """Bind the names that a statement defines to its values."""
        if isinstance(target, ast.Tuple):
            for each, part in zip(target.elts, value, strict=True):
                self._define(each, part)
            return
        if not isinstance(target, ast.Name) or isinstance(value, self._tvm.frame):
            raise UnreadableError(target)
        self._tvm.IRBuilder.name(target.id, value)
        self._names[target.id] = value

    # --------------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        read = _EXPRESSIONS.get(type(node))
        if read is None:
            raise UnreadableError(node)
        return read(self, node)

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self._names:
            raise UnreadableError(node)
        return self._names[node.id]

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _attribute(self, node: ast.Attribute) -> Any:
        return getattr(self.value(node.value), node.attr)

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self._with_step(node.left), self._with_step(node.right)
        if type(node.op) not in _BINARY:
            raise UnreadableError(node)
        return _BINARY[type(node.op)](left, right)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        operand = self._with_step(node.operand)
        if isinstance(node.op, ast.Not):
            return self._tvm.apply(ast.Not, operand)
        return _UNARY[type(node.op)](operand)

    def _compare(self, node: ast.Compare) -> Any:
        values = [*map(self._with_step, (node.left, *node.comparators))]
        result = None
        for kind, left, right in zip(node.ops, values, values[1:], strict=False):
            if not isinstance(kind, _COMPARISONS):
                raise UnreadableError(node)
            holds = self._tvm.apply(type(kind), left, right)
            result = holds if result is None else self._tvm.apply(ast.And, result, holds)
        return result

    def _boolop(self, node: ast.BoolOp) -> Any:
        value = self.value(node.values[0])
        for further in node.values[1:]:
            # A constant that decides is the value, and the rest is not read.
            if isinstance(value, bool) and value == isinstance(node.op, ast.Or):
                return value
            value = self._tvm.apply(type(node.op), value, self.value(further))
        return value

    def _call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        attribute = node.func.attr if isinstance(node.func, ast.Attribute) else None
        read = self.value if attribute in (None, *_REGIONS) else self._with_step
        keywords = {each.arg: self.value(each.value) for each in node.keywords if each.arg}
        if len(keywords) != len(node.keywords):
            raise UnreadableError(node)
        return function(*map(read, node.args), **keywords)

    def _subscript(self, node: ast.Subscript, step: int | None = None) -> Any:
        index = node.slice
        if isinstance(index, ast.Tuple):
            return self.value(node.value)[tuple(self._index(each, step) for each in index.elts)]
        return self.value(node.value)[self._index(index, step)]

    def _index(self, node: ast.expr, step: int | None) -> Any:
        if not isinstance(node, ast.Slice):
            return self.value(node)
        lower, upper, increment = (
            None if each is None else self.value(each)
            for each in (node.lower, node.upper, node.step)
        )
        is_open = node.lower is None or node.upper is None
        return slice(lower, upper, step if increment is None and not is_open else increment)

    def _slice(self, node: ast.Slice) -> Any:
        return self._index(node, None)

    def _with_step(self, node: ast.expr) -> Any:
        """Return the value of an operand, whose slices are vectors."""
        return self._subscript(node, 1) if isinstance(node, ast.Subscript) else self.value(node)

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(map(self.value, node.elts))

    def _list(self, node: ast.List) -> Any:
        return [*map(self.value, node.elts)]

    def _dict(self, node: ast.Dict) -> Any:
        entries: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise UnreadableError(node)
            entries[self.value(key)] = self.value(value)
        return entries


_EXPRESSIONS: dict[type[ast.expr], Callable[[_Reader, Any], Any]] = {
    ast.Name: _Reader._name,
    ast.Constant: _Reader._constant,
    ast.Attribute: _Reader._attribute,
    ast.BinOp: _Reader._binop,
    ast.UnaryOp: _Reader._unaryop,
    ast.Compare: _Reader._compare,
    ast.BoolOp: _Reader._boolop,
    ast.Call: _Reader._call,
    ast.Subscript: _Reader._subscript,
    ast.Slice: _Reader._slice,
    ast.Tuple: _Reader._tuple,
    ast.List: _Reader._list,
    ast.Dict: _Reader._dict,
}


def _function_of(node: ast.expr) -> str | None:
    """Return the name of a function of TVMScript that an expression calls, or that of its group."""
    function = node.func if isinstance(node, ast.Call) else None
    while isinstance(function, ast.Attribute):
        if isinstance(function.value, ast.Name):
            return function.attr if function.value.id == "T" else None
        function = function.value
    return None
