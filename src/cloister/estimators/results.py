"""Displays of a release in Python: in a notebook, as a page, a table and a chart."""

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
    """Methods that show the release `result_` of a fitted object; local, at no cost."""

    result_: Release

    def displays(self) -> tuple[Display, ...]:
        """Return the tables and charts of a report."""
        result = self._released()
        return displays_of(result.plan.task, result.results, result.plan.columns)

    def report(self, path: str | Path) -> None:
        """Write the release, its cost and the trust model as one HTML file."""
        # Imported on use, because reports need packages that a fit does not.
        from cloister.app.report.page import write_report

        write_report(self._released(), path)

    def to_frame(self, title: str | None = None) -> pd.DataFrame:
        """Return the released numbers: value, low and high of the 95 % interval of the noise.

        The index names the table, row and column of a number. The columns `population_low` and
        `population_high` exist if an interval includes sampling, and the column `mark` if a row of
        a report has one, such as "far values, interval not valid".

        Parameters
        ----------
        title : str, optional
            Title of one of :meth:`displays`. The frame is then this table of a report: it has the
            same rows and columns, and its cells are texts.
        """
        from cloister.app.report.notebook import release_frame, table_frame

        displays = self.displays()
        return release_frame(displays) if title is None else table_frame(displays, title)

    def plot(self, title: str | None = None) -> Axes:
        """Draw the released numbers.

        Parameters
        ----------
        title : str, optional
            Title of one of :meth:`displays`; by default that of the first chart.

        Returns
        -------
        matplotlib.axes.Axes
            ``.figure.savefig`` writes a file.
        """
        from cloister.app.report.notebook import release_axes

        return release_axes(self.displays(), title)

    def _released(self) -> Release:
        # check_is_fitted fails for a class that is no estimator, so it only raises the error.
        if not hasattr(self, "result_"):
            check_is_fitted(self, "result_")
        return self.result_

    def _repr_html_(self) -> str | None:
        """Return the release as HTML; before a fit, scikit-learn's box of parameters."""
        if not hasattr(self, "result_"):
            box = getattr(super(), "_repr_html_", None)
            return box() if box else None
        from cloister.app.report.notebook import release_html

        return release_html(type(self).__name__, self.result_)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        html = self._repr_html_()
        return {"text/plain": repr(self)} | ({"text/html": html} if html else {})
