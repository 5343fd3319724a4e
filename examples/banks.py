# %% [markdown]
# # Three banks score credit together
#
# Three banks hold applications for credit. They want a joint score, its honest quality, and the
# applications that look like no others; and they compare with what each bank could do alone. Then
# the same with many more records. No bank shows applications, so these are made up, by the law that
# stands below: the best that any score can do is known.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, roc_auc_score

from cloister import (
    Budget,
    DPLogisticRegression,
    DPNaiveBayes,
    DPOutlierDetector,
    DPRandomForestClassifier,
    DPSiloEnsemble,
    Ledger,
    Schema,
    evaluate,
)
from cloister.data.schema import Column

# %% [markdown]
# ## The contract
#
# The schema lists every column with its categories or its public bounds, as the form of an
# application gives them. Nothing in it is read from the records.

# %%
HISTORY, HOUSING = ("paid", "late", "none"), ("owner", "tenant", "with parents")
schema = Schema(
    dataset="credit",
    unit="row",
    columns=[
        Column(name="age", type="number", min=18, max=80, measure="years"),
        Column(name="months", type="number", min=6, max=72),
        Column(name="instalment", type="number", min=0, max=60, measure="% of income"),
        Column(name="years in job", type="number", min=0, max=40),
        Column(name="history", type="category", categories=HISTORY),
        Column(name="housing", type="category", categories=HOUSING),
        Column(name="credit", type="category", categories=("good", "bad")),
    ],
)


