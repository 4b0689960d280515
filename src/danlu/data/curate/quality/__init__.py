"""Rules on single texts: one scan measures a text, each rule reads its figure off the measures."""
