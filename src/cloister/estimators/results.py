"""How a release is looked at in Python: in a notebook, as a page, a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.derived import displays_of
from cloister.core.display import Display

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class ReleaseMixin:
    """What has a released `result_`, once it is fitted, and shows it; all local, and free."""

    result_: Release

    def displays(self) -> tuple[Display, ...]:
        """Return the tables and pictures of a report."""
        result = self._released()
        return displays_of(result.plan.task, result.results, result.plan.columns)

    def report(self, path: str | Path) -> None:
        """Write what was released, what it cost and who saw what as one HTML file."""
        from cloister.app.report.page import write_report

        write_report(self._released(), path)

    def to_frame(self) -> pd.DataFrame:
        """Return the released numbers: value, low and high of the 95 % interval of the noise.

        The index says of which table, row and column a number is. There are `population_low` and
        `population_high` where an interval includes sampling.
        """
        from cloister.app.report.notebook import release_frame

        return release_frame(self.displays())

    def plot(self, title: str | None = None) -> Axes:
        """Draw the released numbers.

        Parameters
        ----------
        title : str, optional
            Of one of :meth:`displays`; the first picture by default.

        Returns
        -------
        matplotlib.axes.Axes
            ``.figure.savefig`` writes a file.
        """
        from cloister.app.report.notebook import release_axes

        return release_axes(self.displays(), title)

    def _released(self) -> Release:
        if not hasattr(self, "result_"):
            check_is_fitted(self, "result_")
        return self.result_

    def _repr_html_(self) -> str | None:
        """Show what was released; before the fit, scikit-learn's box of parameters."""
        if not hasattr(self, "result_"):
            box = getattr(super(), "_repr_html_", None)
            return box() if box else None
        from cloister.app.report.notebook import release_html

        return release_html(type(self).__name__, self.result_)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        html = self._repr_html_()
        return {"text/plain": repr(self)} | ({"text/html": html} if html else {})
