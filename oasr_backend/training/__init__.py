"""How the demo model was made: texts, synthetic speech, augmentation, training and its error rates.

Nothing of it runs while serving.
"""
