"""Makes a parsed template pay for its work: wraps what costs into filters that no template can name.

A loop pays for its turns; a list, a joined text and what is printed into a variable pay for what they are. What is
printed straight into the rendered text is counted there, so the usual `{{ a + b + c }}` costs nothing more.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes, pass_context
from jinja2.visitor import NodeTransformer

from operators.template_work import FEW, LINEAR, SHORT, Work

COUNTED, MADE, PRINTED, READ = "(counted)", "(made)", "(printed)", "(read)"
MOST_PARTS = 32
"""Parts of an expression that are joined before their length is looked at."""
JOINS = (nodes.Add, nodes.Concat)


def metering_filters(work: Work) -> dict[str, Any]:
    """The filters that `meter` puts into a template. What is usual and cheap takes the first lines of each."""

    @pass_context  # what asks for the context is never computed while the template compiles
    def counted(_: object, items: Any, price: int) -> Any:
        if items.__class__ is list and len(items) <= FEW:
            work.left -= price * len(items)
            if work.left < 0:
                work.pay(0)
            return items
        return work.counted(items, price)

    def made(value: Any) -> Any:
        if value.__class__ is str and len(value) <= SHORT:
            return value
        return work.made(value)

    def read(value: Any) -> Any:
        if value.__class__ is str and len(value) <= SHORT:
            return value
        if value.__class__ is list and len(value) <= FEW:
            return value
        return work.read(value)

    def printed(value: Any) -> Any:
        work.pay(1)
        return work.made(value)

    return {COUNTED: counted, MADE: made, PRINTED: printed, READ: read}


def price_of(body: list[nodes.Node]) -> int:
    """Steps of a turn through `body`: what it prints, and how many expressions it has."""
    text = sum(len(data.data) for part in body for data in part.find_all(nodes.TemplateData))
    expressions = sum(1 for part in body for _ in part.find_all(nodes.Expr))
    return 1 + (text >> 4) + (expressions >> 4)


def meter(template: nodes.Template) -> nodes.Template:
    """`template`, changed in place."""
    metered: nodes.Template = _Metering().visit(template)
    return metered


class _Metering(NodeTransformer):
    """Visits the tree from its root; `_captured` where what is printed goes into a variable."""

    def __init__(self) -> None:
        self._captured = False

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named by Jinja
        price = price_of(node.body)
        self._inside(node, captured=self._captured or node.recursive)
        node.iter = _filtered(COUNTED, node.iter, nodes.Const(price))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._inside(node, captured=True)

    visit_CallBlock = visit_FilterBlock = visit_Macro  # noqa: N815

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self._inside(node, captured=True)
        made = nodes.Filter(None, MADE, [], [], None, None, lineno=node.lineno)
        if node.filter is None:
            node.filter = made
        else:
            first = node.filter
            while isinstance(first.node, nodes.Filter):
                first = first.node
            first.node = made
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        for i, child in enumerate(node.nodes):
            if not isinstance(child, nodes.TemplateData):
                printed: nodes.Expr = self._joined(child)[0] if isinstance(child, JOINS) else self.visit(child)
                node.nodes[i] = _filtered(PRINTED, printed) if self._captured else printed
        return node

    def visit_Add(self, node: nodes.Expr) -> nodes.Node:  # noqa: N802
        return _filtered(MADE, self._joined(node)[0])

    visit_Concat = visit_Add  # noqa: N815

    def visit_List(self, node: nodes.Expr) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(MADE, node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(MADE, node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(READ, node.node)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.name in LINEAR and node.node is not None:
            node.node = _filtered(READ, node.node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        cheap = len(node.ops) == 1 and _is_cheap(node.expr, node.ops[0])
        self.generic_visit(node)
        if not cheap:
            node.expr = _filtered(MADE, node.expr)
            for operand in node.ops:
                operand.expr = _filtered(MADE, operand.expr)
        return node

    def _inside(self, node: nodes.Node, *, captured: bool) -> nodes.Node:
        before, self._captured = self._captured, captured
        self.generic_visit(node)
        self._captured = before
        return node

    def _joined(self, node: nodes.Expr) -> tuple[nodes.Expr, int]:
        """An expression of + and ~, and how many of its parts were not looked at; more than MOST_PARTS are."""
        if isinstance(node, nodes.Add):
            node.left, left = self._joined(node.left)
            node.right, right = self._joined(node.right)
            if left + right > MOST_PARTS:
                node.left, left = _filtered(MADE, node.left), 1
            if left + right > MOST_PARTS:
                node.right, right = _filtered(MADE, node.right), 1
            return node, left + right
        if isinstance(node, nodes.Concat):
            parts = [self._joined(part) for part in node.nodes]
            total = sum(count for _, count in parts)
            node.nodes = [part for part, _ in parts]
            if total > MOST_PARTS:
                node.nodes, total = _grouped([_filtered(MADE, p) if n > 1 else p for p, n in parts])
            return node, total
        return self.visit(node), 1


def _grouped(parts: list[nodes.Expr]) -> tuple[list[nodes.Expr], int]:
    """The parts of a long ~, joined in groups until at most MOST_PARTS are left."""
    while len(parts) > MOST_PARTS:
        groups = [parts[i : i + MOST_PARTS] for i in range(0, len(parts), MOST_PARTS)]
        parts = [_filtered(MADE, nodes.Concat(group, lineno=group[0].lineno)) for group in groups]
    return parts, len(parts)


def _is_cheap(left: nodes.Expr, operand: nodes.Operand) -> bool:
    """Whether the comparison looks at few items: one side is written out, and nothing is searched."""
    searched = operand.op in ("in", "notin")
    return _is_written_out(operand.expr) or (not searched and _is_written_out(left))


def _is_written_out(node: nodes.Node) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_written_out, node.items))
    return isinstance(node, nodes.Const | nodes.TemplateData)


def _filtered(name: str, node: nodes.Node, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
