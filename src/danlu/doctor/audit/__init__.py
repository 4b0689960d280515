"""Audits before step 0: what can be told of a run from its recipe, its data and its machine, one audit a file in checks/."""
