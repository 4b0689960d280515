"""Raw documents to those worth training on: stages judge one document at a time, then copies are found over all of them."""
