# %% [markdown]
# # Three retailers, one set of rules
#
# Three grocers want to know which goods go into the same baskets, without showing their baskets to
# each other. The data are the *Groceries* baskets (Hahsler, Hornik and Reutterer, 2006): 9,835
# baskets of 169 kinds of goods, dealt to three shops.

# %%
import gzip
import os
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

from cloister import Baskets, Budget, Ledger, catalogue_schema, mine_rules

folder = Path(os.environ["CLOISTER_DATA"])
lines = gzip.decompress((folder / "groceries.txt.gz").read_bytes()).decode().splitlines()

# %% [markdown]
# ## The catalogue
#
# The catalogue is public: a list of what the shops sell. Here we take it from the file, as if it
# were a price list; in earnest it must not come from the baskets.

# %%
catalogue = sorted({item for line in lines for item in line.split(",")})
schema = catalogue_schema(catalogue, dataset="baskets")
print(f"{len(catalogue)} items, digest {schema.digest()[:16]}")

# %%
work = Path(mkdtemp())
shops = []
for i in range(3):
    path = work / f"shop-{i + 1}.txt"
    path.write_text("\n".join(lines[i::3]) + "\n")
    shops.append(Baskets(path))

ledger = Ledger(work / "ledger.db")
ledger.open_dataset("baskets", cap=Budget(epsilon=1.0, delta=1e-6))

# %% [markdown]
# ## Rules
#
# One job counts items, then sets of two and of three, with a basket's weight bounded whatever is in
# it. Confidence, lift and their intervals cost nothing more.

# %%
found = mine_rules(
    shops,
    catalogue=schema,
    epsilon=1.0,
    delta=1e-6,
    min_support=0.01,
    min_lift=1.5,
    nominal_n=10_000,
    ledger=ledger,
)
print(found.result.plan.describe())

# %%
print(found.itemsets_frame().head(15).to_string(index=False))

# %%
print(found.to_frame().head(15).to_string(index=False))

# %%
rules = found.to_frame()
points = plt.scatter(rules["support"], rules["confidence"], c=rules["lift"], cmap="viridis", s=30)
plt.colorbar(points, label="lift")
for _, rule in rules.head(6).iterrows():
    text = f"{', '.join(rule['antecedent'])} → {', '.join(rule['consequent'])}"
    plt.annotate(
        text,
        (rule["support"], rule["confidence"]),
        xytext=(6, 4),
        textcoords="offset points",
        fontsize=8,
        bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 0.5},
    )
plt.xlabel("support")
plt.ylabel("confidence")
plt.title("Private rules of three shops")
plt.show()

# %% [markdown]
# ## The bill

# %%
print(f"spent {ledger.spent('baskets'):.4g} of 1")