def applications(n, seed):
    """Return made-up applications, and the true chance that each credit goes bad."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.normal(40, 12, n).clip(18, 80).round(),
            "months": rng.choice([12, 24, 36, 48, 60], n),
            "instalment": rng.gamma(2, 6, n).clip(1, 60).round(1),
            "years in job": rng.exponential(6, n).clip(0, 40).round(1),
            "history": rng.choice(HISTORY, n, p=[0.65, 0.15, 0.2]),
            "housing": rng.choice(HOUSING, n, p=[0.5, 0.4, 0.1]),
        }
    )
    odds = 0.09 * table["instalment"] + 0.02 * table["months"] - 0.08 * table["years in job"] - 2.8
    odds += table["history"].map({"paid": 0, "late": 2, "none": 0.5})
    odds += table["housing"].map({"owner": -0.5, "tenant": 0.5, "with parents": 0})
    bad = 1 / (1 + np.exp(-odds))
    table["credit"] = np.where(rng.random(n) < bad, "bad", "good")
    return table, bad


def open_ledger(dataset, epsilon):
    """Return a new ledger that lets a data set spend so much."""
    ledger = Ledger(Path(mkdtemp()) / "ledger.db")
    ledger.open_dataset(dataset, cap=Budget(epsilon=epsilon, delta=1e-6))
    return ledger


ledger = open_ledger(schema.dataset, 12.0)
records, chance = applications(3000, seed=0)
banks = [records.iloc[i::3] for i in range(3)]
training = [part.iloc[: 2 * len(part) // 3] for part in banks]
held_back = [part.iloc[2 * len(part) // 3 :] for part in banks]
print(f"{len(schema.columns)} columns: {', '.join(schema.names)}")
print(f"{(records['credit'] == 'bad').mean():.0%} of the credits went bad")

# %% [markdown]
# ## A joint score
#
# Few records: a forest and naive Bayes need the least from each of them.
# Telling a bad credit good costs five times as much as the other way round; costs are public and
# change predictions, not what is released.

# %%
common = {
    "bounds": schema,
    "target": "credit",
    "nominal_n": 2000,
    "delta": 1e-6,
    "ledger": ledger,
}
forest = DPRandomForestClassifier(
    epsilon=3.0, costs=[[0, 1], [5, 0]], random_state=0, **common
).fit(training)
bayes = DPNaiveBayes(epsilon=3.0, **common).fit(training)
print(forest.plan_.describe())

# %%
rows = {}
for name, model in {"forest": forest, "naive Bayes": bayes}.items():
    measures = evaluate(model, held_back, epsilon=1.5, nominal_n=1000, delta=1e-6, ledger=ledger)
    rows[name] = {word: measures[word] for word in ("accuracy", "auc", "kappa")}
shown = {
    name: {word: f"{m.value:.3f} [{m.low:.3f}, {m.high:.3f}]" for word, m in found.items()}
    for name, found in rows.items()
}
print(pd.DataFrame(shown).T.to_string())

# %% [markdown]
# What each bank could do by itself at the same epsilon: models that see a third of the records, and
# an ensemble of the three. The comparison is on records held back and so stays with the banks.

# %%
alone = DPSiloEnsemble(
    DPNaiveBayes(epsilon=3.0, **{**common, "ledger": None}),
    nominal_n=[700] * 3,
    ledgers=[open_ledger(schema.dataset, 3.0) for _ in banks],
).fit(training)
unseen = pd.concat(held_back)
features, truth = unseen.drop(columns="credit"), unseen["credit"]
best = np.where(chance[unseen.index] > 0.5, "bad", "good")
print(f"{'the law itself':<28}{accuracy_score(truth, best):.3f}")
predicted = {
    "one model of all records": bayes,
    "an ensemble of the three": alone,
    "the first bank alone": alone.models_[0],
}
for name, model in predicted.items():
    print(f"{name:<28}{accuracy_score(truth, model.predict(features)):.3f}")

# %% [markdown]
# ## Applications like no others

# %%
unusual = DPOutlierDetector(
    epsilon=1.5,
    bounds=schema,
    method="robust",
    threshold=3.0,
    count_share=0.3,
    nominal_n=2000,
    delta=1e-6,
    ledger=ledger,
).fit(training)
print(f"about {unusual.flagged_[0]:.0f} unusual applications at all banks together")
print(f"spent {ledger.spent(schema.dataset):.4g} of 12")

# %% [markdown]
# ## Many records
#
# With 36,000 records an epsilon of 1 costs next to nothing: the lines are the law's own.

# %%
years = schema.model_copy(update={"dataset": "credit of ten years"})
account = {"delta": 1e-6, "ledger": open_ledger(years.dataset, 4.0)}
many, chance = applications(48_000, seed=1)
train, test = many.iloc[:36_000], many.iloc[36_000:]
bad = chance[36_000:]
law = {
    "accuracy": accuracy_score(test["credit"], np.where(bad > 0.5, "bad", "good")),
    "auc": roc_auc_score(test["credit"] == "bad", bad),
}
print(f"{'the law':<14}accuracy {law['accuracy']:.3f}" + " " * 18 + f"AUC {law['auc']:.3f}")
figure, axes = plt.subplots(1, 2, figsize=(10, 4))
for name, kind in {"naive Bayes": DPNaiveBayes, "logistic": DPLogisticRegression}.items():
    model = kind(epsilon=1.0, bounds=years, target="credit", nominal_n=36_000, **account)
    model.fit([train.iloc[i::3] for i in range(3)])
    parts = [test.iloc[i::3] for i in range(3)]
    found = evaluate(model, parts, epsilon=1.0, nominal_n=12_000, **account)
    accuracy, auc = found["accuracy"], found["auc"]
    print(
        f"{name:<14}accuracy {accuracy.value:.3f} [{accuracy.low:.3f}, {accuracy.high:.3f}]"
        f"   AUC {auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]"
    )
    for axis, measure in zip(axes, (accuracy, auc), strict=True):
        ends = [[measure.value - measure.low], [measure.high - measure.value]]
        axis.errorbar([name], [measure.value], yerr=ends, fmt="o", capsize=6)
titles = ("Accuracy with 95 % of the noise", "Area under the ROC curve")
for axis, best, title in zip(axes, law.values(), titles, strict=True):
    axis.axhline(best, color="#5b6b7a", linestyle=":")
    axis.set_title(title)
    axis.margins(x=0.5)
figure.tight_layout()
plt.show()
