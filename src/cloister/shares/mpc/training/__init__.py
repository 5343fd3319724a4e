"""Models trained on shared rows: fixed iterations, nothing opened but the final model."""

from cloister.shares.mpc.training.kmeans import KMeansOnShares
from cloister.shares.mpc.training.logistic import LogisticOnShares
from cloister.shares.mpc.training.network import NetworkOnShares

__all__ = ["KMeansOnShares", "LogisticOnShares", "NetworkOnShares"]
