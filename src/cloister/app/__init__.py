"""The use cases of a desk: plan, pay, run and show a release."""
