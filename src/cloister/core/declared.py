"""Dataclasses whose fields declare type, range and help text.

They are the options of tasks and the public numbers of plans. A field declares all three once, in
its annotation. Constructors, plan files, lists of options and command lines use this declaration.

Examples
--------
>>> @declared
... class Options:
...     n_bins: Annotated[int, Range(1), "equal parts of the column's range"] = 10
>>> Options(n_bins=0)
Traceback (most recent call last):
cloister.core.errors.PlanError: n_bins must be an integer >= 1, got 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from cloister.core.errors import PlanError

_LARGEST = sys.float_info.max
_LONGEST = 200  # most letters of a value in a message
_Class = TypeVar("_Class", bound=type)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"  # "g" would round 1048576


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, above `above` and below `below`; finite by default."""

    least: float = -_LARGEST
    most: float = _LARGEST
    above: float = -_LARGEST
    below: float = _LARGEST

    def holds(self, value: float) -> bool:
        """Return True if a number is in the range; NaN is not."""
        # Open ends at the largest float are no bounds, and must admit that float.
        high_enough = value > self.above or self.above == -_LARGEST
        low_enough = value < self.below or self.below == _LARGEST
        return self.least <= value <= self.most and high_enough and low_enough

    def __str__(self) -> str:
        low = max(self.least, self.above)
        high = min(self.most, self.below)
        starts = "(" if self.above > -_LARGEST else "["
        ends = ")" if self.below < _LARGEST else "]"
        if low == -_LARGEST:
            return "" if high == _LARGEST else f" {'<' if ends == ')' else '<='} {_number(high)}"
        if high >= _LARGEST:
            return f" {'>' if starts == '(' else '>='} {_number(low)}"
        return f" in {starts}{_number(low)}, {_number(high)}{ends}"


@dataclass(frozen=True)
class Length:
    """Bounds on the length of a sequence."""

    least: int
    most: int | None = None

    def holds(self, value: Sequence[Any]) -> bool:
        """Return True if the length of a sequence is within the bounds."""
        return self.least <= len(value) <= (self.most or len(value))

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Rule:
    """A further rule: its text in a message, after the type, and its test."""

    text: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Hint:
    """A remedy that is added to the message about a refused value."""

    text: str


Whole = Annotated[int, Range(1)]
"""An integer of at least 1."""
Positive = Annotated[float, Range(above=0)]
"""A finite number above 0."""
AtLeastZero = Annotated[float, Range(0)]
"""A finite number, 0 or more."""
Share = Annotated[float, Range(above=0, most=1)]
"""A share above 0 and at most 1."""
PartBelowOne = Annotated[float, Range(0, below=1)]
"""A share from 0 to below 1."""
Probability = Annotated[float, Range(above=0, below=1)]
"""A probability that is neither 0 nor 1."""
Ascending = Rule("the lower first", lambda parts: all(a < b for a, b in pairwise(parts)))
"""Numbers in strictly ascending order."""


@dataclass(frozen=True)
class Declaration:
    """Declaration of a field: its annotation is the kind; `default` is MISSING if required."""

    name: str
    kind: Any
    default: Any = MISSING

    @property
    def required(self) -> bool:
        """True if the field has no default."""
        return self.default is MISSING

    @property
    def rule(self) -> str:
        """The allowed values, as in a message."""
        return _text(self.kind)

    @property
    def help(self) -> str:
        """The help text of the field."""
        return next((part for part in _notes(self.kind) if isinstance(part, str)), "")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def declared(cls: _Class) -> _Class:
    """Return a frozen dataclass with keyword fields that raises for values its fields forbid.

    Lists become tuples, so that equal values are equal. The rules of single fields are checked
    first; ``__post_init__`` is for rules between fields.
    """
    rules_between_fields = getattr(cls, "__post_init__", None)

    def check(self: Any) -> None:
        for declaration in declarations(type(self)):  # type: ignore[arg-type]  # classes are hashable
            value = as_tuples(getattr(self, declaration.name))
            validate(declaration, value)
            # The class is frozen, so its own assignment would raise.
            object.__setattr__(self, declaration.name, value)
        if rules_between_fields is not None:
            rules_between_fields(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]  # the hook of dataclasses
    dataclass(frozen=True, kw_only=True)(cls)  # in place
    return cls


