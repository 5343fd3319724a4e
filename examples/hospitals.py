# %% [markdown]
# # Three hospitals, one budget
#
# Three hospitals hold biopsies of breast tumours (the Wisconsin diagnostic data that come with
# scikit-learn). They want a joint classifier of malignant tumours, an honest measure of how good it
# is, and a picture of what kinds of tumours there are. No record leaves a hospital; everything is
# paid for from one budget, which a ledger keeps.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cloister import (
    Budget,
    DPKMeans,
    DPLogisticRegression,
    DPNaiveBayes,
    Ledger,
    Schema,
    cluster_quality,
    evaluate,
)
from cloister.data.schema import Column

# %% [markdown]
# ## The contract
#
# The hospitals agree on columns and on **public** bounds before anybody looks at a record: here on
# ten measures of cell nuclei, with bounds that a pathologist would call generous.

# %%
BOUNDS = {
    "radius": (5, 30),
    "texture": (5, 45),
    "perimeter": (40, 200),
    "area": (100, 2600),
    "smoothness": (0.04, 0.18),
    "compactness": (0, 0.4),
    "concavity": (0, 0.5),
    "concave points": (0, 0.25),
    "symmetry": (0.1, 0.32),
    "fractal dimension": (0.04, 0.1),
}
nuclei = tuple(
    Column(name=name, type="number", min=low, max=high) for name, (low, high) in BOUNDS.items()
)
diagnosis = Column(
    name="diagnosis", type="category", categories=("benign", "malignant"), min=0, max=1
)
schema = Schema(dataset="biopsies", unit="row", columns=(*nuclei, diagnosis))
print(f"{len(schema.columns)} columns, digest {schema.digest()[:16]}")

# %% [markdown]
# Each hospital holds back a third of its records for the measurement.

# %%
table = load_breast_cancer()
records = pd.DataFrame(table.data[:, :10], columns=list(BOUNDS))
records["diagnosis"] = np.where(table.target == 1, "benign", "malignant")
place = np.random.default_rng(0).permutation(len(records))
hospitals = [records.iloc[part] for part in np.array_split(place, 3)]
training = [part.iloc[: 2 * len(part) // 3] for part in hospitals]
held_back = [part.iloc[2 * len(part) // 3 :] for part in hospitals]

# %% [markdown]
# ## One budget for everything
#
# The ledger refuses whatever goes beyond. `nominal_n` is a public contract value, not the exact
# number of records.

# %%
ledger = Ledger(Path(mkdtemp()) / "ledger.db")
ledger.open_dataset("biopsies", cap=Budget(epsilon=8.0, delta=1e-6))
account = {"ledger": ledger, "delta": 1e-6}

# %% [markdown]
# ## Prepare and classify
#
# Bounds that a pathologist would call generous are wide. A first step finds narrower ones, a second
# learns from records cut to them. Both are one plan: they are paid for together, and the cost is
# known before anything is spent.

# %%
shared = {"bounds": schema, "target": "diagnosis", "nominal_n": 400, **account}
bayes = DPNaiveBayes(epsilon=3.0, prepare=[("bounds", {})], **shared).fit(training)
print(bayes.plan_.describe())
print(f"spent {ledger.spent('biopsies'):.3g} of 8")

# %% [markdown]
# Logistic regression scales by itself, and its coefficients have intervals.

# %%
logistic = DPLogisticRegression(epsilon=4.0, **shared).fit(training)
print(f"spent {ledger.spent('biopsies'):.3g} of 8")

# %% [markdown]
# What the same pooled records would give without privacy, for comparison. Nobody could do this.

# %%
pooled, unseen = pd.concat(training), pd.concat(held_back)
clear = make_pipeline(StandardScaler(), LogisticRegression())
clear.fit(pooled.drop(columns="diagnosis"), pooled["diagnosis"])
models = {"private naive Bayes": bayes, "private logistic": logistic, "pooled logistic": clear}
for name, model in models.items():
    predicted = model.predict(unseen.drop(columns="diagnosis"))
    print(f"{name:<22}{np.mean(predicted == unseen['diagnosis']):.3f}")

# %% [markdown]
# ## How good is it?
#
# Those accuracies are exact, so they may not leave the hospitals. A private evaluation may: every
# record held back adds one to a noisy table, and all measures come from that table.

# %%
measures = evaluate(logistic, held_back, epsilon=3.0, nominal_n=200, **account)
frame = measures.to_frame().round(3)
print(frame[~frame.index.str.contains("[", regex=False)].to_string())

# %% [markdown]
# ## What kinds of tumours are there?

# %%
shapes = Schema(dataset="biopsies", unit="row", columns=nuclei)
kinds = DPKMeans(2, epsilon=2.5, bounds=shapes, nominal_n=400, random_state=0, **account)
kinds.fit([part[list(BOUNDS)] for part in training])
centres = pd.DataFrame(kinds.cluster_centers_, columns=list(BOUNDS)).round(2)
print(centres.T.to_string())
quality = cluster_quality(
    kinds, [part[list(BOUNDS)] for part in held_back], epsilon=1.0, nominal_n=200, **account
)
print(quality.to_frame().round(3).to_string())

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
low, high = np.array(list(BOUNDS.values()), dtype=float).T
weights = logistic.coef_[0] * (high - low)
ends = np.abs(np.stack([logistic.coef_low_, logistic.coef_high_])[:, 0] - logistic.coef_[0])
left.barh(list(BOUNDS), weights, xerr=ends * (high - low), color="#0b62a4", ecolor="#5b6b7a")
left.set_title("Weight over its range, 95 % of the noise")
for i, row in enumerate((kinds.cluster_centers_ - low) / (high - low)):
    right.plot(row, "o-", label=f"kind {i + 1}: {kinds.cluster_sizes_[i]:.0f} records")
right.set_xticks(range(len(BOUNDS)), list(BOUNDS), rotation=60, ha="right")
right.set_title("Centres, as a part of the range")
right.legend(loc="upper center")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## The bill

# %%
print(f"spent {ledger.spent('biopsies'):.4g} of 8, left {ledger.remaining('biopsies'):.4g}")
