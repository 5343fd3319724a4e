"""Published k-means as tasks, with their private variants; for comparison."""
