"""The use cases of one user's machine: plan, pay for, run and show a release."""
