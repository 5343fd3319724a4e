"""Target column and class weights of supervised tasks, and checks of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from cloister.core.declared import Hint, Positive, Range
from cloister.core.errors import PlanError

Features = Annotated[int, Range(2), Hint("a model needs a column other than the target")]
"""Number of columns, the target among them."""
ClassWeight = Annotated[
    Literal["balanced"] | Mapping[Any, Positive] | tuple[Positive, ...] | None,
    "'balanced', or a weight for each class",
]


def check_columns(n_features: int, target: int, **of_columns: Sequence[Any]) -> None:
    """Raise PlanError unless fields have an entry for each column, and the target is a column."""
    if not 0 <= target < n_features or any(len(v) != n_features for v in of_columns.values()):
        raise PlanError(
            f"{', '.join(of_columns)} must have an entry for each of {n_features} columns, and "
            f"target must be one of these columns, got column {target}; design the task again."
        )


def check_classes(classes: Sequence[str], levels: int, most: int | None = None) -> None:
    """Raise PlanError unless classes are all `levels` categories of the target, two or more."""
    if not 2 <= len(classes) == levels or (most and len(classes) > most):
        number = f"2 to {most}" if most else "2 or more"
        raise PlanError(
            f"classes must be the categories of the target, {number}, got {len(classes)}; join "
            "rare ones in the schema."
        )


def check_number(levels: int) -> None:
    """Raise PlanError if the target of a regression has categories."""
    if levels:
        raise PlanError(
            "target must be a numeric column, got a column of categories; train a classifier."
        )


def weights_of(given: ClassWeight, classes: Sequence[str]) -> tuple[float, ...]:
    """Return one weight for each class; empty for "balanced" and for None."""
    # Balanced weights follow from noisy class sizes, which are not known yet.
    if given is None or isinstance(given, str):
        return ()
    if isinstance(given, Mapping):
        # Labels may be numbers or booleans; categories of a schema are strings.
        by_label = {str(label): weight for label, weight in given.items()}
        if unknown := sorted(by_label.keys() - set(classes)):
            raise PlanError(
                f"class_weight must name classes of {tuple(classes)}, got {unknown[0]!r}."
            )
        given = tuple(by_label.get(label, 1.0) for label in classes)
    return tuple(float(weight) for weight in given)


def check_weights(weights: Sequence[float], classes: Sequence[str]) -> None:
    """Raise PlanError unless there is one weight for each class, or none at all."""
    if weights and len(weights) != len(classes):
        raise PlanError(
            f"class_weight must be {len(classes)} numbers > 0, one for each class, got "
            f"{list(weights)}."
        )
