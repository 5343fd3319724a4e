"""Clustering: Lloyd-type tasks, our own k-means, and the choice of the number of clusters."""
