"""Clustering: Lloyd-type tasks, the method ``auto``, and the choice of the number of clusters."""
