"""The doctor: names what is wrong with a run, with evidence and the way out, and says nothing of a healthy one."""
