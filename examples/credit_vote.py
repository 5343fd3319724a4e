# %% [markdown]
# # Three banks vote on an applicant that none of them sees
#
# Three banks hold applications for credit. Each trains a model of its own, privately. A broker
# asks about new applicants. It will not show them to the banks, and the banks will not show their
# models. So both are split into shares for two compute servers, each model votes on shares, and
# only the label of the majority is opened, to the broker alone. The applications are made up by the
# law below.

# %%
import time
import warnings
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from cloister import Budget, DPLogisticRegression, Ledger, Schema
from cloister.data.schema import Column
from cloister.shares.inference.linear import linear_scorer
from cloister.shares.mpc import combine, run_here
from cloister.shares.mpc.vote import NoisyVote, Score

HISTORY = ("paid", "late", "none")
schema = Schema(
    dataset="credit",
    unit="row",
    columns=[
        Column(name="months", type="number", min=6, max=72),
        Column(name="instalment", type="number", min=0, max=60, measure="% of income"),
        Column(name="years in job", type="number", min=0, max=40),
        Column(name="history", type="category", categories=HISTORY),
        Column(name="credit", type="category", categories=("good", "bad")),
    ],
)
rng, n = np.random.default_rng(0), 2500
records = pd.DataFrame(
    {
        "months": rng.choice([12, 24, 36, 48, 60], n),
        "instalment": rng.gamma(2, 6, n).clip(1, 60).round(1),
        "years in job": rng.exponential(6, n).clip(0, 40).round(1),
        "history": rng.choice(HISTORY, n, p=[0.65, 0.15, 0.2]),
    }
)
odds = 0.09 * records["instalment"] + 0.02 * records["months"] - 0.08 * records["years in job"]
odds += records["history"].map({"paid": -2.8, "late": -0.8, "none": -2.3})
records["credit"] = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "bad", "good")
training = [records.iloc[:2250].iloc[i::3] for i in range(3)]
applicants = records.iloc[2250:]
features, truth = applicants.drop(columns="credit"), applicants["credit"].to_numpy()

# %% [markdown]
# ## Each bank trains by itself
#
# A model is a release: its weights say something about the bank's own customers. Shares hide
# weights, but labels describe them, one answer after the other. So each bank trains with
# differential privacy and its own ledger is charged. The banks hold different records, so a
# customer of one bank loses its epsilon once.

# %%
banks = {}
for name, part in zip(("north", "south", "west"), training, strict=True):
    ledger = Ledger(Path(mkdtemp()) / f"{name}.db")
    ledger.open_dataset(schema.dataset, cap=Budget(epsilon=4.0, delta=1e-6))
    model = DPLogisticRegression(
        epsilon=4.0, bounds=schema, target="credit", nominal_n=750, delta=1e-6, ledger=ledger
    ).fit([part])
    banks[name] = model
    print(f"{name:<6} trained, spent {ledger.spent(schema.dataset):.3g} of 4")

# %% [markdown]
# ## The vote
#
# Public: the layout of the entries (that of the schema), how many applicants, which banks. Each
# bank turns its model into a column of weights with the bias last, the broker its applicants into
# entries in [-1, 1]. Here all three parties run in one process, which hides nothing;
# `cloister compute` runs the same program, "score", between machines.

# %%
scorers = {name: linear_scorer(model) for name, model in banks.items()}
layout = next(iter(scorers.values())).layout
program = Score(models=tuple(banks), rows=len(applicants), features=layout.width)
tables = {"rows": layout.encode(features)} | {
    name: np.vstack([scorer.weights.T, scorer.bias]) for name, scorer in scorers.items()
}
words = {name: program.words(name, values) for name, values in tables.items()}


def vote(server, *shares):
    return program.run(server, dict(zip(words, shares, strict=True)))["label"]


start = time.perf_counter()
(first, second), servers = run_here(vote, *words.values())
classes = np.array(layout.classes)
decided = classes[program.values("label", combine(first, second))]
print(
    f"{len(decided)} applicants decided in {time.perf_counter() - start:.2f} s, {servers[0].cost}"
)

# %% [markdown]
# In the clear the same models say the same; what the vote costs is not quality.

# %%
alone = {name: model.predict(features) for name, model in banks.items()}
majority = classes[(np.sum([own == classes[1] for own in alone.values()], axis=0) > 1).astype(int)]
print(f"as in the clear: {np.mean(decided == majority):.1%} of the labels")
right = {name: np.mean(own == truth) for name, own in alone.items()}
right |= {"majority": np.mean(decided == truth), "all accepted": np.mean(truth == "good")}
for name, share in right.items():
    print(f"{name:<14}{share:.3f}")

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.bar(list(right), list(right.values()))
axes.set(ylim=(0.5, 0.85), title="Right decisions on 250 applicants")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## What is protected, and from whom
#
# | | sees | does not see |
# |---|---|---|
# | a bank | nothing of the query, not even the label | applicants, other models, votes |
# | the broker | the labels | models, single votes, scores |
# | a compute server | random words, public sizes | everything else |
# | the dealer | public sizes | everything else |
# | **the dealer together with either server** | **everything** | |
#
# Not protected: each label says a little about the models, so the banks limit how many they allow;
# a bank that shares a wrong model is not noticed; and the broker learns the label, which is its
# purpose.
#
# ## Why not add noise to the vote?
#
# Where models are trained without privacy, noise on the counts can protect the records instead. It
# needs many voters. Three are too few, and the program says so:

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    few = NoisyVote(voters=tuple(banks), rows=10, classes=2, epsilon=4.0)
print(caught[0].message)
print(f"3 banks: {few.chance(3):.2f} for a unanimous vote")
hospitals = tuple(f"hospital{k}" for k in range(200))
many = NoisyVote(voters=hospitals, rows=10, classes=2, epsilon=4.0)
print(f"200 silos: {many.chance(200):.2f} unanimous, {many.chance(10):.2f} for 105 against 95")
