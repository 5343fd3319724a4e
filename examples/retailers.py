# %% [markdown]
# # Three retailers, one set of rules
#
# Three grocers want to know which goods go into the same baskets, without showing their baskets to
# each other. Real baskets are somebody's, so these 9,000 are made up: each is a shopper's habits,
# drawn by the public rates below, and some goods by chance. So we know what rules should find.

# %%
from itertools import combinations
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

from cloister import Baskets, Budget, Ledger, mine_rules
from cloister.data.schema import catalogue_schema

# %% [markdown]
# ## The catalogue
#
# The catalogue is public: a list of what the shops sell, which never comes from the baskets. Beside
# each item stands the part of baskets that hold it by chance.

# %%
BY_CHANCE = {
    "apples": 0.09, "bananas": 0.12, "beer": 0.07, "biscuits": 0.05, "bread": 0.16, "butter": 0.05,
    "carrots": 0.07, "cat food": 0.03, "cheese": 0.09, "chocolate": 0.09, "coffee": 0.05,
    "cream": 0.04, "crisps": 0.04, "eggs": 0.07, "flour": 0.03, "ham": 0.06, "honey": 0.02,
    "jam": 0.03, "lettuce": 0.05, "milk": 0.18, "minced meat": 0.03, "napkins": 0.04, "oil": 0.03,
    "onions": 0.06, "oranges": 0.06, "pasta": 0.04, "pepper": 0.01, "potatoes": 0.07, "rice": 0.03,
    "rolls": 0.12, "salt": 0.01, "soap": 0.03, "soda": 0.10, "sugar": 0.04, "tea": 0.03,
    "tomatoes": 0.07, "vinegar": 0.01, "water": 0.14, "wine": 0.05, "yoghurt": 0.12,
}  # fmt: skip
HABITS = {
    ("pasta", "tomatoes", "minced meat"): 0.05,
    ("flour", "sugar", "eggs"): 0.04,
    ("beer", "crisps"): 0.06,
    ("rolls", "butter", "jam"): 0.04,
    ("lettuce", "oil", "vinegar"): 0.03,
}
FORGOTTEN = 0.15  # of the goods of a habit
schema = catalogue_schema(BY_CHANCE, dataset="baskets")
print(f"{len(BY_CHANCE)} items, digest {schema.digest()[:16]}")


# %%
def basket(rng):
    """Return the goods of one shopper."""
    goods = {item for item, rate in BY_CHANCE.items() if rng.random() < rate}
    for habit, rate in HABITS.items():
        if rng.random() < rate:
            goods |= {item for item in habit if rng.random() > FORGOTTEN}
    return ",".join(sorted(goods))


rng, work, shops = np.random.default_rng(0), Path(mkdtemp()), []
for i in range(3):
    path = work / f"shop-{i + 1}.txt"
    path.write_text("".join(f"{goods}\n" for _ in range(3000) if (goods := basket(rng))))
    shops.append(Baskets(path))

ledger = Ledger(work / "ledger.db")
ledger.open_dataset("baskets", cap=Budget(epsilon=1.0, delta=1e-6))

# %% [markdown]
# ## Rules
#
# One job counts items, then sets of two, with a basket's weight bounded whatever is in
# it. Confidence, lift and their intervals cost nothing more.

# %%
found = mine_rules(
    shops,
    catalogue=schema,
    epsilon=1.0,
    delta=1e-6,
    min_support=0.01,
    min_lift=1.5,
    nominal_n=9_000,
    ledger=ledger,
)
print(found.result.plan.describe())

# %%
print(found.itemsets_frame().head(15).to_string(index=False))

# %%
print(found.to_frame().head(15).to_string(index=False))

# %% [markdown]
# Which habits show:

# %%
together = {frozenset(rule.antecedent) | frozenset(rule.consequent) for rule in found.rules}
for habit, rate in HABITS.items():
    pairs = [frozenset(pair) for pair in combinations(habit, 2)]
    shown = sum(pair in together for pair in pairs)
    print(f"{', '.join(habit):<30}{rate:.0%} of baskets, rules for {shown} of {len(pairs)} pairs")

# %%
rules = found.to_frame()
points = plt.scatter(rules["support"], rules["confidence"], c=rules["lift"], cmap="viridis", s=30)
plt.colorbar(points, label="lift")
for _, rule in rules.head(8).iloc[::2].iterrows():  # one way round
    text = f"{', '.join(rule['antecedent'])} → {', '.join(rule['consequent'])}"
    plt.annotate(
        text,
        (rule["support"], rule["confidence"]),
        xytext=(6, 4),
        textcoords="offset points",
        fontsize=8,
        bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 0.5},
    )
plt.xlim(right=0.075)  # room for words
plt.xlabel("support")
plt.ylabel("confidence")
plt.title("Private rules of three shops")
plt.show()

# %% [markdown]
# ## The bill

# %%
print(f"spent {ledger.spent('baskets'):.4g} of 1")
