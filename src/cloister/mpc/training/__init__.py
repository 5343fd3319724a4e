"""Models trained on shared rows: fixed iterations, nothing opened but the final model."""

from cloister.mpc.training.kmeans import KMeansOnShares
from cloister.mpc.training.logistic import LogisticOnShares
from cloister.mpc.training.network import NetworkOnShares

__all__ = ["KMeansOnShares", "LogisticOnShares", "NetworkOnShares"]