@cache
def declarations(kind: Any) -> tuple[Declaration, ...]:
    """Return the declarations of the fields of a dataclass."""
    # Cached, since evaluating annotations is slow and each value of a plan is checked.
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        Declaration(
            field.name,
            hints[field.name],
            field.default if field.default_factory is MISSING else field.default_factory(),
        )
        for field in fields(kind)
    )


def validate(one: Declaration, value: Any) -> None:
    """Raise a PlanError if a value violates its declaration."""
    if not _fits(value, one.kind):
        shown = repr(value)
        # A long list, such as of centres, would hide the rule.
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
        hints = "".join(f"; {part.text}" for part in _notes(one.kind) if isinstance(part, Hint))
        raise PlanError(f"{one.name} must be {one.rule}, got {shown}{hints}.")


def as_tuples(value: Any) -> Any:
    """Return a value with its lists, at any depth, as tuples."""
    if isinstance(value, list | tuple):
        parts = tuple(as_tuples(part) for part in value)
        return value if isinstance(value, tuple) and parts == value else parts
    return value


def _notes(kind: Any) -> tuple[Any, ...]:
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def _fits(value: Any, kind: Any, within: tuple[Range, ...] = ()) -> bool:
    """Return True if a value has a kind. A kind that is not checked here admits every value."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        ranges = tuple(part for part in parts[1:] if isinstance(part, Range))
        further = [part for part in parts[1:] if isinstance(part, Length | Rule)]
        fits = _fits(value, parts[0], (*within, *ranges))
        return fits and all(rule.holds(value) for rule in further)
    if origin in (Union, UnionType):
        return any(_fits(value, part, within) for part in parts)
    if origin is Literal:
        # The type too, since True == 1 and 1.0 == 1.
        return any(type(value) is type(part) and value == part for part in parts)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else int | float)
        # Without a range a number must still be finite.
        inside = all(bounds.holds(value) for bounds in within or (Range(),)) if number else False
        return inside and not isinstance(value, bool)  # a bool is an int in Python
    if kind in (bool, str, NoneType):
        return isinstance(value, kind)
    if origin is tuple and parts[1:] != (...,):
        same = isinstance(value, tuple) and len(value) == len(parts)
        return same and all(map(_fits, value, parts))
    if origin in (tuple, Sequence):
        # A text is a sequence of letters, and each letter a text again.
        row = isinstance(value, Sequence) and not isinstance(value, str)
        return row and all(_fits(part, parts[0]) for part in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, parts[0]) and _fits(part, parts[1]) for key, part in value.items()
        )
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


_PLAIN: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "text",
    NoneType: "None",
    Any: "anything",
}


def _text(kind: Any, whole: bool = True) -> str:
    """Return the text of a kind; for a number with a range, if `whole`, the range alone."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        ranges = "".join(str(part) for part in parts[1:] if isinstance(part, Range))
        rules = "".join(f", {part.text}" for part in parts[1:] if isinstance(part, Rule))
        if whole and ranges and parts[0] is float:
            return ranges.lstrip() + rules
        text = _text(parts[0], whole) + ranges + rules
        for length in (part for part in parts[1:] if isinstance(part, Length)):
            text = text.replace("a sequence", f"a sequence of {length}", 1)
        return text
    if origin in (Union, UnionType):
        return " or ".join(_text(part, whole) for part in parts)
    if origin is Literal:
        return f"one of {parts}" if len(parts) > 1 else repr(parts[0])
    if origin is tuple and parts[1:] != (...,):
        return f"({', '.join(_text(part, False) for part in parts)})"
    if origin in (tuple, Sequence):
        return f"a sequence, each {_text(parts[0], False)}"
    if origin is Mapping:
        return f"a mapping to {_text(parts[1], False)}"
    return _PLAIN.get(kind, f"a {getattr(kind, '__name__', kind)}")
