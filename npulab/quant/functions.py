"""Rules grouped by the function that they compute, whatever their names.

Two rules compute one function if their arithmetic is the same and only their names differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from npulab.quant.rules import DoubleRounding, Float, Float32Bits, Half, Hybrid, Mantissa, Rule

Item = TypeVar("Item")


class Function(NamedTuple):
    """The function that a rule computes: its ``kind`` (the name of the rule's class) and the
    parameters that affect outputs. Equal functions give equal outputs.
    """

    kind: str
    parameters: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        parameters = ", ".join(f"{name} {value}" for name, value in self.parameters)
        return f"{self.kind} with {parameters}"


def functions(rules: Iterable[Rule], zero_point: int | None = None) -> list[tuple[list[Rule], str]]:
    """Return groups of rules that compute the same function, each as (rules, reason).

    If ``zero_point`` is given, rules also belong to one group if their outputs differ only with
    other zero points of the output.

    >>> from npulab.quant.rules import rule
    >>> [len(same) for same, reason in functions([rule("qnnpack-q31"), rule("gemmlowp:S"), rule("gemmlowp")])]
    [2, 1]
    """  # noqa: E501
    return by_function(rules, function_of, zero_point)


def by_function(
    items: Iterable[Item],
    computed: Callable[[Item, int | None], Function],
    zero_point: int | None,
) -> list[tuple[list[Item], str]]:
    """Return groups of items for which ``computed(item, zero_point)`` is the same function, each as
    (items, reason).
    """
    groups: dict[Function, list[Item]] = {}
    for item in items:
        groups.setdefault(computed(item, zero_point), []).append(item)
    reasoned = []
    for function, same in groups.items():
        reason = f"one function: {function}"
        if len({computed(item, None) for item in same}) > 1:
            reason += f", the zero point being {zero_point}"
        reasoned.append((same, reason))
    return reasoned


def function_of(by: Rule, zero_point: int | None) -> Function:
    """Return the function that a rule computes with a zero point of the output; None stands for any
    zero point.
    """
    kind = type(by)
    parameters = {field.name: getattr(by, field.name) for field in fields(by)}
    del parameters["name"]
    # the width of a register changes outputs only if the register wraps; any other register refuses
    # accumulators that it cannot hold
    if not by.wraps:
        del parameters["register"]
    # ``DoubleRounding`` rounds the ratio to 31 bits, and so keeps all 24 bits of a float32 ratio,
    # as ``Float32Bits`` does
    if kind is Float32Bits:
        kind = DoubleRounding
    if isinstance(by, Float) and kind is Float and by.zero_point_first:
        parameters["ties"] = "half-even"
        parameters["zero_point_first"] = zero_point != 0
    # "S" rounds the ratio to float32. Rules of these classes do so in any order, so that the
    # orders "S" and "P" give the same multiplier.
    if kind in (Float, Half, Hybrid, Mantissa) and by.order == "P":
        parameters["order"] = "S"
    return Function(kind.__name__, tuple(parameters.items()))
