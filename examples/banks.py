# %% [markdown]
# # Three banks score credit together
#
# Three banks hold applications for credit (German Credit, UCI, 1,000 records). They want a joint
# score, its honest quality, and the applications that look like no others; and they compare with
# what each bank could do alone. Then the same with many more records: who earns more than 50,000
# dollars in the census extract *Adult* (UCI, 48,842 records).

# %%
import os
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

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

folder = Path(os.environ["CLOISTER_DATA"])
schemas = Path(str(files("cloister_lab.experiments") / "schemas"))
ledger = Ledger(Path(mkdtemp()) / "ledger.db")

# %% [markdown]
# ## The contract
#
# The schema lists every column with its categories or its public bounds, as UCI's codebook gives
# them. Nothing in it was read from the records.

# %%
schema = Schema.load(schemas / "german_credit.toml")
ledger.open_dataset(schema.dataset, cap=Budget(epsilon=12.0, delta=1e-6))
records = pd.read_csv(folder / "german_credit.csv.gz", dtype=str)
place = np.random.default_rng(0).permutation(len(records))
banks = [records.iloc[part] for part in np.array_split(place, 3)]
training = [part.iloc[: 2 * len(part) // 3] for part in banks]
held_back = [part.iloc[2 * len(part) // 3 :] for part in banks]
print(f"{len(schema.columns)} columns: {', '.join(schema.names)}")

# %% [markdown]
# ## A joint score
#
# Few records and many columns: a forest of random public trees and naive Bayes need the least from
# each record. Telling a bad credit good costs five times as much as the other way round, which is
# the data's own cost matrix; costs are public and change predictions, not what is released.

# %%
common = {
    "bounds": schema,
    "target": "credit",
    "nominal_n": 700,
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
    measures = evaluate(model, held_back, epsilon=1.5, nominal_n=300, delta=1e-6, ledger=ledger)
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
alone = DPSiloEnsemble(DPNaiveBayes(epsilon=3.0, **{**common, "ledger": None}), nominal_n=[250] * 3)
alone.fit(training)
unseen = pd.concat(held_back)
features, truth = unseen.drop(columns="credit"), unseen["credit"].astype(int)
predicted = {
    "one model of all records": bayes,
    "an ensemble of the three": alone,
    "the first bank alone": alone.models_[0],
}
for name, model in predicted.items():
    print(f"{name:<28}{np.mean(model.predict(features) == truth):.3f}")

# %% [markdown]
# ## Applications like no others

# %%
unusual = DPOutlierDetector(
    epsilon=1.5,
    bounds=schema,
    method="robust",
    threshold=3.0,
    count_share=0.3,
    nominal_n=700,
    delta=1e-6,
    ledger=ledger,
).fit(training)
print(f"about {unusual.flagged_[0]:.0f} unusual applications at all banks together")
print(f"spent {ledger.spent(schema.dataset):.4g} of 12")

# %% [markdown]
# ## Many records: Adult
#
# With 48,842 records an epsilon of 1 costs next to nothing.

# %%
census = Schema.load(schemas / "adult.toml")
people = pd.read_csv(folder / "adult_full.csv.gz", dtype=str)
place = np.random.default_rng(1).permutation(len(people))
train, test = people.iloc[place[:36000]], people.iloc[place[36000:]]
parts = [train.iloc[i::3] for i in range(3)]
models = {
    "naive Bayes": DPNaiveBayes(
        epsilon=1.0, bounds=census, target="income", nominal_n=36_000, delta=1e-6
    ),
    "logistic": DPLogisticRegression(
        epsilon=1.0, bounds=census, target="income", nominal_n=36_000, delta=1e-6
    ),
}
figure, axes = plt.subplots(1, 2, figsize=(10, 4))
for name, model in models.items():
    model.fit(parts)
    found = evaluate(
        model, [test.iloc[i::3] for i in range(3)], epsilon=1.0, nominal_n=12_000, delta=1e-6
    )
    accuracy, auc = found["accuracy"], found["auc"]
    print(
        f"{name:<14}accuracy {accuracy.value:.3f} [{accuracy.low:.3f}, {accuracy.high:.3f}]"
        f"   AUC {auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]"
    )
    axes[0].errorbar(
        [name],
        [accuracy.value],
        yerr=[[accuracy.value - accuracy.low], [accuracy.high - accuracy.value]],
        fmt="o",
        capsize=6,
    )
    axes[1].errorbar(
        [name],
        [auc.value],
        yerr=[[auc.value - auc.low], [auc.high - auc.value]],
        fmt="o",
        capsize=6,
    )
axes[0].set_title("Accuracy with 95 % of the noise")
axes[1].set_title("Area under the ROC curve")
for axis in axes:
    axis.margins(x=0.5)
figure.tight_layout()
plt.show()
