"""Documents that hold what a model will be tested on."""
