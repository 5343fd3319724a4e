"""Pages from the templates in this folder; values are escaped unless marked ``safe``."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from cloister.core.numerals import counted

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def page_headers() -> dict[str, str]:
    """Return the rights of a page in a browser: show it, send its forms, and renew parts of it."""
    # The style is in the page, since a browser draws nothing before a file of styles is there.
    return {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; connect-src 'self'; "
            f"style-src {_digest('console.css')}; img-src 'self'; form-action 'self'; "
            "frame-ancestors 'none'; base-uri 'none'"
        ),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",  # with less, a browser omits the origin of a form
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


@cache
def report_policy() -> str:
    """Return the content security policy of a report: no script but its own one runs."""
    return (
        f"default-src 'none'; script-src {_digest('report.js')}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(name: str) -> str:
    """Return a file as the source of a policy."""
    # By its digest, so that markup in a name has no effect even if it were not escaped.
    return f"'sha256-{b64encode(sha256(static(name).encode()).digest()).decode()}'"


def clean(text: str) -> str:
    """Return text with a visible sign for unprintable characters, which could steer a terminal."""
    return "\n".join(map(_clean_line, text.split("\n")))


def _clean_line(line: str) -> str:
    if line.isprintable():  # almost all are
        return line
    return "".join(c if c.isprintable() else "�" for c in line)


def page(template: str, **values: object) -> str:
    """Return a template, such as ``report.html``, filled with values; links begin at `root`."""
    return _templates().get_template(template).render({"root": "", **values})


def compile_ahead(template: str) -> None:
    """Compile a template with those that it uses, so that its first page does not wait."""
    environment = _templates()
    for name in ("layout.html", "parts.html", template):
        environment.get_template(name)


@cache
def static(name: str) -> str:
    """Return a file of this folder unchanged, such as ``console.css``."""
    return (files(__name__) / name).read_text("utf-8")


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        finalize=_printable,
        loader=FunctionLoader(static),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,  # a missing value is an error, not an empty text
    )
    environment.globals |= {"console_css": static("console.css"), "counted": counted}
    return environment


def _printable(value: object) -> object:
    # Markup comes from the package; every other text may come from a user or a file.
    return value if hasattr(value, "__html__") else clean(str(value))
