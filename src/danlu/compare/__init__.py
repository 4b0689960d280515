"""One recipe on both engines: do they train the same model, and if not, where do they part?"""
