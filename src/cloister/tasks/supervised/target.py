"""What every supervised task says of its columns: which is the target, and what classes weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from cloister.core.declared import Hint, Positive, Range
from cloister.core.errors import PlanError

Features = Annotated[int, Range(2), Hint("a model needs a column besides the target")]
"""Number of columns, the target among them."""
ClassWeight = Annotated[
    Literal["balanced"] | Mapping[Any, Positive] | tuple[Positive, ...] | None,
    "'balanced', or a weight for each class",
]


def check_columns(n_features: int, target: int, **of_columns: Sequence[Any]) -> None:
    """Refuse a plan whose fields do not have one entry for each column, the target among them."""
    if not 0 <= target < n_features or any(len(v) != n_features for v in of_columns.values()):
        raise PlanError(
            f"{', '.join(of_columns)} must have an entry for each of {n_features} columns, and "
            f"target must be one of these columns, got column {target}."
        )


def check_classes(classes: Sequence[str], levels: int, most: int | None = None) -> None:
    """Refuse classes that are not all the categories of the target, of which there are `levels`."""
    if not 2 <= len(classes) == levels or (most and len(classes) > most):
        number = f"2 to {most}" if most else "2 or more"
        raise PlanError(
            f"classes must be the categories of the target, {number}, got {len(classes)}; join "
            "rare ones in the schema."
        )


def check_number(levels: int) -> None:
    """Refuse a target of a regression that holds categories."""
    if levels:
        raise PlanError(
            "target must be a column of numbers, got one of categories; train a classifier."
        )


def weights_of(given: ClassWeight, classes: Sequence[str]) -> tuple[float, ...]:
    """Return one weight for each class; none for "balanced", and where none are given."""
    if given is None or isinstance(given, str):
        return ()
    if isinstance(given, Mapping):
        by_label = {str(label): weight for label, weight in given.items()}
        if unknown := sorted(by_label.keys() - set(classes)):
            raise PlanError(
                f"class_weight must name classes of {tuple(classes)}, got {unknown[0]!r}."
            )
        given = tuple(by_label.get(label, 1.0) for label in classes)
    return tuple(float(weight) for weight in given)


def check_weights(weights: Sequence[float], classes: Sequence[str]) -> None:
    """Refuse weights that are not one for each class."""
    if weights and len(weights) != len(classes):
        raise PlanError(
            f"class_weight must be {len(classes)} numbers > 0, one for each class, got "
            f"{list(weights)}."
        )
