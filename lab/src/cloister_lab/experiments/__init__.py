"""Studies of methods on public data: exact metrics, so nothing here is a release."""
